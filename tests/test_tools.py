"""The scripts in tools/: what the docs are made with, and the pins of `make test-minimum`."""

import importlib.util
import itertools
import re
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks, minimum, house, lock = tool("docs_hooks"), tool("minimum"), tool("house"), tool("lock")


def page(path: str) -> SimpleNamespace:
    return SimpleNamespace(file=SimpleNamespace(src_uri=path))


def test_a_formula_becomes_mathml():
    inline = hooks.on_page_content(
        '<p>a <span class="arithmatex">\\(x &lt; \\frac{1}{2}\\)</span> b</p>', page=page("a.md")
    )
    assert inline.startswith('<p>a <math xmlns="http://www.w3.org/1998/Math/MathML" display="inline">')
    assert "<mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac>" in inline
    assert "&#x0003C;" in inline  # the escaped < is still one, and escaped
    block = hooks.on_page_content('<div class="arithmatex">\\[\nx\n\\]</div>', page=page("a.md"))
    assert 'display="block"><mrow><mi>x</mi></mrow></math>' in block


@pytest.mark.parametrize("formula", ["\\unheardof x", "\\left( x"])
def test_a_formula_that_cannot_be_converted_stops_the_build(formula):
    with pytest.raises(hooks.PluginError, match=r"a\.md: a formula could not be converted"):
        hooks.on_page_content(f'<span class="arithmatex">\\({formula}\\)</span>', page=page("a.md"))


def test_a_citation_becomes_a_link():
    text = hooks.on_page_markdown("See [petrini2021] eq. 4, not [a link](b.md).", page=page("deep/a.md"))
    assert text.endswith("\n\n[petrini2021]: ../references.md#petrini2021\n")
    assert "[petrini2021]: references.md#petrini2021" in hooks.on_page_markdown("[petrini2021]", page=page("a.md"))


def test_an_unknown_citation_stops_the_build():
    with pytest.raises(hooks.PluginError, match=r"a\.md: \[nobody1999\] must be a key"):
        hooks.on_page_markdown("[nobody1999]", page=page("a.md"))


def test_the_references_are_listed():
    text = hooks.on_page_markdown(hooks.PLACE, page=page("references.md"))
    assert len(text.splitlines()) == len(hooks.bibliography(hooks.BIBLIOGRAPHY.read_text("utf-8"))) >= 5
    line = next(line for line in text.splitlines() if "beshkov2022" in line)
    assert line.startswith(
        "- **beshkov2022**{ #beshkov2022 } Kosio Beshkov, Jonas Verhellen and Mikkel Elle Lepperød. *Iso"
    )
    assert "robustness*. 2022. [arXiv:2211.01236](https://arxiv.org/abs/2211.01236)." in line.replace(
        "Robust", "robust"
    )


@pytest.mark.parametrize(
    "tag",
    ['<script src="https://a.b/c.js">', "<link rel=stylesheet href=//a.b/c.css>", '<img alt="" src="http://a.b/c">'],
)
def test_a_page_that_loads_something_from_outside_stops_the_build(tag):
    with pytest.raises(hooks.PluginError, match=r"a\.md: must not load anything from outside"):
        hooks.on_post_page(f"<html>{tag}</html>", page=page("a.md"))


def test_links_to_elsewhere_are_left_alone():
    text = '<a href="https://a.b">c</a><script src="assets/d.js"></script><link href="assets/e.css">'
    assert hooks.on_post_page(text, page=page("a.md")) == text


def test_every_extra_that_all_installs_is_pinned():
    pins = minimum.pins((ROOT / "pyproject.toml").read_text("utf-8"), (ROOT / "constraints.txt").read_text("utf-8"))
    names = {pin.partition("==")[0] for pin in pins}
    assert {"transformers", "numba", "umap-learn", "tensorboard", "pyautoattack", "pytest"} <= names
    assert not {"timm", "torchvision", "giotto-ph"} & names


def test_pins_are_lower_bounds_but_for_torch():
    pyproject = """
[project]
dependencies = ["torch>=2.11", "numpy>=2.0"]
[project.optional-dependencies]
hf = ["a>=1.2.3"]
datasets = []
report = ["b-c>=4"]
fast = ["e>=6"]
all = ["lisse[hf,datasets,report,fast]"]
dev = ["d>=5"]
timm = ["left-out>=1"]
"""
    assert minimum.pins(pyproject, "numpy==2.4\ntorch==2.13.0\n") == [
        "torch==2.13.0",
        "numpy==2.0",
        "a==1.2.3",
        "b-c==4",
        "e==6",
        "d==5",
    ]
    with pytest.raises(ValueError, match="must read name>=version, got 'numpy'"):
        minimum.pins(pyproject.replace("numpy>=2.0", "numpy"), "torch==2.13.0")


def test_every_requirement_has_its_licence_in_the_list() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {match[1] for match in map(re.compile(r"([\w.-]+)>=").match, requirements) if match}
    listed = dict(re.findall(r"^\| (\S+) \| \S+ \| (.+) \|$", (ROOT / "LICENSES.md").read_text(), re.MULTILINE))
    assert names == listed.keys() - {"---", "library"}
    assert all(listed.values())


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory_is_measured_against_what_is_announced() -> None:
    memory = tool("memory")
    numbers = memory.measured(0)
    assert numbers["announced"] > 10
    assert numbers["rise"] <= 1.1 * (numbers["budget"] + numbers["announced"] + numbers["batch"])


# --- how the house stands ---------------------------------------------------------------------------------------------


def test_importers_are_counted_however_they_are_written():
    tree = {
        "a/__init__.py": "from .b import f\nfrom a import c",
        "a/b.py": "import a.d",
        "a/c.py": "from .d import g",
        "a/d.py": "",
        "a/e.py": "import_module('a.c')",
    }
    assert house.importers(tree) == {"a.b": {"a"}, "a.c": {"a", "a.e"}, "a.d": {"a.b", "a.c"}, "a.e": set()}


def test_pronouns_are_counted_among_all_names_that_are_given():
    assert house.pronoun_share({"a.py": "found = 1\ndef rows(_kept, other): ..."}) == 0.5
    assert house.pronoun_share({"a.py": "print(found)"}) == 0.0


def test_a_shared_block_is_six_lines_of_code():
    block = "".join(f"value_{index} = {index}\n" for index in range(6))
    assert house.shared_blocks({"a.py": block, "b.py": "import a\n" + block.replace("\n", "\n# why\n\n")}) == [
        ("a.py", "b.py")
    ]
    assert house.shared_blocks({"a.py": block, "b.py": block.replace("3", "x")}) == []
    assert house.shared_blocks({"a.py": block + block}) == [("a.py", "a.py")]


def test_the_table_has_a_column_for_each_tree(tmp_path, capsys):
    (tmp_path / "src" / "lisse").mkdir(parents=True)
    branches = "".join(f"    if x == {index}:\n        return\n" for index in range(10))
    (tmp_path / "src" / "lisse" / "a.py").write_text(f"def f(x):\n{branches}")
    house.main([str(tmp_path), str(tmp_path)])
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "| files of src, without experiments | 1 | 1 |"
    assert table[1] == "| lines of src, without experiments | 21 | 21 |"
    assert table[4] == "| functions with C901 > 10 | 1 | 1 |"


def test_the_lock_has_hashes_for_all_that_is_pinned_but_torch():
    blocks = [block.split(" \\\n") for block in re.split(r"\n(?=\S)", (ROOT / "lock.txt").read_text().strip())]
    requirements = [block for block in blocks if not block[0].startswith("#")]
    assert all(re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}", line) for _, *lines in requirements for line in lines)
    assert all(lines for _, *lines in requirements)
    pins = lock.pins((ROOT / "constraints.txt").read_text())
    assert [head for head, *_ in requirements] == [f"{name}=={version}" for name, version in pins]
    assert not {name for name, _ in pins} & {"torch", "torchvision"}
    assert "LOCK=lock.txt" in (ROOT / ".ci" / "run").read_text()


def test_hashes_are_those_of_the_release_that_fit_and_of_its_source_where_it_has_no_wheel():
    files = {
        "some_thing-1.2-cp311-cp311-manylinux_2_28_x86_64.whl": "a",
        "some_thing-1.2-cp310-cp310-manylinux_2_28_x86_64.whl": "b",
        "some_thing-1.2-cp313-cp313t-win_amd64.whl": "c",
        "some_thing-1.20-py3-none-any.whl": "d",
        "some-thing-1.2.tar.gz": "e",
        "some-thing-1.3.tar.gz": "f",
    }
    page = "".join(f'<a href="../files/{name}#sha256={digit * 64}">{name}</a>' for name, digit in files.items())
    assert lock.hashes(page, "some.thing", "1.2") == ["a" * 64]
    assert lock.hashes(page, "some.thing", "1.3") == ["f" * 64]
    assert lock.hashes(page, "some.thing", "1.20") == ["d" * 64]
    with pytest.raises(ValueError, match=r"lock: some\.thing 9 must have a file that fits"):
        lock.hashes(page, "some.thing", "9")
