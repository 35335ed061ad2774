"""What a shell completes, by click's own machinery and as Bash asks for it."""

import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from lisse.cli import cli
from lisse.cli.completion import Bash, table
from lisse.data.sources import SOURCES
from lisse.instruments import ALL
from lisse.networks.zoo import NETWORKS


def completed(words: str) -> list[tuple[str, str]]:
    *before, incomplete = words.split(" ")
    items = ShellComplete(cli, {}, "lisse", "_LISSE_COMPLETE").get_completions(before, incomplete)
    return [(item.type, item.value) for item in items]


def values(words: str) -> list[str]:
    return [value for kind, value in completed(words) if kind == "plain"]


def test_the_tables_are_those_of_the_modules():
    assert table("networks/zoo") == list(NETWORKS)
    assert table("data/sources.py") == list(SOURCES)
    assert table("instruments") == [kind.__name__ for kind in ALL]


@pytest.mark.parametrize(
    "command", ["layers", "bounds", "report", "report zoo:fc2", "measure topology", "train", "drift zoo:fc2", "sweep"]
)
def test_models_are_completed_wherever_one_is_taken(command):
    assert values(f"{command} zoo:resnet2") == ["zoo:resnet20"]
    assert set(values(f"{command} zoo:")) == {f"zoo:{name}" for name in NETWORKS}
    assert values(f"{command} h") == ["hf:"]
    assert completed(f"{command} checkpoints/re") == [("file", "checkpoints/re")]


@pytest.mark.parametrize(
    "command", ["layers zoo:fc2", "bounds zoo:fc2", "report zoo:fc2", "measure topology zoo:fc2", "train zoo:fc2"]
)
def test_data_sets_are_completed(command):
    assert values(f"{command} --data cifar") == ["cifar10", "cifar10-c"]
    assert completed(f"{command} --data ./") == [("file", "./")]


def test_instruments_are_completed_also_behind_a_comma():
    assert values("measure sta") == ["stability"]
    assert values("measure topology,s") == ["topology,stability", "topology,sensitivity"]
    assert values("measure stability,s") == ["stability,sensitivity"]
    assert "--help" in values("measure --")
    for option in ("report zoo:fc2 --instruments", "sweep zoo:fc2 --instruments", "train zoo:fc2 --measure"):
        assert values(f"{option} topology,iso") == ["topology,isometry"]
    assert values("measure sensitivity zoo:fc2 --poi") == ["--points"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["lisse", "layers", "zoo", ":", "resnet2"], "plain,resnet20"),
        (["lisse", "layers", '"zoo:resnet2'], "plain,zoo:resnet20"),
        (["lisse", "layers", "zoo:resnet2"], "plain,zoo:resnet20"),
        (["lisse", "report", "zoo", ":", "fc2", "--data", "cifar10-"], "plain,cifar10-c"),
        (["lisse", "layers", "h"], "plain,hf:"),
        (["lisse", "lay"], "plain,layers"),
    ],
)
def test_bash_gets_what_stands_behind_its_colon(monkeypatch, words, answer):
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert Bash(cli, {}, "lisse", "_LISSE_COMPLETE").complete() == answer


def test_a_key_does_not_wait_for_torch():
    script = (
        "import os, sys\nos.environ.update(COMP_WORDS='lisse\\nlayers\\nzoo\\n:\\nresnet2', COMP_CWORD='4', "
        "_LISSE_COMPLETE='bash_complete')\nfrom lisse.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["plain,resnet20", "False"]
