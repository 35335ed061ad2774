"""`lisse verify`: the same, what differs, or cannot; and gates against a row of an atlas."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lisse.profile import Profile
from lisse.reporting.atlas import AtlasRow, load_atlas, save_atlas

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "zoo:fc2?in_channels=1&size=8&mean=none&width=4"


@pytest.fixture
def swept(lisse, folder, monkeypatch) -> tuple[Path, str]:
    """The profile of a network that was trained in a sweep, and its row in an atlas."""
    monkeypatch.setattr("lisse.sweeping.driver.Workers", lambda count, devices: ThreadPoolExecutor(1))
    (folder / "plan.toml").write_text(
        "data = 'digits'\ninstruments = ['sensitivity']\nlimit = 30\noptions.sensitivity.samples = 20\n"
        f"[[trainings]]\nmodels = '{NETWORK}'\nrecipes = {{ epochs = 1 }}\nseeds = [3]\n"
    )
    assert lisse("sweep", "plan.toml", "--out", "runs").exit_code == 0
    assert lisse("atlas", "runs", "--out", "a.html", "--table", "a.json", "--no-reports").exit_code == 0
    (path,) = (folder / "runs" / "profiles").iterdir()
    ((row,), _) = load_atlas(folder / "a.json")
    return path, f"a.json#{row.key[:6]}"


def test_a_gate_says_that_a_row_was_measured_otherwise(lisse, folder, swept):
    path, row = swept
    profile = Profile.load(path)
    part = dataclasses.replace(profile.parts[0], options={**profile.parts[0].options, "samples": 19})
    dataclasses.replace(profile, parts=(part,)).save(folder / "other.profile")
    word = "measured with other instruments, options, numbers of samples or batches"
    assert word in lisse("compare", row, "other.profile").stderr
    assert "were measured" not in lisse("compare", row, path).stderr
    versions = profile.provenance["versions"] | {"code": "0123abcd"}
    dataclasses.replace(profile, provenance={**profile.provenance, "versions": versions}).save(folder / "other.profile")
    said = lisse("compare", row, "other.profile").stderr
    assert "were measured by other versions (0.1.0 (" in said
    assert "; 0.1.0 (0123abcd), torch" in said


def changed(profile: Profile, **row_changes) -> Profile:
    """The profile with its first row changed."""
    part = profile.parts[0]
    first = dataclasses.replace(part.rows[0], low=None, high=None, **row_changes)
    return dataclasses.replace(profile, parts=(dataclasses.replace(part, rows=(first, *part.rows[1:])),))


def test_a_network_of_recipe_and_seed_comes_out_the_same(lisse, folder, swept):
    path, row = swept
    done = lisse("verify", path, "--out", "again.profile")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("the same: ")
    assert "to the last digit" in done.stdout
    assert Profile.load(folder / "again.profile").parts == Profile.load(path).parts
    done = lisse("verify", row)
    assert done.stdout == "the same: 16 numbers, to the last digit.\n"

    # rounding is told from a difference, and a difference is named
    profile = Profile.load(path)
    value = profile.rows[0].value
    changed(profile, value=value * (1 + 1e-6)).save(folder / "close.profile")
    close = lisse("verify", "close.profile")
    assert (close.exit_code, close.stdout.partition(":")[0]) == (0, "the same but for rounding")
    changed(profile, value=value * 1.5).save(folder / "far.profile")
    far = lisse("verify", "far.profile")
    assert far.exit_code == 5
    assert far.stdout.startswith(f"different: {len(profile.rows) - 1} of {len(profile.rows)} numbers agree")
    assert f"{value * 1.5:.9g} before, {value:.9g} now" in far.stdout

    # another network in its place has other weights
    other = lisse("verify", row, "--model", NETWORK)
    assert other.exit_code == 5
    assert "The weights differ" in other.stdout
    data = lisse("verify", row, "--data", "digits?split=all")
    assert data.exit_code != 0


def test_a_row_is_compared_with_all_that_it_holds(lisse, folder, swept):
    ((row,), words) = load_atlas(folder / "a.json")
    label, (value, low, high, n, kind) = next(item for item in row.numbers.items() if item[1][1] is not None)
    error, *ends, count = row.error

    def verified(**changes):
        save_atlas([dataclasses.replace(row, **changes)], words, folder / "b.json")
        return lisse("verify", f"b.json#{row.key}")

    for name, number in (
        (f"{label} low", (value, low - 1, high, n, kind)),
        (f"{label} high", (value, low, high + 1, n, kind)),
        (f"{label} n", (value, low, high, n + 1, kind)),
    ):
        done = verified(numbers={**row.numbers, label: number})
        assert (done.exit_code, f"{name}: " in done.stdout) == (5, True), done.output
    for name, numbers in (
        ("test error", (error + 0.1, *ends, count)),
        ("test error low", (error, ends[0] + 0.1, ends[1], count)),
        ("test error high", (error, ends[0], ends[1] + 0.1, count)),
        ("test error n", (error, *ends, count + 1)),
    ):
        done = verified(error=numbers)
        assert (done.exit_code, f"{name}: " in done.stdout) == (5, True), done.output
    empty = verified(numbers={}, error=None)
    assert (empty.exit_code, empty.stdout) == (1, "")
    assert "cannot: the row holds no numbers" in empty.stderr
    profile = Profile.load(swept[0])
    dataclasses.replace(profile, parts=()).save(folder / "empty.profile")
    assert "cannot: the profile holds no numbers" in lisse("verify", "empty.profile").stderr


def test_a_measurement_of_ones_own_needs_its_data(lisse, folder):
    line = ["measure", "sensitivity", NETWORK, "--data", "digits", "--quick", "--samples", "20", "--out", "own.profile"]
    assert lisse(*line).exit_code == 0
    assert "give --data SPEC" in lisse("verify", "own.profile").stderr
    done = lisse("verify", "own.profile", "--data", "digits")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("the same: ")


def test_what_cannot_be_made_again_says_so(lisse, folder, swept):
    path, _ = swept
    profile = Profile.load(path)
    about = {**profile.provenance, "sweep": None, "model": {**profile.provenance["model"], "spec": None}}
    dataclasses.replace(profile, provenance=about).save(folder / "a.profile")
    done = lisse("verify", "a.profile")
    assert done.exit_code == 1
    assert "cannot: no weights and no recipe" in done.stderr
    unit = {**profile.provenance["sweep"]["unit"], "training": None, "model": NETWORK + "&weights=gone.safetensors"}
    about = {**profile.provenance, "sweep": {"unit": unit}}
    dataclasses.replace(profile, provenance=about).save(folder / "b.profile")
    done = lisse("verify", "b.profile", "--trust")
    assert done.exit_code == 1
    assert "cannot: no weights and no recipe. gone.safetensors is not here" in done.stderr
    lone = AtlasRow("k1", "net", "f", "digits", numbers={"calm": (1.0, None, None, 5, "exact")}, weights="w")
    save_atlas([lone], {}, folder / "lone.json")
    done = lisse("verify", "lone.json#k1", "--model", NETWORK, "--data", "digits")
    assert done.exit_code == 1
    assert "cannot: the row does not say how it was measured" in done.stderr
    for target, says in (("a.json#zz", "got none"), ("none.json#1", "No such file"), ("a.json#", "must have one row")):
        done = lisse("verify", target)
        assert done.exit_code == 3
        assert says in done.stderr


def test_what_a_stranger_wrote_moves_no_cursor_and_fills_no_screen(lisse, folder, swept):
    ((row,), words) = load_atlas(folder / "a.json")
    evil = "\x1b[2J\x1b]0;title\x07\udc80\r\u202e" + "x" * 100_000
    numbers = {evil: (1.0, None, None, 5, "exact"), **row.numbers}
    for reason in ("", evil):
        hostile = dataclasses.replace(row, name=evil, numbers=numbers, weights=evil, version=evil, reason=reason)
        save_atlas([hostile], words, folder / "evil.json")
        done = lisse("verify", f"evil.json#{row.key}")
        assert done.exit_code == (1 if reason else 5)
        assert "The weights differ" in done.stdout or reason
        assert not set(done.stdout + done.stderr) & set("\x1b\x07\r\udc80\u202e")
        assert len(done.stdout + done.stderr) < 3000


def test_a_row_is_a_gate(lisse, folder, swept):
    path, row = swept
    level = lisse("compare", row, path, "--fail-if", "b.stretch > 1.1 * a.stretch")
    assert level.exit_code == 0, level.output
    assert "does not hold" in level.stderr
    assert lisse("compare", row, path, "--fail-if", "stretch > 0").exit_code == 5


@pytest.mark.slow
def test_the_action_runs_its_script(lisse, folder, swept):
    path, row = swept
    environment = {**os.environ, "GATE_PYTHON": sys.executable, "GATE_AGAINST": row}
    environment["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ['PYTHONPATH']}"
    script = ["bash", str(ROOT / "tools" / "gate" / "gate.sh")]

    def gate(**inputs: str) -> subprocess.CompletedProcess[str]:
        variables = {f"GATE_{name.upper()}": value for name, value in inputs.items()}
        return subprocess.run(script, env=environment | variables, capture_output=True, text=True, check=False)

    assert gate(profile=str(path), fail_if="b.stretch > 1.1 * a.stretch\n\n").returncode == 0
    both = gate(profile=str(path), fail_if="b.stretch > 1.1 * a.stretch\nstretch > 0")
    assert both.returncode == 5, both.stderr
    fresh = gate(model=NETWORK, data="digits", instruments="sensitivity", options="--quick --limit 30",
                 fail_if="b.stretch > 0")  # fmt: skip
    assert fresh.returncode == 5, fresh.stderr
    assert "model must be given" in gate(fail_if="b.stretch > 0").stderr
    assert gate(profile=str(path), fail_if='$(touch "pwned")').returncode == 2
    assert not (folder / "pwned").exists()


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({"model": "stranger:network?path=pwned"}, "to import and call stranger:network"),
        ({"model": "stranger:network", "training": None}, "to import and call stranger:network"),
        ({"model": "hf:/somewhere"}, "to open hf:/somewhere"),
        ({"model": "recorded:/somewhere"}, "to open recorded:/somewhere"),
        ({"model": "/somewhere/a.safetensors"}, "to open /somewhere/a.safetensors"),
        ({"model": f"{NETWORK}&weights=/dev/zero"}, "to open /dev/zero"),
        ({"data": "stranger:data"}, "to load data from stranger:data"),
        ({"data": "npz:/somewhere.npz"}, "to load data from npz:/somewhere.npz"),
        ({"data": "folder:/"}, "to load data from folder:/"),
        ({"data": "sentences?tokenizer=/somewhere"}, "to load data from sentences?tokenizer=/somewhere"),
        ({"data": "mnist?download=true"}, "to load data from mnist?download=true"),
        ({"training": {"data": "stranger:data"}}, "to load data from stranger:data"),
        ({"instruments": {"stranger:Kind": {}}}, "to import stranger:Kind"),
    ],
)
def test_a_strangers_file_imports_opens_and_fetches_nothing(lisse, folder, monkeypatch, changes, asks):
    (folder / "stranger.py").write_text("open('pwned', 'w').close()\n")
    monkeypatch.setattr("lisse.sweeping.verification.measured", lambda unit: pytest.fail(f"{unit} was measured"))
    unit = {"model": NETWORK, "data": "digits", "instruments": {"sensitivity": {}}, **changes}
    Profile((), {"sweep": {"unit": unit}}).save(folder / "a.profile")
    rows = [AtlasRow("abc", "n", "f", "d", unit=unit)]
    save_atlas(rows, {}, folder / "a.json")
    for target in ("a.profile", "a.json#abc"):
        done = lisse("verify", target)
        assert done.exit_code == 1, done.output
        assert f"cannot: the file asks {asks}" in done.stderr
        assert "--trust" in done.stderr
    assert not (folder / "pwned").exists()


def test_code_that_a_file_names_is_imported_by_ones_word(lisse, folder):
    (folder / "mine_to_trust.py").write_text(
        f"import lisse\ndef network(): return lisse.load_model('{NETWORK}')\nopen('imported', 'w').close()\n"
    )
    line = ["measure", "sensitivity", "mine_to_trust:network", "--data", "digits", "--quick", "--samples", "20"]
    assert lisse(*line, "--out", "own.profile").exit_code == 0
    (folder / "imported").unlink()
    sys.modules.pop("mine_to_trust")
    assert "to import and call mine_to_trust:network" in lisse("verify", "own.profile", "--data", "digits").stderr
    assert not (folder / "imported").exists()
    for words in (["--trust"], ["--model", "mine_to_trust:network"]):
        done = lisse("verify", "own.profile", "--data", "digits", *words)
        assert done.stdout.startswith("the same: "), done.output


@pytest.mark.parametrize(
    "unit",
    [
        [],
        {"model": 3, "data": "digits", "instruments": {}},
        {"model": NETWORK, "data": None, "instruments": {}},
        {"model": NETWORK, "data": "digits", "instruments": {}, "threads": 10**7},
        {"model": NETWORK, "data": "digits", "instruments": {}, "threads": "many"},
        {"model": NETWORK, "data": "digits", "instruments": {}, "evil": 1},
        {"model": NETWORK, "data": "digits", "instruments": {}, "training": {"data": "digits", "recipe": "no"}},
        {"model": NETWORK, "data": "digits", "instruments": {}, "training": {"data": "digits", "changes": {"x": 1}}},
        {"model": NETWORK, "data": "digits", "instruments": {}, "training": 7},
    ],
)
def test_what_is_no_measurement_is_a_line(lisse, folder, unit):
    Profile((), {"sweep": {"unit": unit}}).save(folder / "a.profile")
    done = lisse("verify", "a.profile")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.output
    assert "asks for what is no measurement" in done.stderr
