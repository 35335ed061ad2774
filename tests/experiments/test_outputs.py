"""Tables and figures of experiments as files."""

import csv

import pytest
from PIL import Image

from lisse_experiments.outputs import csv_file, png_files


def test_lines_come_back_from_the_file(tmp_path):
    lines = [["name", "value"], ["a, b", 1.5], ['"c"', ""], ["d\ne", 2]]
    path = csv_file(tmp_path / "a.csv", iter(lines))
    assert path == tmp_path / "a.csv"
    assert path.read_bytes().startswith(b'name,value\n"a, b",1.5\n')
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [[str(cell) for cell in line] for line in lines]


def test_figures_are_drawn_one_at_a_time_at_their_size(tmp_path):
    figure = pytest.importorskip("matplotlib.figure")
    folder, drawn = tmp_path / "new" / "folder", []

    def figures():
        for name in ("one", "two"):
            drawn.append(sorted(path.name for path in folder.iterdir()))
            yield name, figure.Figure(figsize=(2, 1))

    assert png_files(figures(), folder, dpi=80) == [folder / "one.png", folder / "two.png"]
    assert drawn == [[], ["one.png"]]
    assert Image.open(folder / "two.png").size == (160, 80)
    png_files([("one", figure.Figure(figsize=(2, 1)))], folder)
    assert Image.open(folder / "one.png").size == (300, 150)


def test_a_figure_that_fails_leaves_no_file(tmp_path):
    class Broken:
        def savefig(self, file, **options):
            file.write(b"half")
            raise RuntimeError("no font")

    with pytest.raises(RuntimeError, match="no font"):
        png_files([("broken", Broken())], tmp_path)
    assert list(tmp_path.iterdir()) == []
