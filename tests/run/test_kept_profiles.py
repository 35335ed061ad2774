"""Whole profiles in the cache: the newest first, the same one once, a damaged one named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lisse.data import places
from lisse.profile import Part, Profile, Quantity, Row
from lisse.run.cache import Cache, default_cache


def made(name: str, value: float = 1.0, **options) -> Profile:
    part = Part("thing", (Row("q", value, "exact", 3),), (Quantity("q", "q", "Says."),), options=options)
    return Profile((part,), {"model": {"name": name}, "data": {"name": "d"}, "seed": 0})


def test_profiles_are_found_again_the_newest_first(tmp_path):
    cache = Cache(tmp_path)
    assert list(cache.profiles()) == []
    paths = [cache.keep_profile(made(name)) for name in ("a", "b")]
    os.utime(paths[0], (1, 1))
    assert [(path, profile.name) for path, profile in cache.profiles()] == [(paths[1], "b"), (paths[0], "a")]


def test_the_same_origin_takes_the_place_of_the_last_and_another_option_does_not(tmp_path):
    cache = Cache(tmp_path)
    first = cache.keep_profile(made("a", samples=5))
    assert cache.keep_profile(made("a", 2.0, samples=5)) == first
    assert cache.keep_profile(made("a", samples=6)) != first
    assert len(list(cache.profiles())) == 2


def test_a_damaged_profile_is_there_and_is_none(tmp_path):
    cache = Cache(tmp_path)
    path = cache.keep_profile(made("a"))
    path.write_bytes(b"no profile")
    assert list(cache.profiles()) == [(path, None)]


@pytest.mark.parametrize("folder", ["~/somewhere", "somewhere"])
def test_there_is_one_cache_folder(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LISSE_CACHE", folder)
    expected = tmp_path / "somewhere" if "~" in folder else Path("somewhere")
    assert places.cache_folder() == default_cache() == Cache(folder).folder == expected
    assert places.SearchFolder("cache", expected / "data") in places.search_folders()


def test_without_a_choice_the_cache_is_the_platforms(monkeypatch, tmp_path):
    monkeypatch.delenv("LISSE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert places.cache_folder() == tmp_path / "x" / "lisse"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert places.cache_folder() == tmp_path / ".cache" / "lisse"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert places.cache_folder() == tmp_path / "Library" / "Caches" / "lisse"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert places.cache_folder() == tmp_path / "local" / "lisse"
