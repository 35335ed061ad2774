"""Prints the lower bounds of pyproject.toml as pins, for `make test-minimum`.

torch is the exception: it is pinned to the version in constraints.txt, the only one with a CPU build on the machines
that run the suite. Its lower bound is the version of the GPU machine, where `make test-gpu` runs.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SELF = re.compile(r"lisse\[(?P<extras>[a-z,]+)\]")  # an extra that is made of others
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)>=(?P<version>[0-9.]+)")


def pins(pyproject: str, constraints: str) -> list[str]:
    """One ``name==version`` for each requirement of ``lisse[all,dev]``."""
    project = tomllib.loads(pyproject)["project"]
    requirements = [*project["dependencies"], *_extra(project, "all"), *_extra(project, "dev")]
    torch = next(line for line in constraints.splitlines() if line.startswith("torch=="))
    lines = []
    for requirement in requirements:
        match = REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"pins: a requirement must read name>=version, got {requirement!r}.")
        lines.append(torch if match["name"] == "torch" else f"{match['name']}=={match['version']}")
    return lines


def _extra(project: dict[str, Any], name: str) -> list[str]:
    """The requirements of an extra, and of those that it names."""
    requirements = []
    for requirement in project["optional-dependencies"][name]:
        match = SELF.fullmatch(requirement)
        requirements += [requirement] if match is None else [
            line for extra in match["extras"].split(",") for line in _extra(project, extra)
        ]  # fmt: skip
    return requirements


if __name__ == "__main__":
    sys.stdout.write(
        "\n".join(pins((ROOT / "pyproject.toml").read_text(), (ROOT / "constraints.txt").read_text())) + "\n"
    )
