"""The house stays a house: levels, names, hooks, unpickling, and what no file may mention.

Each check is a function of a tree (path under src/lisse to source), so that it can be shown a planted mistake. The
experiments, a distribution of their own, stand in it as experiments/PAPER/….
"""

import ast
import fnmatch
import functools
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
LEVELS = {
    -1: ["moved"],  # where old names lead: anything may ask it
    0: ["maths", "taps", "profile", "profile_file", "progress", "libraries", "identity"],
    1: ["networks", "data"],
    2: ["recording", "models", "training"],
    3: ["run"],
    4: ["instruments"],
    5: ["reporting", "surveying", "sweeping"],
    5.5: ["experiments"],  # beside the house: a distribution of its own, which cli/reproduce.py alone imports
    6: ["cli"],
    7: ["__main__"],
}
LEVEL = {name: level for level, names in LEVELS.items() for name in names}
TWINS = {"profile", "profile_file"}  # one thing in two files
# What a person expects on a Profile itself and only the floors above can do: opened when it is used.
DOORS = {
    ("profile.py", "lisse.reporting"): "plot",
    ("profile.py", "lisse.reporting.inline"): "_repr_html_",
    ("profile.py", "lisse.reporting.loggers"): "log",
}
PUBLIC = {"load_model", "load_data", "record", "measure", "train", "report", "survey", "verdict", "sweep", "drift"}

Tree = dict[str, str]


@pytest.fixture(scope="module")
def tree() -> Tree:
    folders = {"": ROOT / "src" / "lisse", "experiments/": ROOT / "experiments" / "lisse_experiments"}
    return {
        prefix + path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for prefix, folder in folders.items()
        for path in folder.rglob("*.py")
    }


@functools.cache  # every check walks the whole package
def parsed(path: str, source: str) -> ast.Module:
    return ast.parse(source, path)


def nodes(tree: Tree) -> Iterator[tuple[str, ast.AST]]:
    for path, source in sorted(tree.items()):
        for node in ast.walk(parsed(path, source)):
            yield path, node


def part(path: str) -> str:
    """The module or package of lisse that a file belongs to; empty for lisse/__init__.py."""
    first = PurePosixPath(path).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def dotted(node: ast.AST) -> str:
    """``a.b.c`` for a chain of attributes, and the last names of one that starts elsewhere."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


# --- the rule of levels ---------------------------------------------------------------------------------------------


def imported(path: str, node: ast.AST) -> Iterator[str]:
    """Dotted names that a statement imports, wherever it stands; ``lisse.x`` counts too, ``lisse`` alone does not."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name != "lisse" or alias.asname)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lisse":
        yield f"lisse.{node.attr}"
    elif isinstance(node, ast.ImportFrom):
        here = ["lisse", *PurePosixPath(path).parts[:-1]]
        base = [*here[: len(here) - node.level + 1], node.module or ""] if node.level else [node.module or ""]
        yield from (".".join([*filter(None, base), alias.name]) for alias in node.names)
    elif isinstance(node, ast.Call) and dotted(node.func).endswith(("import_module", "__import__")):
        yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


def wrong_imports(tree: Tree) -> list[str]:
    found = [f"{path}: {part(path)} has no level" for path in sorted(tree) if part(path) and part(path) not in LEVEL]
    for path, node in nodes(tree):
        own = part(path)
        for name in imported(path, node) if own in LEVEL else ():
            first, _, rest = re.sub(r"^lisse_experiments\b", "lisse.experiments", name).partition(".")
            other = rest.partition(".")[0]
            if first != "lisse" or other in (own, "__version__", "__file__") or {own, other} == TWINS:
                continue
            if isinstance(node, ast.Call) and (path, name) in DOORS:
                continue
            # lisse's own names reach everything, so only what stands above everything may use them.
            needed = LEVEL.get(other, LEVEL["experiments"])
            if LEVEL[own] <= needed:
                found.append(f"{path}:{node.lineno}: {own} (level {LEVEL[own]}) imports {name} (level {needed})")
    return found


def test_a_file_imports_only_from_its_own_package_or_from_a_lower_level(tree):
    assert wrong_imports(tree) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("maths/a.py", "import lisse.taps"),
        ("profile.py", "from lisse.reporting import named_figure"),
        ("taps/a.py", "importlib.import_module('lisse.reporting')"),
        ("maths/a.py", "from lisse.networks import attention"),
        ("maths/deep/a.py", "from ...run import Run"),
        ("maths/a.py", "from .. import run"),
        ("run.py", "from . import instruments"),
        ("run.py", "from lisse import instruments"),
        ("run.py", "def f():\n    from lisse.instruments import ALL"),
        ("recording.py", "if TYPE_CHECKING:\n    from lisse.run import Run"),
        ("instruments/a.py", "importlib.import_module('lisse.reporting.figure')"),
        ("instruments/a.py", "import lisse\nlisse.report"),
        ("instruments/a.py", "import lisse as everything"),
        ("reporting/a.py", "from lisse import measure"),
        ("surveying/a.py", "from lisse.reporting import joined"),
        ("taps/a.py", "from lisse.profile import Row"),
        ("data/a.py", "import numpy, lisse.models.zoo"),
        ("cli/a.py", "from lisse.__main__ import main"),
        ("reporting/a.py", "from lisse_experiments import form"),
        ("experiments/paper/run.py", "from lisse.cli import main"),
        ("widgets.py", "x = 1"),
    ],
)
def test_a_wrong_import_is_found(path, source):
    assert len(wrong_imports({path: source})) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("maths/a.py", "from lisse.maths import b\nfrom . import c\nfrom .d import e\nimport torch, lissedata"),
        ("maths/deep/a.py", "from ..b import c"),
        ("run.py", "import lisse\nlisse.__version__, lisse.__file__"),
        ("run.py", "from lisse import __version__, taps\nfrom lisse.recording import Recording"),
        ("profile.py", "def save():\n    from lisse import profile_file"),
        ("profile.py", "def plot():\n    importlib.import_module('lisse.reporting')"),
        ("profile_file.py", "from lisse.profile import Profile"),
        ("cli/a.py", "import lisse\nlisse.measure\nfrom lisse import measure\nfrom lisse.reporting import report"),
        ("cli/reproduce.py", "from lisse_experiments import form"),
        ("experiments/paper/run.py", "from lisse_experiments.form import Task\nfrom lisse.reporting import figures"),
        ("__main__.py", "from lisse.cli import main"),
        ("__init__.py", "def __getattr__(name):\n    from lisse.run import measure"),
    ],
)
def test_a_right_import_is_left_alone(path, source):
    assert wrong_imports({path: source}) == []


# --- names ----------------------------------------------------------------------------------------------------------


def wrong_names(tree: Tree) -> list[str]:
    found = []
    for path in sorted(tree):
        names = {name.removesuffix(".py") for name in PurePosixPath(path).parts}
        if names & {"util", "utils", "helper", "helpers", "common", "misc"}:
            found.append(f"{path}: names no idea")
        if part(path) in PUBLIC:
            found.append(f"{path}: hides the function lisse.{part(path)}")
    return found


def test_no_module_is_a_drawer_or_hides_a_public_function(tree):
    assert wrong_names(tree) == []


@pytest.mark.parametrize("path", ["utils.py", "maths/helpers.py", "cli/common/a.py", "report/a.py", "measure.py"])
def test_a_wrong_name_is_found(path):
    assert len(wrong_names({path: ""})) == 1


def test_a_command_may_be_called_like_its_function():
    assert wrong_names({"cli/measure.py": "", "reporting/report.py": ""}) == []


# --- files come from strangers --------------------------------------------------------------------------------------


def unsafe_loads(tree: Tree) -> list[str]:
    found = []
    for path, node in nodes(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        options = {key.arg: key.value.value for key in node.keywords if isinstance(key.value, ast.Constant)}
        if (
            re.fullmatch(r"(c?pickle|cloudpickle|dill|joblib|marshal|shelve)\.(load|loads|open|Unpickler)", name)
            or (name == "torch.load" and options.get("weights_only") is not True)
            or options.get("allow_pickle") is True
        ):
            found.append(f"{path}:{node.lineno}: {name}")
    for path, node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "torch"):
            found += [f"{path}:{node.lineno}: hidden load" for alias in node.names if alias.name in ("load", "loads")]
    return found


def test_nothing_is_unpickled(tree):
    assert unsafe_loads(tree) == []


@pytest.mark.parametrize(
    "source",
    [
        "pickle.load(f)",
        "import pickle\ndef f(b):\n    return pickle.loads(b)",
        "pickle.Unpickler(f).load()",
        "from pickle import loads",
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "torch.load(p, weights_only=flag)",
        "np.load(p, allow_pickle=True)",
        "joblib.load(p)",
    ],
)
def test_an_unsafe_load_is_found(source):
    assert len(unsafe_loads({"data/a.py": source})) == 1


def test_a_safe_load_is_left_alone():
    safe = "torch.load(p, weights_only=True)\nnp.load(p)\nnp.load(p, allow_pickle=False)\njson.load(f)"
    assert unsafe_loads({"data/a.py": safe}) == []


# Calls that read a whole folder or name of somebody's, with whatever lies in it.
READERS = {"from_pretrained", "from_config", "load_dataset", "load_dataset_builder", "load_from_disk", "read_pickle"}
READERS |= {"get_class_from_dynamic_module", "get_kernel", "pipeline"}


def stray_readers(tree: Tree) -> list[str]:
    """Calls of other libraries that may run a stranger's code, anywhere but in libraries.py, or that would allow it."""
    calls = []
    for path, node in nodes(tree):
        names = {node.attr} if isinstance(node, ast.Attribute) else set()
        if isinstance(node, ast.ImportFrom) and not (node.level or str(node.module).startswith("lisse")):
            names = {alias.name for alias in node.names}
        hub = isinstance(node, ast.Attribute) and dotted(node) in ("torch.hub.load", "hub.load")
        if (names & READERS or hub) and path != "libraries.py":
            calls.append(f"{path}:{node.lineno}: {', '.join(names)}")
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code" and ast.unparse(node.value) != "False":
            calls.append(f"{path}:{node.lineno}: trust_remote_code may be true")
    return calls


def test_only_one_file_reads_what_may_bring_code(tree):
    outside = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for folder in ("benchmarks", "tools", "docs")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert stray_readers(tree | outside) == []


@pytest.mark.parametrize(
    "source",
    [
        "transformers.AutoTokenizer.from_pretrained(folder)",
        "load = transformers.BertModel.from_pretrained",
        "AutoModel.from_config(config, trust_remote_code=False)",
        "datasets.load_dataset(name)",
        "from datasets import load_dataset",
        "torch.hub.load(repository, name)",
        "pandas.read_pickle(file)",
        "f(trust_remote_code=True)",
        "f(trust_remote_code=answer)",
    ],
)
def test_a_stray_reader_is_found(source):
    assert len(stray_readers({"experiments/a.py": source})) == 1
    assert len(stray_readers({"libraries.py": source})) == ("trust_remote_code=" in source and "False" not in source)


# --- an instrument says everything about itself ---------------------------------------------------------------------

# Where the name of an instrument or quantity may stand, and why.
KNOWING = {
    "cli/__init__.py": "the table of commands: that of an instrument for two networks has its name",
    "cli/drift.py": "which is that command",
    "reporting/former.py": "names of figures before charts were declared; they go with the next release",
}


def known_instruments(tree: Tree, names: set[str]) -> list[str]:
    """Strings that are the name of an instrument or quantity where any instrument is as good as another."""
    strings = []
    for path, source in sorted(tree.items()):
        if part(path) not in ("reporting", "cli", "surveying") or path in KNOWING:
            continue
        module = parsed(path, source)
        docs = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
        strings += [
            f"{path}:{node.lineno}: {node.value}"
            for node in ast.walk(module)
            if isinstance(node, ast.Constant) and node.value in names and id(node) not in docs
        ]
    return strings


def test_no_page_figure_or_command_knows_an_instrument(tree):
    from lisse.instruments import ALL

    names = {word for kind in ALL for word in (kind.__name__, kind.__name__.lower())}
    names |= {quantity.name for kind in ALL for quantity in kind.QUANTITIES}
    assert known_instruments(tree, names) == []
    assert KNOWING.keys() <= tree.keys()


@pytest.mark.parametrize("source", ["x = 'topology'", "f({'norm': 1})", "def f(name='norm'):\n    'norm'"])
def test_an_instrument_that_is_known_is_found(source):
    names = {"topology", "norm"}
    assert len(known_instruments({"cli/a.py": source}, names)) == 1
    assert known_instruments({"run/a.py": source, "reporting/former.py": source}, names) == []


# --- things that live in one place ----------------------------------------------------------------------------------


def stray_hooks(tree: Tree) -> list[str]:
    return [
        f"{path}:{node.lineno}: {node.attr}"
        for path, node in nodes(tree)
        if isinstance(node, ast.Attribute) and re.fullmatch(r"register_\w*hook", node.attr) and part(path) != "taps"
    ]


def test_only_taps_registers_hooks(tree):
    assert stray_hooks(tree) == []


@pytest.mark.parametrize(
    "hook", ["forward_hook", "forward_pre_hook", "full_backward_hook", "module_forward_hook", "hook"]
)
def test_a_stray_hook_is_found(hook):
    source = f"handle = model.layer[0].register_{hook}(on)"
    assert len(stray_hooks({"recording.py": source})) == 1
    assert stray_hooks({"taps/a.py": source}) == []


def stray_plots(tree: Tree) -> list[str]:
    return [
        f"{path}:{node.lineno}: {name}"
        for path, node in nodes(tree)
        for name in imported(path, node)
        if name.partition(".")[0] in ("matplotlib", "plotly", "altair")
        and part(path) not in ("reporting", "experiments")
    ]


def test_only_reporting_and_experiments_draw(tree):
    assert stray_plots(tree) == []


def test_a_stray_plot_is_found():
    source = "def f():\n    import matplotlib.pyplot as plt"
    assert len(stray_plots({"maths/a.py": source})) == 1
    assert stray_plots({"reporting/a.py": source}) == []


# --- what no file may mention ---------------------------------------------------------------------------------------

# Put together from halves, so that this file does not mention them either.
FOLDERS = re.compile(r"(?<![\w.~-])/(?:" + "|".join(["wo" + "rk", "op" + "t"]) + r")(?=/|\b(?!\w))")
HOSTS = re.compile(
    "|".join(
        [
            "pypi" + r"\.org",
            "python" + "hosted",
            r"download\.py" + "torch",
            "registry" + r"\.npmjs",
            "deb" + r"\.debian",
        ]
    )
)


def mentions(text: str) -> list[str]:
    return [match[0] for pattern in (FOLDERS, HOSTS) for match in pattern.finditer(text)]


def project_files(root: Path) -> Iterator[Path]:
    """Every file that belongs to the project: what .gitignore does not name."""
    ignored = [line.strip("/") for line in (root / ".gitignore").read_text().splitlines() if line] + [".git"]
    for path in sorted(root.iterdir()):
        if not any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored):
            inside = path.rglob("*") if path.is_dir() else [path]
            for file in inside:
                names = file.relative_to(root).parts
                if file.is_file() and not any(fnmatch.fnmatch(n, p) for n in names for p in ignored):
                    yield file


def test_no_file_mentions_a_folder_of_one_machine_or_a_registry():
    found = []
    for path in project_files(ROOT):
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {what}" for what in mentions(text)]
    assert found == []


def test_the_files_of_the_project_are_seen(tmp_path):
    (tmp_path / ".gitignore").write_text(".venv*/\n__pycache__/\n*.profile\n")
    for name in ("a.py", "src/b.py", ".ci/run", ".venv-x/c.py", "src/__pycache__/d.py", "e.profile", ".git/f"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    seen = {path.relative_to(tmp_path).as_posix() for path in project_files(tmp_path)}
    assert seen == {".gitignore", "a.py", "src/b.py", ".ci/run"}


@pytest.mark.parametrize(
    "text",
    [
        "cd /wo" + "rk/main",
        "'/wo" + "rk'",
        "file:///op" + "t/wheels",
        "https://pypi" + ".org/simple",
        "files.python" + "hosted.org",
        "https://download.py" + "torch.org/whl/cpu",
    ],
)
def test_a_mention_is_found(text):
    assert len(mentions(text)) == 1


@pytest.mark.parametrize(
    "text", ["src/lisse/net" + "works/", "/workspace", "and/or/wo" + "rk", "/optional", "data/op" + "t/a"]
)
def test_other_words_are_left_alone(text):
    assert mentions(text) == []


# --- citations ------------------------------------------------------------------------------------------------------

CITATION = re.compile(r"\[([a-z]+(?:19|20)\d{2}[a-z]?)\]")


def unknown_citations(texts: Tree, bibliography: str) -> list[str]:
    known = set(re.findall(r"^@\w+\{(\w+),", bibliography, re.MULTILINE))
    return [f"{path}: {key}" for path, text in texts.items() for key in CITATION.findall(text) if key not in known]


def test_every_citation_is_in_the_bibliography(tree):
    bibliography = (ROOT / "docs" / "references.bib").read_text("utf-8")
    pages = {path.name: path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")}
    assert unknown_citations(tree | pages, bibliography) == []


def test_an_unknown_citation_is_found():
    bibliography = "@misc{petrini2021,\n  title = {A},\n}"
    assert unknown_citations({"a.py": "[petrini2021] eq. 4"}, bibliography) == []
    assert unknown_citations({"a.py": "[nobody1999] eq. 4"}, bibliography) == ["a.py: nobody1999"]
