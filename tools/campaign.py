"""The standing campaign against lisse: kills, damaged files, full disks, and whatever else happens to a program.

    python tools/campaign.py --minutes 30 [--seed N] [--write FILE]

Every attack runs in a forked child of its own, with a seed of its own; each break is printed with the call that repeats
it (``--only KIND --case NUMBER --seed N``). What survives: work that was stopped ends, after it was repeated, with the
bits of work that was not; a damaged input loads, or is refused with a sentence in the house style within a bounded time
and memory; nothing is left behind. Exit code 1 where anything broke.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import io
import json
import math
import os
import platform
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn

import lisse
from lisse import profile_file
from lisse.cli import cli, conditions
from lisse.data import Dataset, load_data
from lisse.data.corrupted import make_cifar10_c
from lisse.instruments import Sensitivity, Topology
from lisse.networks.bounds import layer_bounds
from lisse.profile import Profile
from lisse.recording import recorded
from lisse.reporting.atlas import AtlasRow, atlas, save_atlas
from lisse.run import Run
from lisse.sweeping import plan_of
from lisse.sweeping.trust import reaches
from lisse.sweeping.verification import unit_again
from lisse.training import Recipe
from lisse.training.folder import read_checkpoint
from lisse.training.penalty import penalty_of

INPUTS = 200  # mutated inputs of one case
SECONDS = 20  # of a processor that one of them may take; no clock, which a busy machine would bend
STUCK = 900.0  # seconds after which a child does no more
MEMORY = 3 << 30  # that a child may take beyond what it begins with
#: What a refusal begins with: the function, or the file.
SPOKEN = re.compile(r"[\w.]+: \S")


# -- a child process ---------------------------------------------------------------------------------------------------


class Child(NamedTuple):
    """How a child ended: its result as JSON, or what went wrong."""

    killed: bool
    result: Any = None
    trouble: str = ""


def child(work: Callable[[], Any], *, kill_after: float | None = None, wait: float = STUCK) -> Child:
    """``work()`` in a fork, killed after a while if it was not done; its result comes back as JSON."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        text = ""
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                text = json.dumps({"result": work()})
        except BaseException as error:
            text = json.dumps({"trouble": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]})
        with contextlib.suppress(OSError), os.fdopen(writer, "w") as pipe:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            pipe.write(text)
        os._exit(0)
    os.close(writer)
    began, content, killed = time.monotonic(), b"", False
    os.set_blocking(reader, False)
    while True:
        with contextlib.suppress(BlockingIOError):
            part = os.read(reader, 1 << 16)
            if not part:
                break
            content += part
            continue
        late = time.monotonic() - began
        if not killed and late > (wait if kill_after is None else kill_after):
            os.kill(pid, signal.SIGKILL)
            killed = True
        time.sleep(0.0005)
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        expected = os.WTERMSIG(status) == signal.SIGKILL and ((killed and kill_after is not None) or not content)
        stuck = killed and kill_after is None
        return Child(True, trouble="" if expected and not stuck else f"died by signal {os.WTERMSIG(status)}")
    answer = json.loads(content)
    return Child(False, answer.get("result"), answer.get("trouble", ""))


def finished(work: Callable[[], Any]) -> Any:
    """``work()`` in a child that nobody disturbs."""
    end = child(work)
    if end.trouble or end.killed:
        raise Broken(f"undisturbed work failed: {end.trouble or 'killed'}")
    return end.result


class Broken(Exception):
    """An attack that did not survive."""


# -- work that is stopped ----------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Batch norm and dropout: everything that remembers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.body(x)


def points(n: int = 48) -> Dataset:
    """Labelled points."""
    return Dataset("points", torch.randn(n, 6, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 3)


def train(out: Path) -> str:
    """A digest of the weights and the log."""
    training = lisse.train(
        Net(), points(), recipe=Recipe(lr=0.05, batch=8, epochs=12), test=points(20), out=out, checkpoint_seconds=0.0
    )
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in training.log]
    weights = (out / "model.safetensors").read_bytes()
    return hashlib.blake2b(weights + json.dumps(rows).encode(), digest_size=16).hexdigest()


INSTRUMENTS = [Sensitivity(samples=16, clouds=2, points=8, draws=8, max_iter=4), Topology(samples=12, clouds=2, p=(1,))]


def rows_of(profile: Profile) -> list[list[Any]]:
    """Every number of a profile, to the last bit."""
    return [
        [part.instrument, row.quantity, row.layer, repr(row.value), repr(row.low), repr(row.high), repr(dict(row.at))]
        for part in profile.parts for row in part.rows
    ]  # fmt: skip


def measure(out: Path, model: nn.Module | None = None, data: Dataset | None = None, **options: Any) -> str:
    """A digest of the rows, of what was saved."""
    Run.patience = 0.0  # every piece is worth a file
    options = {"cache": out / "cache", "batch": 8, **options}
    profile = lisse.measure(model or Net(), data or points(), INSTRUMENTS, **options)
    saved = Profile.load(profile.save(out / "result.profile"))
    return hashlib.blake2b(json.dumps(rows_of(saved)).encode(), digest_size=16).hexdigest()


def report(out: Path) -> str:
    """A page of a profile, whole."""
    profile = lisse.measure(Net(), points(), INSTRUMENTS[:1], batch=8)
    text = lisse.report(profile, out / "page.html").read_text()
    return str("</html>" in text[-20:])


def corrupt(out: Path) -> str:
    """A digest of files of corrupted images."""
    pixels = torch.randint(0, 256, (6, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    files = make_cifar10_c(
        Dataset("few", pixels, torch.arange(6)), out / "c", corruptions=["brightness", "contrast", "pixelate"]
    )
    return hashlib.blake2b(b"".join(file.read_bytes() for file in sorted(files)), digest_size=16).hexdigest()


def save(out: Path) -> str:
    """Files written again and again."""
    for number in range(40):
        profile_file.save_arrays({"a": np.full(20_000, 7.0), "b": np.arange(number % 3 + 1)}, out / "arrays")
    content = profile_file.load_arrays(out / "arrays")
    return str(set(content["a"].tolist()) == {7.0} and len(content["b"]) == 1)


def command(*words: str | Path) -> None:
    """A command as a person writes it; its errors are raised."""
    cli.main([str(word) for word in words], standalone_mode=False)


def bounds(out: Path) -> str:
    """A digest of what ``lisse bounds`` writes."""
    command("bounds", SMALL, "--layers", "**", "--out", out / "bounds.json")
    return hashlib.blake2b((out / "bounds.json").read_bytes(), digest_size=16).hexdigest()


def survey(out: Path) -> str:
    """A digest of the rows of two networks and of random weights beside them, and whether their page is whole."""
    Run.patience = 0.0
    models = {"one": SMALL, "two": f"{SMALL}&seed=3"}
    profiles = lisse.survey(
        models, "digits", limit=40, instruments=INSTRUMENTS, starts=1, batch=20, cache=out / "cache", folder=out / "p"
    )
    page = lisse.report(profiles, out / "page.html").read_text()
    saved = [rows_of(Profile.load(path)) for path in sorted((out / "p").iterdir()) if path.suffix == ".profile"]
    digest = hashlib.blake2b(json.dumps([rows_of(profile) for profile in profiles]).encode(), digest_size=16)
    return f"{digest.hexdigest()} {len(saved)} {'</html>' in page[-20:]}"


def improve(out: Path) -> str:
    """A digest of the weights that ``lisse improve`` leaves, and of its two profiles."""
    words = ("--data", "digits", "--limit", "40", "--batch", "20", "--epochs", "2", "--seed", "1", "--quick")
    command("improve", SMALL, *words, "--for", "attacks", "--out", out / "better")
    profiles = [rows_of(Profile.load(path)) for path in sorted((out / "better" / "profiles").glob("*.profile"))]
    content = (out / "better" / "model.safetensors").read_bytes() + json.dumps(profiles).encode()
    return f"{hashlib.blake2b(content, digest_size=16).hexdigest()} {len(profiles)}"


SMALL = "zoo:fc2?in_channels=1&size=8&width=8&classes=10"
WORK = {
    "training": train, "measuring": measure, "a report": report, "corruptions": corrupt, "saving": save,
    "bounds": bounds, "a survey": survey, "improving": improve,
}  # fmt: skip
#: Work that takes seconds, and comes less often.
LONG = ("a survey", "improving")
WHOLE: dict[str, tuple[Any, float]] = {}  # the result of undisturbed work, and how long it takes


def undisturbed(name: str) -> tuple[Any, float]:
    """What undisturbed work gives, and how long it takes."""
    if name not in WHOLE:
        with folder() as out:
            began = time.monotonic()
            WHOLE[name] = finished(lambda: WORK[name](out)), time.monotonic() - began
    return WHOLE[name]


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder that is gone afterwards, whatever was done to it."""
    path = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        yield path
    finally:
        for root, folders, _ in os.walk(path):
            for name in folders:
                os.chmod(Path(root) / name, 0o755)
        shutil.rmtree(path, ignore_errors=True)


def ends_the_same(name: str, out: Path) -> None:
    """The work, repeated in peace, has the bits of undisturbed work and leaves nothing behind."""
    if (result := finished(lambda: WORK[name](out))) != undisturbed(name)[0]:
        raise Broken(f"{name}: another result after the attack ({result} instead of {undisturbed(name)[0]})")
    if left := [str(path.relative_to(out)) for path in out.rglob("*.tmp")] + [str(p) for p in out.rglob("*.part.*")]:
        raise Broken(f"{name}: left behind: {left[:3]}")


def work_for(dice: random.Random, *apart: str) -> str:
    """One of the kinds of work, drawn: long ones less often."""
    names = [name for name in WORK if name not in apart]
    return dice.choices(names, [1 if name in LONG else 4 for name in names])[0]


def killed(dice: random.Random, counts: collections.Counter[str]) -> int:
    """SIGKILL at random moments, some times in a row; then the same work in peace."""
    name = work_for(dice)
    _, seconds = undisturbed(name)
    with folder() as out:
        for _ in range(times := dice.randint(3, 8)):
            end = child(lambda: WORK[name](out), kill_after=dice.uniform(0, 1.1 * seconds))
            counts["SIGKILL at a random moment"] += end.killed
            if end.trouble:
                raise Broken(f"{name}: {end.trouble}")
        ends_the_same(name, out)
    return times


CALLS = ("replace", "fsync", "unlink", "chmod", "mkdir", "rmdir", "open", "write")


def killed_inside(dice: random.Random, counts: collections.Counter[str]) -> int:
    """SIGKILL right before or right after a system call; or SIGINT there, which may be caught."""
    name = work_for(dice, "a report")
    with folder() as out:
        for _ in range(times := dice.randint(3, 8)):
            call, at, after = dice.choice(CALLS[:6]), dice.randrange(12), dice.random() < 0.5
            which = signal.SIGKILL if dice.random() < 0.8 else signal.SIGINT

            def work(call: str = call, at: int = at, after: bool = after, which: Any = which) -> Any:
                original, numbers = getattr(os, call), iter(range(1 << 30))

                def dying(*args: Any, **options: Any) -> Any:
                    reached = next(numbers) == at
                    if reached and not after:
                        os.kill(os.getpid(), which)
                    value = original(*args, **options)
                    if reached and after:
                        os.kill(os.getpid(), which)
                    return value

                setattr(os, call, dying)
                return WORK[name](out)

            end = child(work)
            counts[f"{'SIGKILL' if which == signal.SIGKILL else 'SIGINT'} at {call}"] += 1
            if end.trouble and not end.trouble.startswith(("KeyboardInterrupt", "Abort")):
                raise Broken(f"{name}: {end.trouble}")
        ends_the_same(name, out)
    return times


def full_disk(dice: random.Random, counts: collections.Counter[str]) -> int:
    """A disk that is full after some bytes of a file; then one with room."""
    name = work_for(dice)
    most = int(2 ** dice.uniform(4, 18))

    def work() -> Any:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        return WORK[name](out)

    with folder() as out:
        end = child(work)
        if end.trouble and not end.trouble.startswith(("OSError", "ValueError: make_cifar10_c")):
            raise Broken(f"{name}: files of at most {most} bytes: {end.trouble}")
        ends_the_same(name, out)
    counts[f"full disk: {name}"] += 1
    return 1


#: How a folder that cannot be written is refused; the command line says it before the work.
REFUSED = ("OSError", "PermissionError", "NotADirectoryError", "FileExistsError", "FileTrouble")


def read_only(dice: random.Random, counts: collections.Counter[str]) -> int:
    """A folder in which nothing may be written, by a person who is not root; or a file where the folder should be."""
    name = work_for(dice)
    with folder() as out:
        target = out / "x"
        if dice.random() < 0.5:
            target.write_text("a file")
        else:
            target.mkdir()
            target.chmod(0o555)
            out.chmod(0o755)

        def work() -> Any:
            if os.getuid() == 0:
                os.setuid(65534)
            return WORK[name](target)

        end = child(work)
        if not end.trouble.startswith(REFUSED):
            raise Broken(f"{name} into a folder that cannot be written: {end.trouble or 'no error'}")
    counts["read-only folder"] += 1
    return 1


def two_processes(dice: random.Random, counts: collections.Counter[str]) -> int:
    """The same work twice at once in one folder; a training refuses the second."""
    name = work_for(dice)
    with folder() as out:

        def work() -> Any:
            pid = os.fork()
            code = 0
            try:
                with warnings.catch_warnings():
                    WORK[name](out)
            except RuntimeError as error:
                code = 0 if "must not be in use" in str(error) else 1
                if code:
                    traceback.print_exc()
            except BaseException:
                code = 1
            if pid == 0:
                os._exit(code)
            return [code, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]

        if finished(work) != [0, 0]:
            raise Broken(f"{name}: one of two processes on one folder failed")
        ends_the_same(name, out)
    counts["two processes on one folder"] += 1
    return 1


def settings(dice: random.Random, counts: collections.Counter[str]) -> int:
    """Another memory, another order of instruments: the same bits; other threads, other batches: nearly the same."""

    def rows(**options: Any) -> Any:
        reverse, threads = options.pop("reverse", False), options.pop("threads", 1)

        def work() -> Any:
            torch.set_num_threads(threads)
            profile = lisse.measure(Net(), points(), INSTRUMENTS[:: -1 if reverse else 1], **{"batch": 8, **options})
            return sorted(rows_of(profile), key=repr)

        return finished(work)

    usual = rows()
    exact: dict[str, Any] = {"memory": dice.choice([1 << 14, "1MiB", "64MiB"]), "reverse": dice.random() < 0.5}
    if rows(**exact) != usual:
        raise Broken(f"{exact} gives other bits")
    near: dict[str, Any] = {"batch": dice.randint(1, 50), "threads": dice.randint(1, 2)}
    for ours, expected in zip(rows(**near), usual, strict=True):
        values = float(ours[3]), float(expected[3])
        equal = math.isclose(*values, rel_tol=1e-3, abs_tol=1e-6) or all(map(math.isnan, values))
        if ours[:3] != expected[:3] or not equal:
            raise Broken(f"{near}: {ours} instead of {expected}")
    counts["memory limits, orders, threads, batch sizes"] += 2
    return 2


def planted(dice: random.Random, counts: collections.Counter[str]) -> int:
    """NaN or infinity in a weight or in the data: refused with a word on it, or not in any number."""
    model, data = Net(), points()
    inputs: Any = data.inputs
    value, where = dice.choice([math.nan, math.inf, -math.inf]), dice.choice(["weight", "data"])
    tensor = dice.choice(list(model.parameters())).data if where == "weight" else inputs.clone()
    tensor.view(-1)[dice.randrange(tensor.numel())] = value
    if where == "data":
        data = Dataset("points", tensor, data.targets)

    def work() -> Any:
        profile = lisse.measure(model, data, INSTRUMENTS, batch=8)
        return [row.quantity for row in profile.rows if not math.isfinite(row.value) and row.quantity == "norm"]

    end = child(work)
    explained = end.trouble.startswith("ValueError") and re.search("finite|NaN|infin", end.trouble)
    if (end.trouble and not explained) or end.result:
        raise Broken(f"{value} in {where}: {end.trouble or end.result}")
    counts["planted NaN and infinities"] += 1
    return 1


# -- inputs that are damaged -------------------------------------------------------------------------------------------


TOKENS = (
    b"null", b"[]", b"{}", b'"', b"1e999", b"-1", b"0", b"99999999999", b"\\ud800", b"\x00", b"\xff", b"[" * 3000,
    b"(" * 3000, b"true", b"\xef\xbb\xbf", b"=", b"&", b"?", b"%s", b"../..", b"\n",
)  # fmt: skip


def mutated(content: bytes, dice: random.Random) -> bytes:
    """A few random changes."""
    data = bytearray(content)
    for _ in range(dice.choice([1, 1, 1, 2, 4, 8])):
        size = len(data)
        at, kind = dice.randrange(size + 1), dice.randrange(8)
        if kind <= 2 and size:
            data[min(at, size - 1)] ^= 1 << dice.randrange(8)
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            del data[at : at + dice.randint(1, 16)]
        elif kind == 5:
            data[at:at] = bytes(dice.randrange(256) for _ in range(dice.randint(1, 8)))
        elif kind == 6:
            data[at:at] = data[max(0, at - dice.randint(1, 40)) : at] * dice.choice([1, 2, 50])
        else:
            data[at : at + dice.choice([0, 1, 4])] = dice.choice(TOKENS)
    return bytes(data)


def _text(suffix: str, content: str) -> tuple[str, bytes, Callable[[Path], Any]]:
    return suffix, content.encode(), lambda path: load_data(f"text:{path}?length=8")


def formats() -> dict[str, tuple[str, bytes, Callable[[Path], Any]]]:
    """Each kind of input: the end of its name, a sound one, and what reads it."""
    from PIL import Image

    norm = b'abs(a.norm - b.norm) * 2 <= 1e-3 and low(sensitivity.norm@"1"{cloud=8}) > -1 or 1 < 2'
    with folder() as out:
        profile = lisse.measure(Net(), points(), INSTRUMENTS, batch=8)
        packed = profile.save(out / "a.profile").read_bytes()
        arrays = profile_file.save_arrays({"a": np.arange(9.0), "b": np.array("x")}, out / "a.arrays").read_bytes()
        finished(lambda: train(out / "run"))
        run = {path.name: path.read_bytes() for path in (out / "run").iterdir() if path.is_file()}
        checkpoint = max((out / "run" / "checkpoints").iterdir()).read_bytes()
        model: Any = lisse.load_model("zoo:fc2?in_channels=1&size=4&width=5&classes=3")
        model.lisse.save(model, out / "m.safetensors")
        weights = (out / "m.safetensors").read_bytes()
        np.savez(out / "a.npz", x_test=np.arange(24.0).reshape(6, 4), y_test=np.arange(6) % 2)
        npz = (out / "a.npz").read_bytes()
        layers = {"one": np.arange(24.0, dtype=np.float32).reshape(6, 4), "two": np.ones((6, 3), np.float32)}
        np.savez(out / "layers.npz", one=layers["one"], two=layers["two"], labels=np.arange(6) % 2)
        save_file({**layers, "labels": np.arange(6) % 2}, out / "layers.safetensors")
        shards = {kind: (out / f"layers.{kind}").read_bytes() for kind in ("npz", "safetensors")}
        pictures = {}
        for kind in ("png", "jpeg", "gif", "bmp"):
            buffer = io.BytesIO()
            Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(buffer, kind)
            pictures[kind] = buffer.getvalue()

    def resumed(name: str) -> Callable[[Path], Any]:
        def resume(path: Path) -> None:
            target = path.with_suffix(".run")
            shutil.rmtree(target, ignore_errors=True)
            (target / "checkpoints").mkdir(parents=True)
            for other, content in run.items():
                (target / other).write_bytes(content)
            (target / "checkpoints" / "step-000000000072.safetensors").write_bytes(checkpoint)
            path.rename(target / name)
            if train(target) != undisturbed("training")[0]:
                raise Broken("the run ends with another result")

        return resume

    def picture(path: Path) -> Any:
        group = path.with_suffix(".group") / "one"
        group.mkdir(parents=True, exist_ok=True)
        path.replace(group / f"a{path.suffix}")
        return load_data(f"folder:{group.parent}?size=8")

    def condition(path: Path) -> None:
        text = path.read_text("utf-8", "surrogateescape")
        with contextlib.suppress(ValueError):
            conditions.check(text, profile, profile)

    def page(path: Path) -> None:
        lisse.report(lisse.survey(str(path), starts=0), path.with_suffix(".html"))

    def bounded(path: Path) -> None:
        layer_bounds(lisse.load_model(str(path)), torch.zeros(1, 1, 4, 4))

    def elsewhere(path: Path) -> None:
        layers = path.with_suffix(".layers")
        layers.mkdir()
        path.rename(layers / f"a{path.suffix}")
        recording = recorded(layers)
        for name in recording:
            recording[name]
        recording.close()

    unit = {"model": "zoo:fc2?width=5", "data": "digits", "instruments": {"sensitivity": {"samples": 20}}, "seed": 1}
    trained = {**unit, "training": {"data": "digits", "recipe": "default", "changes": {"epochs": 2}}}
    numbers = {"calmness": (2.0, 1.0, math.inf, 5, "estimate")}
    row = AtlasRow("0a1b", "net", "f", "d", error=(0.1, 0.0, 0.2, 9), numbers=numbers, unit=trained, parameters=12)
    with folder() as out:
        table = save_atlas([row], {"calmness": {"says": "s", "scale": "log"}}, out / "a.json").read_bytes()
    failure = json.dumps({"name": "net", "unit": trained, "reason": "it broke"}).encode()
    plan = (
        "data = ['digits']\ninstruments = ['sensitivity']\nlimit = 30\nseeds = '0..3'\n"
        "options.sensitivity.samples = 20\nmodels = [{ model = 'zoo:fc2?width=4', family = 'f' }]\n"
        "[[trainings]]\nmodels = 'zoo:fc2'\nrecipes = [{ epochs = 1 }, 'sgd']\nseeds = [3]\n"
    )

    def page_of_table(path: Path) -> None:
        atlas(path, path.with_suffix(".html"))

    def page_of_failure(path: Path) -> None:
        failures = path.with_suffix(".sweep") / "failures"
        failures.mkdir(parents=True)
        path.rename(failures / "0a1b.json")
        atlas(failures.parent, path.with_suffix(".html"))

    def row_again(path: Path) -> None:
        try:
            document = json.loads(path.read_text("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            return
        if document is not None and (reached := reaches(unit_again({"unit": document}))):
            raise Broken(f"a stranger's unit reaches {reached}")

    def spec(load: Callable[[str], Any]) -> Callable[[Path], Any]:
        return lambda path: load(path.read_text("utf-8", "surrogateescape").replace("\0", "0"))

    return {
        "profile": (".profile", packed, Profile.load),
        "arrays of the cache": (".arrays", arrays, profile_file.load_arrays),
        "profile of a survey": (".profile", packed, page),
        "weights of bounds": (".safetensors", weights, bounded),
        "recording, .npz": (".npz", shards["npz"], elsewhere),
        "recording, .safetensors": (".safetensors", shards["safetensors"], elsewhere),
        "table of an atlas": (".json", table, page_of_table),
        "failure of a sweep": (".json", failure, page_of_failure),
        "row that is verified": (".json", json.dumps(trained).encode(), row_again),
        "plan of a sweep": (".toml", plan.encode(), plan_of),
        "penalty": ("", b"isometric=0.1@head:in", spec(penalty_of)),
        "checkpoint": (".safetensors", checkpoint, read_checkpoint),
        "weights of a model": (".safetensors", weights, lambda path: lisse.load_model(str(path))),
        "config.json of a run": (".json", run["config.json"], resumed("config.json")),
        "result.json of a run": (".json", run["result.json"], resumed("result.json")),
        "log.csv of a run": (".csv", run["log.csv"], resumed("log.csv")),
        "weights of a run": (".safetensors", run["model.safetensors"], resumed("model.safetensors")),
        ".npz": (".npz", npz, lambda path: load_data(str(path))),
        **{f"picture, {kind}": (f".{kind}", content, picture) for kind, content in pictures.items()},
        "texts, .txt": _text(".txt", "one line\nanother\nthe third\n"),
        "texts, .csv": _text(".csv", 'first,second,label\n"a, b",c,1\nd,"e ""f""",0\n'),
        "texts, .tsv": _text(".tsv", "first\tsecond\tlabel\na b\tc\t1\nd\te\t0\n"),
        "texts, .jsonl": _text(".jsonl", '{"first": "a", "second": "b"}\n{"first": "c", "second": "d \\u00e9"}\n'),
        "condition": ("", norm, condition),
        "spec of data": ("", b"rings?n=200&noise=0.001", spec(lambda text: load_data(text, limit=5))),
        "spec of a model": ("", b"zoo:fc2?in_channels=1&size=4&width=5&classes=3&seed=1", spec(lisse.load_model)),
    }  # fmt: skip


FORMATS: dict[str, tuple[str, bytes, Callable[[Path], Any]]] = {}


def damaged(dice: random.Random, counts: collections.Counter[str]) -> int:
    """Mutated inputs of one kind: each loads, or is refused in words, in bounded time and memory."""
    if not FORMATS:
        FORMATS.update(formats())
        undisturbed("training")
    name = dice.choice(list(FORMATS))
    suffix, content, load = FORMATS[name]
    count = INPUTS // 10 if name.endswith("of a run") else INPUTS

    def work() -> Any:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        with folder() as out:
            for number in range(count):
                path = out / f"{number}{suffix}"
                damage = mutated(content, dice)
                path.write_bytes(damage)
                signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its default action ends the process
                signal.alarm(int(15 * SECONDS))  # where it waits for something
                try:
                    load(path)
                except Broken as error:
                    return [number, str(error), damage[:200].decode("latin-1")]
                except (ValueError, OSError, TypeError, ImportError, LookupError, RuntimeError) as error:
                    explained = bool(SPOKEN.match(str(error))) or bool(getattr(error, "filename", None))
                    if not explained or not isinstance(error, (ValueError, TypeError, ImportError, OSError)):
                        trace = traceback.extract_tb(error.__traceback__)[-1]
                        where = f"{Path(trace.filename).name}:{trace.lineno}"
                        return [number, f"{type(error).__name__} at {where}: {error}", damage[:200].decode("latin-1")]
                except BaseException as error:
                    return [number, f"{type(error).__name__}: {error}", damage[:200].decode("latin-1")]
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.alarm(0)
                for path in out.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        return None

    end = child(work, wait=4 * STUCK)
    if end.killed or end.trouble or end.result:
        raise Broken(f"{name}: {end.result or end.trouble or 'took too long'}"[:600])
    counts[f"mutated: {name}"] += count
    return count


# -- the campaign ------------------------------------------------------------------------------------------------------

#: Each kind of attack, and how often it comes in a round.
KINDS: dict[str, tuple[Callable[[random.Random, collections.Counter[str]], int], int]] = {
    "killed": (killed, 4),
    "killed at a system call": (killed_inside, 4),
    "damaged inputs": (damaged, 8),
    "full disk": (full_disk, 2),
    "read-only folder": (read_only, 1),
    "two processes": (two_processes, 1),
    "settings": (settings, 1),
    "planted NaNs": (planted, 2),
}


def attack(kind: str, case: int, seed: int, counts: collections.Counter[str]) -> str | None:
    """One case; what broke, or ``None``."""
    dice = random.Random(f"{seed}/{kind}/{case}")
    tried: collections.Counter[str] = collections.Counter()
    try:
        counts[f"tried/{kind}"] += KINDS[kind][0](dice, tried)
    except Broken as error:
        counts[f"tried/{kind}"] += 1
        return str(error)
    finally:
        counts.update(tried)
    return None


def campaign(minutes: float, seed: int) -> tuple[collections.Counter[str], list[str]]:
    """Rounds of attacks until the time is over, each kind once at least: how many of what, and what broke.

    With each break comes the call that repeats it.
    """
    counts: collections.Counter[str] = collections.Counter()
    breaks: list[str] = []
    end, case = time.monotonic() + 60 * minutes, 0
    while case == 0 or time.monotonic() < end:
        for kind, (_, often) in KINDS.items():
            for number in range(case * often, (case + 1) * often):
                in_time = time.monotonic() < end or number == 0
                if in_time and (broken := attack(kind, number, seed, counts)):
                    counts[f"broken/{kind}"] += 1
                    breaks.append(f"--only {kind!r} --case {number} --seed {seed}: {broken}")
                    print(breaks[-1], flush=True)
        case += 1
    return counts, breaks


def table(counts: collections.Counter[str], breaks: list[str], minutes: float, seed: int) -> str:
    """The result in Markdown."""
    kills = sum(count for name, count in counts.items() if name.startswith("SIG"))
    inputs = sum(count for name, count in counts.items() if name.startswith("mutated"))
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"PyTorch {torch.__version__}; seed {seed}, {minutes:g} minutes: "
        f"{kills:,} kills, {inputs:,} mutated inputs, {len(breaks)} broken.",
        "",
        "| attack | tried | survived | broken |",
        "| --- | --- | --- | --- |",
    ]
    for kind in KINDS:
        tried, broken = counts[f"tried/{kind}"], counts[f"broken/{kind}"]
        lines.append(f"| {kind} | {tried:,} | {tried - broken:,} | {broken} |")
    lines += ["", "| of these | count |", "| --- | --- |"]
    lines += [f"| {name} | {count:,} |" for name, count in sorted(counts.items()) if "/" not in name]
    return "\n".join([*lines, *(["", "Broken:", ""] if breaks else []), *(f"- `{text}`" for text in breaks)]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--case", type=int)
    parser.add_argument("--write", type=Path, help="a file for the table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # a fork of a process with threads cannot compute
    warnings.simplefilter("ignore")
    measure_once()
    if options.only:
        broken = attack(options.only, options.case or 0, options.seed, collections.Counter())
        print(broken or "survived")
        return int(broken is not None)
    counts, breaks = campaign(options.minutes, options.seed)
    text = table(counts, breaks, options.minutes, options.seed)
    print(text)
    if options.write:
        options.write.write_text(text)
    return int(bool(breaks))


def measure_once() -> None:
    """What is compiled or imported at first use is so once, and not in every child."""
    with folder() as out, contextlib.redirect_stderr(io.StringIO()):
        for work in WORK.values():
            work(out)
    Run.patience = 20.0


if __name__ == "__main__":
    sys.exit(main())
