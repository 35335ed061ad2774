"""The tests of data see only the folders they make, and no network."""

from __future__ import annotations

import tracemalloc

import pytest


@pytest.fixture(autouse=True)
def own_places(request, tmp_path, monkeypatch):
    monkeypatch.setenv("LISSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LISSE_DOWNLOAD", raising=False)
    if "large" not in request.keywords:
        monkeypatch.delenv("LISSE_DATA", raising=False)


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    """A folder that LISSE_DATA points to."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("LISSE_DATA", str(folder))
    return folder


@pytest.fixture
def peak():
    """The most bytes that Python held at once since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
