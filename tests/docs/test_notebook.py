"""The notebook of the documentation runs, and shows what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "docs" / "first-notebook.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(PATH, 4)
    kept = [[output.get("data", {}).keys() for output in cell.get("outputs", ())] for cell in notebook.cells]
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()  # an error in a cell raises
    again = [[output.get("data", {}).keys() for output in cell.get("outputs", ())] for cell in notebook.cells]
    assert again == kept  # the same pictures, tables and pages where the committed one has them
    texts = [str(output) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in text for text in texts)
    assert any("iframe" in text for text in texts)
    assert any("<progress" in text for text in texts)
    assert not any("ipywidgets" in text for text in texts)
