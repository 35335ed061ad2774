"""Plans: which units they are, what tells two units apart, and what is said about a slip of the pen."""

from __future__ import annotations

import dataclasses
import importlib
import os
import pickle
import re
import sys
from pathlib import Path

import pytest
from small_sweeps import NETWORK, small

from lisse.identity import module_digest
from lisse.instruments import Sensitivity
from lisse.sweeping import Unit, plan_of
from lisse.sweeping.origins import digest_of_files
from lisse.sweeping.unit import RecipeRun


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
    assert {unit.family for unit in plan.units} == {str(tmp_path / "*.safetensors")}
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
    monkeypatch.setattr("lisse.sweeping.origins.MOST_DIGESTED", 3)
    file = tmp_path / "a"
    file.write_text("four")
    os.utime(file, ns=(1, 1))
    first = digest_of_files(tmp_path)
    monkeypatch.setattr("lisse.sweeping.origins._folder_digest", lambda states: pytest.fail("it was read"))
    assert digest_of_files(tmp_path) == first
    os.utime(file, ns=(1, 2))
    assert digest_of_files(tmp_path) != first


def test_folders_called_as_what_is_no_file_are_in_no_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    units = [Unit(NETWORK, spec, {}, training=RecipeRun(spec)) for spec in ("digits", "digits?tokenizer=words")]
    before = [(unit.key, unit.training_key) for unit in units]
    for name in ("digits", "fc2", "words"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("1")
    assert [(Unit.of(dataclasses.asdict(unit)).key, unit.training_key) for unit in units] == before


@pytest.mark.parametrize(
    ("spec", "file", "other"),
    [
        ("mnist", "mnist/t10k-images-idx3-ubyte", "mnist/train-images-idx3-ubyte"),
        ("cifar10", "cifar10/test_batch.bin", "cifar10/data_batch_1.bin"),
        ("cifar10-c?corruption=fog", "CIFAR-10-C/fog.npy", "CIFAR-10-C/snow.npy"),
        ("imagenet", "imagenet/val/a/1.png", "imagenet/train/a/1.png"),
    ],
)
def test_other_bytes_of_the_split_of_a_named_data_set_are_another_unit(spec, file, other, tmp_path, monkeypatch):
    monkeypatch.setenv("LISSE_DATA", str(tmp_path))
    for name in (file, other, "mnist/t10k-labels-idx1-ubyte", "CIFAR-10-C/labels.npy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    first = Unit(NETWORK, spec, {}).key
    (tmp_path / other).write_text("3 now")
    assert Unit(NETWORK, spec, {}).key == first
    (tmp_path / file).write_text("3 now")
    assert Unit(NETWORK, spec, {}).key != first


def test_other_lines_in_a_factory_or_in_what_it_imports_are_another_unit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "package").mkdir()
    sources = {
        "own_factory.py": "import own_helper\nfrom package import inner\nimport json, numpy\n\n\ndef net(): ...\n",
        "own_helper.py": "A = 1\n",
        "package/__init__.py": "",
        "package/inner.py": "from . import deep\n",
        "package/deep.py": "def f():\n    import own_late\n",
        "own_late.py": "",
        "own_apart.py": "",
    }

    def keys(changed: str = "") -> tuple[str, ...]:
        for name, text in sources.items():
            (tmp_path / name).write_text(text + "# other\n" * (name == changed))
        module_digest.cache_clear()
        importlib.invalidate_caches()
        of_data = Unit(NETWORK, "own_factory:data", {}, training=RecipeRun("own_factory:data"))
        return Unit("own_factory:net", "digits", {}).key, of_data.key, of_data.training_key

    first = keys()
    assert keys("own_apart.py") == first
    for name in sources.keys() - {"own_apart.py"}:
        assert not set(keys(name)) & set(first)
    assert "own_factory" not in sys.modules  # it was read and not run


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
        ({"seeds": "0-9"}, "seeds must be whole numbers from 0, got '0-9'"),
        ({"seeds": []}, "seeds must be whole numbers"),
        ({"seeds": [-1]}, "seeds must be whole numbers from 0, got [-1]"),
        ({"device": "cdua"}, "device must be one that torch knows, got 'cdua'"),
        ({"seeds": "0..99999999999"}, "seeds must be at most 1,000,000, got 100,000,000,000"),
        ({"limit": 0}, "limit must be a whole number of at least 1, got 0"),
        ({"models": ["zoo:fc3"]}, "got 'fc3'. Did you mean fc"),
        ({"models": ["zoo:fc2?widht=4"]}, "got 'widht'. Did you mean width?"),
        ({"models": ["zoo:fc2?width=0"]}, "width must lie in 1..65536, got 0"),
        ({"models": ["zoo:fc2?mean=cifra10"]}, "got 'cifra10'"),
        ({"trainings": [{"models": "zoo:fc2?widht=4"}]}, "got 'widht'. Did you mean width?"),
        ({"models": ["small_sweeps:seeded_netwrk"]}, "Did you mean seeded_network"),
        ({"models": ["small_sweps:seeded_network"]}, "small_sweps must be importable"),
        ({"split": "tset"}, "split must be one of train, test, all, got 'tset'"),
        ({"data": ["digist"]}, "Did you mean 'digits'"),
        ({"data": ["shapes?m=3"]}, "got 'm'"),
        ({"trainings": [{"models": NETWORK, "split": "trian"}]}, "split must be one of train, test, all, got 'trian'"),
        ({"trainings": [{"models": NETWORK, "data": ["digist"]}]}, "Did you mean 'digits'"),
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


def test_what_is_not_there_and_what_a_factory_does_not_take_is_named_before_any_work():
    with pytest.raises(FileNotFoundError, match=r"load_model: none\.pt must be there"):
        plan_of(small(models=[NETWORK + "&weights=none.pt"]))
    with pytest.raises(FileNotFoundError, match=r"load_model: none\.safetensors must be there"):
        plan_of(small(models=["none.safetensors"]))
    with pytest.raises(TypeError, match=r"seeded_network must accept the options \{'widht': 3\}"):
        plan_of(small(models=["small_sweeps:seeded_network?widht=3"]))


def test_a_file_that_is_no_plan_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="plan must be a file that is there"):
        plan_of(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("models = [")
    with pytest.raises(ValueError, match=r"plan must be TOML, got .*bad\.toml"):
        plan_of(tmp_path / "bad.toml")
    (tmp_path / "deep.toml").write_text("models = " + "[" * 5000)
    with pytest.raises(ValueError, match=r"plan must be TOML, got .*deep\.toml \(maximum recursion"):
        plan_of(tmp_path / "deep.toml")
    with pytest.raises(TypeError, match="plan must be a TOML file or a mapping, got int"):
        plan_of(3)
