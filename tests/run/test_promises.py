"""Two instruments make one clean pass, and a run that is killed loses at most one batch: counted in forwards."""

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lisse
from lisse import Dataset, Instrument
from lisse.instruments import (
    ALL,
    Contraction,
    Extremes,
    Isometry,
    Lipschitz,
    Propagation,
    Robustness,
    Sensitivity,
    Stability,
    Topology,
)
from lisse.run import Run
from lisse.run.fingerprint import library_versions

N, BATCH = 24, 4
DATA = 40  # more than any instrument asks for
INSTRUMENTS = {
    "topology": Topology(samples=12, clouds=2, dims=(0,), p=(1,)),
    "stability": Stability(samples=N),
    "contraction": Contraction(samples=N, points=2, max_iter=2, shown=0),
    "propagation": Propagation(samples=N, kernels=2, lemma=0),
    "isometry": Isometry(samples=12, clouds=2, points=2, max_iter=2),
    "sensitivity": Sensitivity(samples=12, clouds=2, points=2, max_iter=2),
    "robustness": Robustness(
        samples=N, corruptions=("gaussian_noise",), severities=(1,), attacks=(), sigma=(0.1,), delta=(1.0,), clean=N
    ),
    "extremes": Extremes(samples=N),
}
# It takes Jacobians, and makes no clean pass that others could share.
WITHOUT_PASS = {"lipschitz": Lipschitz(points=4, max_iter=2)}
# Read again at every start: samples on the other side of Stability's pairs; two and three samples, four times, with
# which Lipschitz finds its blocks.
REPEATED = {"stability": N, "lipschitz": 4 * (2 + 3)}


def data() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(DATA, 3, 8, 8, generator=generator)
    return Dataset("pictures", images, torch.arange(DATA) % 3)


def network() -> nn.Module:
    return lisse.load_model("zoo:vit_small?size=8&patch=2&depth=2&width=12&heads=2&classes=3&seed=0")


class Killed(BaseException):
    """Not an Exception: nothing may catch it and go on."""


class Counter:
    """Counts the samples that go through a model, those that are the data's own without a graph apart."""

    def __init__(self, inputs: torch.Tensor) -> None:
        self.known = {self._key(sample) for sample in inputs}
        self.samples = self.clean = 0
        self.kill_at: float = float("inf")

    @staticmethod
    def _key(sample: torch.Tensor) -> bytes:
        return sample.detach().float().numpy().tobytes()

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[nn.Module]:
        handle = model.register_forward_pre_hook(self)
        try:
            yield model
        finally:
            handle.remove()

    def __call__(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        (images,) = args
        self.samples += len(images)
        if not torch.is_grad_enabled():
            self.clean += sum(self._key(image) in self.known for image in images)
        if self.samples > self.kill_at:
            raise Killed


def counted(instruments: list[Instrument], batch: int = BATCH, **options) -> Counter:
    model, pictures = network(), data()
    counter = Counter(pictures.inputs)
    with counter.watching(model):
        lisse.measure(model, pictures, instruments, batch=batch, **options)
    return counter


@pytest.fixture(scope="module")
def alone() -> dict[str, int]:
    return {name: counted([instrument]).clean for name, instrument in (INSTRUMENTS | WITHOUT_PASS).items()}


def test_every_instrument_is_promised_something():
    single = {kind.__name__.lower() for kind in (*ALL, Extremes) if kind.SIDES == 1}
    assert set(INSTRUMENTS | WITHOUT_PASS) == single


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(INSTRUMENTS | WITHOUT_PASS, 2)))
def test_two_instruments_make_one_clean_pass(a, b, alone):
    for pair in ((a, b), (b, a)):
        clean = counted([(INSTRUMENTS | WITHOUT_PASS)[name] for name in pair]).clean
        assert clean <= alone[a] + alone[b] - (0 if WITHOUT_PASS.keys() & pair else N)


@pytest.mark.parametrize("order", [("contraction", "propagation"), ("propagation", "contraction")])
def test_what_a_pass_keeps_for_another_instrument_changes_no_number(order, alone):
    together = lisse.measure(network(), data(), [INSTRUMENTS[name] for name in order], batch=BATCH)
    for part in together.parts:
        (single,) = lisse.measure(network(), data(), INSTRUMENTS[part.instrument], batch=BATCH).parts
        assert part.rows == single.rows
        assert len(part.rows) > 10
    # What does not fit the memory is not kept: the second instrument reads it in a pass of its own.
    clean = counted([INSTRUMENTS[name] for name in order], memory="20 kB").clean
    assert clean > alone["contraction"] + alone["propagation"] - N


# -- killed at any moment ---------------------------------------------------------------------------------------------


def killed_and_resumed(instrument: Instrument, cache: Path, at: int, batch: int) -> tuple[int, lisse.Profile]:
    """Samples that went through the network in a run that was killed and in the one after it, and its profile."""
    samples = 0
    for kill_at in (at, float("inf")):
        model, pictures = network(), data()
        counter = Counter(pictures.inputs)
        counter.kill_at = kill_at
        with counter.watching(model):
            try:
                profile = lisse.measure(model, pictures, instrument, batch=batch, cache=cache)
            except Killed:
                samples += counter.samples
                continue
        samples += counter.samples
    return samples, profile


# In batches of 6, Propagation's groups of images that are compared end within a batch.
@pytest.mark.parametrize(
    ("name", "batch"), [*((name, BATCH) for name in INSTRUMENTS | WITHOUT_PASS), ("propagation", 6)]
)
def test_a_killed_run_loses_one_batch(name, batch, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "patience", 0.0)  # every batch is worth a file here
    instrument = (INSTRUMENTS | WITHOUT_PASS)[name]
    fresh = counted([instrument], batch, cache=tmp_path / "fresh")
    model, pictures = network(), data()
    again = Counter(pictures.inputs)
    with again.watching(model):
        expected = lisse.measure(model, pictures, instrument, batch=batch, cache=tmp_path / "fresh").rows
    begin = again.samples  # finding the layers, seeing what fits, and the hash of the first batch: at every start
    views = {"stability": 3, "contraction": 2}.get(name, 1)  # forwards of a batch and its views, kept together
    moments = sorted({begin + 1, *torch.linspace(begin + 1, fresh.samples - 1, 6).int().tolist()})
    for moment in moments:
        samples, profile = killed_and_resumed(instrument, tmp_path / str(moment), moment, batch)
        lost = samples - fresh.samples - begin
        assert lost <= views * batch + REPEATED.get(name, 0), f"killed after {moment} of {fresh.samples} forwards"
        assert profile.rows == expected


# -- what a forward may do ---------------------------------------------------------------------------------------------


class Restless(nn.Module):
    """Draws from NumPy's and Python's random state, or writes its own weight, or counts its calls."""

    def __init__(self, habit: str) -> None:
        super().__init__()
        self.first, self.last, self.habit, self.calls = nn.Linear(4, 4), nn.Linear(4, 3), habit, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.habit == "draws":
            x = x + random.random() + float(np.random.rand())  # noqa: NPY002
        if self.habit == "writes":
            self.first.weight.data.mul_(1.001)
        if self.habit == "counts":
            self.calls += 1
            x = x + self.calls
        return self.last(torch.relu(self.first(x)))


def measured(habit: str) -> lisse.Profile:
    torch.manual_seed(0)
    return lisse.measure(Restless(habit), torch.ones(20, 4).cumsum(0), Sensitivity(samples=20, points=0, draws=0))


def test_no_listener_hears_of_more_than_there_is():
    events: list[lisse.progress.Event] = []
    lisse.measure(network(), data(), Sensitivity(samples=N, points=0, draws=0), batch=9, progress=events.append)
    samples = [(event.done, event.total) for event in events if event.task == "forward"]
    assert samples[-1] == (N, N)  # the last batch holds more
    assert samples[-1] == (N, N)
    assert all(done <= total for done, total in samples)


class Shortage(TorchDispatchMode):
    """Operations are counted, and the one of a number finds no memory; PyTorch says so in a plain RuntimeError."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number, self.count = number, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        if self.count == self.number:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [*INSTRUMENTS, *WITHOUT_PASS])
def test_a_shortage_in_the_middle_is_raised_and_not_remembered(name, tmp_path):
    def part(number=0, **options):
        with Shortage(number) as operations:
            profile = lisse.measure(network(), data(), (INSTRUMENTS | WITHOUT_PASS)[name], batch=BATCH, **options)
        return profile.parts[0], operations.count

    expected, count = part()
    for share in (0.5, 0.98):
        folder = tmp_path / str(share)
        try:
            results = [part(int(share * count), cache=folder)[0]]  # where a number's range was looked at, to warn
        except RuntimeError as error:
            assert "can't allocate memory" in str(error)  # noqa: PT017
            results = []
        for again in (*results, part(cache=folder)[0]):
            assert (list(map(repr, again.rows)), again.notes) == (list(map(repr, expected.rows)), expected.notes)


def test_a_forward_that_draws_from_numpy_and_python_leaves_their_state_and_repeats():
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    profile = measured("draws")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002
    random.seed(4)
    assert measured("draws").rows == profile.rows
    assert profile.provenance["deterministic"] is True


def test_a_forward_that_writes_its_own_parameters_is_told():
    with pytest.warns(UserWarning, match="writes its own parameters"):
        profile = measured("writes")
    assert any("the first is first.weight" in note for note in profile.notes)


def test_a_forward_that_gives_other_numbers_each_time_is_told():
    with pytest.warns(UserWarning, match="same samples twice"):
        profile = measured("counts")
    assert profile.provenance["deterministic"] is False
    assert any("the same call may give other numbers" in note for note in profile.notes)


def test_the_cache_knows_every_library_that_makes_numbers(tmp_path, monkeypatch):
    pieces = []
    for scipy in ("1.0", "2.0"):
        versions = {**library_versions(), "scipy": scipy}
        monkeypatch.setattr("lisse.run.run.library_versions", lambda versions=versions: versions)
        run = Run(network(), data(), cache=tmp_path)
        pieces.append(run.identity)
    assert pieces[0] != pieces[1]
    assert {"numpy", "scipy", "gudhi", "numba"} <= library_versions().keys()
