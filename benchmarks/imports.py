"""What it costs to import lisse, and to ask it for help: limits 0.3 s beyond `import torch`, and 1 s.

Every figure is the best of several new processes, taken in turns. tests/test_package.py asserts the cause of these
figures: that nothing heavy is imported.
"""

import subprocess
import sys

from timing import arguments, clock, publish, race, table

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import torch, lisse": ["-c", "import torch, lisse"],
    "import lisse": ["-c", "import lisse"],
    "lisse --help": ["-m", "lisse", "--help"],
}


def main() -> None:
    options = arguments(__doc__, rounds=7).parse_args()

    def run(arguments: list[str]) -> None:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)

    timings = race({name: lambda a=a: run(a) for name, a in COMMANDS.items()}, rounds=options.rounds)  # type: ignore[misc]
    best = {timing.name: timing.best for timing in timings}
    beyond = max(best["import torch, lisse"] - best["import torch"], 0.0)
    limits = [
        f"- `import lisse` beyond `import torch`: {clock(beyond) if beyond else 'less than the noise'} (limit 0.3 s)",
        f"- `lisse --help`: {clock(best['lisse --help'])} (limit 1 s)",
    ]
    publish("imports", "Imports", table(timings, ratio=False) + "\n\n" + "\n".join(limits), write=options.write)
    if beyond > 0.3 or best["lisse --help"] > 1.0:
        sys.exit("imports: over a limit")


if __name__ == "__main__":
    main()
