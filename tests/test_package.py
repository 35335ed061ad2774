"""The package as others get it: what is in the wheel, that it installs and imports, and that imports stay light."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ["torch", "pandas", "scipy", "sklearn", "matplotlib", "transformers", "datasets", "timm", "torchvision"]


def python(*arguments: str | Path, executable: str | Path = sys.executable, cwd: Path | None = None) -> str:
    """The output of a Python process; an error shows what it printed."""
    command = [str(executable), *map(str, arguments)]
    here = str(executable) == sys.executable  # another environment must not see this one's path
    env = {name: value for name, value in os.environ.items() if here or name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(folder: Path, source: Path, kind: str = "wheel") -> Path:
    python("-m", "build", f"--{kind}", "--no-isolation", "--outdir", folder, source)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"), ROOT)


@pytest.fixture(scope="module")
def experiments(tmp_path_factory) -> Path:
    """The wheel of the experiments, made from their source distribution, which stands alone."""
    archive = built(tmp_path_factory.mktemp("sdist"), ROOT / "experiments", "sdist")
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return built(tmp_path_factory.mktemp("experiments"), next(folder.iterdir()))


@pytest.fixture
def bare(tmp_path) -> Path:
    """The interpreter of a new environment with nothing in it, not even pip."""
    python("-m", "venv", "--without-pip", tmp_path / "env")
    return tmp_path / "env" / "bin" / "python"


def install(executable: Path, *arguments: str | Path) -> None:
    pip = ["-m", "pip", "--python", executable, "--quiet", "--disable-pip-version-check", "install"]
    python(*pip, *arguments)


# --- the wheel ------------------------------------------------------------------------------------------------------


def test_the_wheel_has_the_package_its_types_and_its_licence_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    package = {name for name in names if name.startswith("lisse/")}
    info = {name.partition("/")[2] for name in set(names) - package}
    assert "lisse/py.typed" in package
    assert info == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "lisse").rglob("*.py")}
    assert {name for name in package if name.endswith(".py")} == sources
    assert not [name for name in names if "test" in name.lower() or name.endswith((".pyc", ".profile"))]


def test_the_experiments_have_a_wheel_of_their_own_with_the_same_version(wheel, experiments):
    names = zipfile.ZipFile(experiments).namelist()
    package = {name for name in names if name.startswith("lisse_experiments/")}
    info = {name.partition("/")[2] for name in set(names) - package}
    assert info == {"METADATA", "WHEEL", "RECORD", "licenses/LICENSE"}
    folder = ROOT / "experiments"
    files = [path for path in (folder / "lisse_experiments").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert package == {path.relative_to(folder).as_posix() for path in files}
    assert {name.rpartition("/")[2] for name in package} >= {"py.typed", "run.py", "expected.json", "tables.md"}
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "experiments" in name]
    assert wheel.name.split("-")[1] == experiments.name.split("-")[1]
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.slow
def test_a_registry_would_take_both_distributions(wheel, experiments, tmp_path):
    """Their metadata is whole and their READMEs render, those of the sources too."""
    sources = [built(tmp_path / folder.name, folder, "sdist") for folder in (ROOT, ROOT / "experiments")]
    outcome = python("-m", "twine", "check", "--strict", wheel, experiments, *sources)
    assert outcome.count("PASSED") == 4
    with tarfile.open(sources[0]) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert names >= {"pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt", "src/lisse/__init__.py"}


def test_every_extra_is_documented():
    declared = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    documented = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(encoding="utf-8"), re.M))
    assert documented == declared


def test_the_wheel_installs_and_runs_where_its_requirements_are(wheel, bare, tmp_path):
    install(bare, "--no-deps", wheel)
    # The requirements of the environment that runs the tests, but not its editable lisse: a .pth file adds one folder,
    # and the .pth files inside that folder are not followed.
    site = Path(python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", executable=bare).strip())
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = "import lisse; print(lisse.__file__); print(lisse.__version__)"
    file, version = python("-c", code, executable=bare, cwd=tmp_path).split()
    assert Path(file).resolve().is_relative_to(tmp_path.resolve())
    assert f"-{version}-" in wheel.name
    assert "Usage" in python("-m", "lisse", "--help", executable=bare, cwd=tmp_path)
    assert "Usage" in python("--help", executable=bare.parent / "lisse", cwd=tmp_path)


@pytest.mark.slow
def test_the_wheel_brings_what_it_needs(wheel, experiments, bare, tmp_path):
    """In an environment with nothing else and without extras, every module imports or names the extra it needs.

    So does ``lisse reproduce``; once the experiments are there, it finds the committed numbers again.
    """
    # Without compiling: of torch's thousands of files only those that are imported are ever read.
    install(bare, "--no-compile", "--constraint", ROOT / "constraints.txt", wheel)
    code = """
import importlib, pkgutil, lisse
done, refused = [], []
for name in [module.name for module in pkgutil.walk_packages(lisse.__path__, "lisse.")]:
    try:
        importlib.import_module(name)
        done.append(name)
    except ImportError as error:
        # Single figures import matplotlib; the names in lisse.reporting say which extra has it.
        if "lisse[" not in str(error) and (error.name or "").partition(".")[0] != "matplotlib":
            raise
        refused.append(name)
for name in lisse.__all__:
    getattr(lisse, name)
print(len(done), *refused)
"""
    done, *refused = python("-c", code, executable=bare, cwd=tmp_path).split()
    assert int(done) > 40
    # These need Triton, which only a CUDA build of torch brings; those numba, from lisse[fast].
    kernels = ("diffeomorphism.tile_kernel", "transport.device_kernels")
    compiled = ("transport.loops", "diffeomorphism.loops", "homology.loops", "stability_loops")
    allowed = ("lisse.reporting", *(f"lisse.maths.{name}" for name in (*kernels, *compiled)))
    assert all(name.startswith(allowed) for name in refused), refused
    assert "Usage" in python("-m", "lisse", "--help", executable=bare, cwd=tmp_path)
    alone = subprocess.run(
        [bare, "-m", "lisse", "reproduce"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert alone.returncode == 1
    assert alone.stderr.count("\n") == 1
    assert "pip install 'lisse[experiments]'" in alone.stderr
    install(bare, "--no-compile", "--constraint", ROOT / "constraints.txt", "--find-links", wheel.parent, experiments)
    outcome = python("-m", "lisse", "reproduce", "topolip", "--quiet", executable=bare, cwd=tmp_path)
    assert "As committed on" in outcome
    assert "fig" in outcome


# --- light imports: the cause of the times in benchmarks/imports.py --------------------------------------------------


def heavy_after(code: str) -> list[str]:
    """Which of the heavy packages are loaded once ``code`` has run in a new process."""
    code += f"\nimport json, sys\nsys.stderr.write(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stderr.splitlines()[-1])


def test_heavy_imports_are_seen():
    assert heavy_after("import scipy, click") == ["scipy"]


def test_importing_lisse_imports_nothing_heavy():
    assert heavy_after("import lisse") == []


def test_asking_for_help_imports_nothing_heavy():
    code = """
import sys
from lisse.cli import main
sys.argv = ["lisse", "--help"]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    assert heavy_after(code) == []


# --- pins -----------------------------------------------------------------------------------------------------------


def test_constraints_pin_every_requirement_to_one_version_without_paths():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and not set("/@+ ;") & set(line) for line in lines), lines
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [r for extra in ("hf", "datasets", "report", "dev") for r in extras[extra]]
    assert {requirement.partition(">=")[0].lower() for requirement in wanted} <= pinned
    assert "torch==2.13.0" in lines


def test_the_versions_of_the_citation_and_the_package_agree():
    import lisse

    assert f"version: {lisse.__version__}\n" in (ROOT / "CITATION.cff").read_text()
