"""Writes lock.txt: the hashes of what constraints.txt pins, for `make env LOCK=lock.txt`.

    python tools/lock.py INDEX

INDEX is the address of a package index's simple pages. Of each release its wheels for CPython 3.11 to 3.13 on Linux are
taken, or its source where it has none. torch is left out: it is a build of the machine's own index, CPU or CUDA, with
another hash on every kind of machine; so is what never enters the environment beside it.
"""

import html
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Builds of the machine's own index, and what needs one of these or is installed for benchmarks alone.
APART = {"torch", "torchvision", "timm", "giotto-ph"}
FITS = re.compile(
    r"(?:py3|py2\.py3|cp311|cp312|cp313|cp3\d+-abi3)\b.*(?:-any|linux[^-]*x86_64|linux[^-]*aarch64)\.whl$"
)
LINK = re.compile(r'href="[^"#]*/(?P<file>[^"#/]+)#sha256=(?P<hash>[0-9a-f]{64})"')
HEAD = """\
# Hashes of what constraints.txt pins but torch, for `make env LOCK=lock.txt`, which .ci/run asks for.
# Made by tools/lock.py: Linux (x86_64, aarch64), CPython 3.11 to 3.13.
"""


def pins(constraints: str) -> list[tuple[str, str]]:
    """Name and version of each line of constraints that is locked."""
    lines = [line.split("==") for line in constraints.splitlines() if "==" in line and not line.startswith("#")]
    return [(name, version) for name, version in lines if normal(name) not in APART]


def normal(name: str) -> str:
    """A project's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def hashes(page: str, name: str, version: str) -> list[str]:
    """Of a project's page, the hashes of one release's wheels that fit, or of its source."""
    wheels, sources = [], []
    for match in LINK.finditer(page):
        file = html.unescape(match["file"]).replace("%2B", "+")
        if file.endswith(".whl") and file.split("-")[1] == version and FITS.search(file.split("-", 2)[2]):
            wheels.append(match["hash"])
        elif file.endswith(".tar.gz") and normal(file[:-7]) == normal(f"{name}-{version}"):
            sources.append(match["hash"])
    if not wheels + sources:
        raise ValueError(f"lock: {name} {version} must have a file that fits, got none on its page.")
    return sorted(set(wheels or sources))


def locked(index: str, name: str, version: str) -> str:
    """One requirement with its hashes."""
    with urllib.request.urlopen(f"{index.rstrip('/')}/{normal(name)}/", timeout=60) as answer:
        lines = hashes(answer.read().decode(), name, version)
    return " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{line}" for line in lines)])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("lock: INDEX must be the address of a package index's simple pages, got nothing.")
    with ThreadPoolExecutor(8) as pool:
        blocks = list(pool.map(lambda pin: locked(sys.argv[1], *pin), pins((ROOT / "constraints.txt").read_text())))
    (ROOT / "lock.txt").write_text(HEAD + "\n".join(blocks) + "\n")
