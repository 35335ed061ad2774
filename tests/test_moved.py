"""Old paths of modules work for one release, with a warning; what is gone stays gone."""

import importlib
import sys

import pytest

from lisse.moved import MOVED, MOVED_NAMES

pytestmark = pytest.mark.filterwarnings("default:.*has moved:DeprecationWarning")  # elsewhere an error


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_path_leads_to_the_new_one(old, new):
    home = importlib.import_module(new)
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved: import it from {new}"):
        module = importlib.import_module(old)
    public = [name for name in vars(home) if not name.startswith("_")]
    assert public
    assert all(getattr(module, name) is getattr(home, name) for name in public)
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018
    del sys.modules[old]  # the next one who imports it is warned as well


def test_what_is_in_a_folder_moves_with_it():
    with pytest.warns(DeprecationWarning, match=r"lisse\.experiments\.form has moved"):
        module = importlib.import_module("lisse.experiments.form")
    assert module.Finding is importlib.import_module("lisse_experiments.form").Finding


def test_a_path_that_never_was_is_an_error():
    with pytest.raises(ImportError, match=r"lisse\.nothing"):
        importlib.import_module("lisse.nothing")


def test_a_name_that_left_its_package_is_found_there_with_a_warning():
    for package, homes in MOVED_NAMES.items():
        old = importlib.import_module(package)
        for home, names in homes.items():
            for name in names.split():
                with pytest.warns(DeprecationWarning, match=f"{package}.{name} has moved: import it from {home}"):
                    value = getattr(old, name)
                assert value is getattr(importlib.import_module(home), name)


def test_without_the_experiments_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lisse_experiments", None)
    for name in [name for name in sys.modules if name.startswith("lisse_experiments.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r'is now in lisse_experiments\.topolip\.alpha\. pip install "lisse\[exp'):
        from lisse.maths.homology import cech_persistence  # noqa: F401
