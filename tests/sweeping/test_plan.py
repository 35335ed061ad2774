"""Plans: which units they are, what tells two units apart, and what is said about a slip of the pen."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
from pathlib import Path

import pytest
from small_sweeps import NETWORK, small

from lisse.instruments import Sensitivity
from lisse.run.fingerprint import digest_of
from lisse.sweeping import Unit, plan_of
from lisse.sweeping.unit import RecipeRun, digest_of_files


def test_units_are_the_product_in_order():
    plan = plan_of(small(seeds="0..2", data=["digits", "shapes"]))
    rows = [(unit.model[-1], unit.data, unit.seed) for unit in plan.units]
    assert rows == [(width, data, seed) for width in "45" for data in ("digits", "shapes") for seed in range(3)]
    assert {unit.family for unit in plan.units} == {"fc2"}


def test_every_model_is_trained_by_every_recipe_from_every_seed():
    training = {
        "models": NETWORK,
        "recipes": ["default", {"recipe": "sgd", "epochs": 1}],
        "seeds": [3, 4],
        "family": "f",
    }
    plan = plan_of(small(models=[], trainings=[training]))
    rows = [(unit.training.recipe, unit.training.full_recipe.epochs, unit.training.seed) for unit in plan.units]
    assert rows == [("default", 10, 3), ("default", 10, 4), ("sgd", 1, 3), ("sgd", 1, 4)]
    assert [unit.start[-6:] for unit in plan.units[:2]] == ["seed=3", "seed=4"]
    assert {unit.family for unit in plan.units} == {"f"}
    assert {unit.training.data for unit in plan.units} == {"digits"}


@pytest.mark.parametrize(
    ("spec", "start"),
    [
        ("zoo:fc2?width=4", "zoo:fc2?width=4&seed=3"),
        ("zoo:fc2?seed=1", "zoo:fc2?seed=1"),
        ("zoo:fc2?weights=a.pt", "zoo:fc2?weights=a.pt"),
        ("timm:resnet18?pretrained=false", "timm:resnet18?pretrained=false&seed=3"),
        ("torchvision:resnet18?pretrained=false&classes=5", "torchvision:resnet18?pretrained=false&classes=5&seed=3"),
        ("torchvision:resnet18", "torchvision:resnet18"),
        ("timm:resnet18?pretrained=false&weights=a.pt", "timm:resnet18?pretrained=false&weights=a.pt"),
        ("hf:folder", "hf:folder"),
        ("small_sweeps:seeded_network?width=4", "small_sweeps:seeded_network?width=4&seed=3"),
        ("small_sweeps:nothing", "small_sweeps:nothing"),
    ],
)
def test_random_weights_are_drawn_with_the_units_seed(spec, start):
    assert Unit(spec, "digits", {}, seed=3).start == start
    assert Unit(spec, "digits", {}).start == spec


def test_a_unit_that_is_named_twice_is_one():
    assert len(plan_of(small(models=[NETWORK, NETWORK])).units) == 1


def test_a_plan_from_a_file_and_from_a_mapping_are_one(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(
        f"models = ['{NETWORK}', '{NETWORK[:-1]}5']\ndata = 'digits'\ninstruments = ['sensitivity']\nlimit = 30\n"
        "[options.sensitivity]\nsamples = 20\n"
    )
    assert plan_of(path) == plan_of(small())


def test_options_are_those_of_the_size_with_what_is_said_instead():
    (first, *_) = plan_of(small(size="usual")).units
    assert first.measuring() == [Sensitivity.sized("usual", samples=20)]
    assert plan_of(small(instruments=[Sensitivity(samples=20)], options={})).units[0].measuring() == [
        Sensitivity(samples=20)
    ]


@pytest.mark.parametrize(
    "changes",
    [{"seeds": [1]}, {"limit": 31}, {"batch": 7}, {"split": "train"}, {"options": {"sensitivity": {"samples": 19}}},
     {"data": ["shapes"]}, {"threads": 2}, {"models": [NETWORK[:-1] + "6"]}],
)  # fmt: skip
def test_what_changes_a_number_changes_the_key(changes):
    first = plan_of(small()).units[0]
    assert plan_of(small(**changes)).units[0].key != first.key


def test_what_changes_no_number_leaves_the_key(tmp_path):
    first = plan_of(small()).units[0]
    assert plan_of(small(family="other", memory="2GiB")).units[0].key == first.key
    assert Unit.of(dataclasses.asdict(first)).key == pickle.loads(pickle.dumps(first)).key == first.key


def test_other_bytes_in_a_file_are_another_unit(tmp_path):
    for name, text in (("a", "1"), ("b", "2")):
        (tmp_path / f"{name}.safetensors").write_text(text)
    plan = plan_of(small(models=[str(tmp_path / "*.safetensors")]))
    assert [Path(unit.model).name for unit in plan.units] == ["a.safetensors", "b.safetensors"]
    (tmp_path / "a.safetensors").write_text("3 now")
    again = plan_of(small(models=[str(tmp_path / "*.safetensors")]))
    assert [one.key == other.key for one, other in zip(plan.units, again.units, strict=True)] == [False, True]


@pytest.mark.parametrize(
    "spec", ["npz:d.npz", "d.npz", "d.npz?x=inputs", "folder:f", "f", "text:f/a.txt", "sentences?tokenizer=f"]
)
def test_other_bytes_in_the_data_are_another_unit_and_another_training(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f" / "inner").mkdir(parents=True)

    def keys(*texts: str) -> tuple[str, str]:
        for name, text in zip(("d.npz", "f/a.txt", "f/inner/b.png"), texts, strict=True):
            (tmp_path / name).write_text(text)
        unit = Unit(NETWORK, spec, {}, training=RecipeRun(spec))
        return unit.key, unit.training_key

    first, second = keys("1", "1", "1"), keys("3 now", "3 now", "3 now")
    assert not set(first) & set(second)
    assert keys("1", "1", "1") == first  # the bytes alone, and not when they were written


def test_a_folder_too_large_to_be_read_is_known_by_names_sizes_and_times(tmp_path, monkeypatch):
    monkeypatch.setattr("lisse.sweeping.unit.MOST_DIGESTED", 3)
    file = tmp_path / "a"
    file.write_text("four")
    os.utime(file, ns=(1, 1))
    first = digest_of_files(tmp_path)
    monkeypatch.setattr("lisse.sweeping.unit._folder_digest", lambda states: pytest.fail("it was read"))
    assert digest_of_files(tmp_path) == first
    os.utime(file, ns=(1, 2))
    assert digest_of_files(tmp_path) != first


def test_keys_of_units_that_name_no_file_are_those_of_earlier_versions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "fc2", "words"):  # called as what is no file
        (tmp_path / name).mkdir()
    for spec in ("digits", "digits?tokenizer=words"):
        unit = Unit(NETWORK, spec, {}, training=RecipeRun(spec))
        document = {key: value for key, value in dataclasses.asdict(unit).items() if key not in ("memory", "family")}
        recipe = dataclasses.asdict(unit.training.full_recipe)
        assert unit.key == digest_of(document | {"instruments": []}, recipe, [None] * 4)
        assert unit.training_key == digest_of(NETWORK, dataclasses.asdict(unit.training), recipe, [None] * 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modles": []}, "got 'modles'. Did you mean models?"),
        ({"trainings": [{"models": NETWORK, "recipies": []}]}, "got 'recipies'. Did you mean recipes?"),
        ({"trainings": [{"models": NETWORK, "recipes": ["sdg"]}]}, "got 'sdg'. The nearest: sgd"),
        ({"trainings": [{"models": NETWORK, "recipes": [{"recipe": "sgd", "epoch": 1}]}]}, "Did you mean epochs?"),
        ({"trainings": [{"models": []}]}, "trainings must have models"),
        ({"instruments": ["sensitivty"]}, "The nearest: sensitivity"),
        ({"instruments": []}, "plan must have instruments, got none"),
        ({"options": {"sensitivity": {"sample": 1}}}, "got 'sample'. Did you mean samples?"),
        ({"options": {"topology": {}}}, "options must have known fields, got 'topology'"),
        ({"size": "huge"}, "size must be one of quick, usual, full, got 'huge'"),
        ({"seeds": "0-9"}, "seeds must be whole numbers, got '0-9'"),
        ({"seeds": []}, "seeds must be whole numbers"),
        ({"seeds": "0..99999999999"}, "seeds must be at most 1,000,000, got 100,000,000,000"),
        ({"limit": 0}, "limit must be a whole number of at least 1, got 0"),
        ({"models": ["zoo:fc3"]}, "got no zoo:fc3. Did you mean zoo:fc"),
        ({"models": ["runs/*.safetensors"]}, "models must match a file"),
        ({"models": [3]}, "models must be texts, got 3"),
        ({"models": []}, "plan must have models or trainings"),
        ({"data": []}, "plan must have data, got none"),
        ({"memory": "much"}, "memory"),
        ({"models": 5}, "models must be specs, globs or tables of model and family, got 5. Write models = ['zoo:…']."),
        ({"instruments": 5}, "instruments must be names, got 5. Write instruments = ['sensitivity']."),
        ({"instruments": [5]}, "instruments must be texts, got 5"),
        ({"options": {"sensitivity": 5}}, "options.sensitivity must be a table, got 5. Write [options.sensitivity]."),
        ({"trainings": 5}, "trainings must be tables, got 5. Write [[trainings]]."),
        (
            {"trainings": {"models": NETWORK, "recipes": 5}},
            "recipes must be names or tables of recipe and its changes, got 5. Write recipes = ['sgd'].",
        ),
        ({"trainings": {"models": 5}}, "models must be specs"),
        ({"trainings": {"models": NETWORK, "recipes": [5]}}, "recipe must exist, got 5"),
    ],
)
def test_a_slip_is_named_with_what_is_nearest(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        plan_of(small(**changes))


def test_a_file_that_is_no_plan_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="plan must be a file that is there"):
        plan_of(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("models = [")
    with pytest.raises(ValueError, match=r"plan must be TOML, got .*bad\.toml"):
        plan_of(tmp_path / "bad.toml")
    with pytest.raises(TypeError, match="plan must be a TOML file or a mapping, got int"):
        plan_of(3)
