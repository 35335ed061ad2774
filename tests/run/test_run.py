from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from lisse import Run, taps
from lisse.data import Dataset, as_dataset
from lisse.data.tokens import encoded
from lisse.instruments import Sensitivity
from lisse.profile import Quantity, Row, tokenizers_apart
from lisse.progress import Event
from lisse.run import Instrument, profile_of
from lisse.run.fingerprint import model_fingerprint


@dataclass(frozen=True)
class Count(Instrument):
    """How many samples there are."""

    QUANTITIES = (Quantity("samples", "samples", "How many samples there are."),)

    def part(self, run):
        return self.part_of([Row("samples", float(len(run)), "exact", len(run))])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).eval()


def data(n: int = 250) -> Dataset:
    return Dataset("d", torch.rand(n, 6, generator=torch.Generator().manual_seed(1)))


@dataclass(frozen=True)
class Option:
    value: int = 0


def count_forwards(model: nn.Module) -> list[int]:
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    return seen


def test_the_recording_is_grown_and_never_repeated():
    model = network()
    run = Run(model, data(), batch=40, order="given")
    seen = count_forwards(model)
    few = run.recording(50)["2"]
    assert (len(few), seen) == (50, [40, 40])
    more = run.recording(130)["2"]
    assert (len(more), seen) == (130, [40] * 4)
    assert len(run.recording()["2"]) == 250
    assert sum(seen) == 250
    assert torch.equal(few, more[:50])
    with torch.no_grad():
        assert torch.equal(more, torch.cat([model(part) for part in data().inputs[:160].split(40)])[:130])


def test_a_recording_asked_for_early_is_not_changed_by_a_later_one():
    run = Run(network(), data(), batch=40)
    early = run.recording(30)
    run.recording(250)["2"]
    assert early.samples == 30
    assert len(early["2"]) == 30


@pytest.mark.parametrize("batch", [1, 7, 100, 600])
def test_draws_do_not_depend_on_the_batch_size(batch):
    run = Run(network(), data(600), batch=batch, seed=5)
    draws = torch.cat([run.draw("noise", b.start, len(b.inputs), (2, 3)) for b in run.batches()])
    expected = Run(network(), data(600), batch=100, seed=5).draw("noise", 0, 600, (2, 3))
    assert torch.equal(draws, expected)


@pytest.mark.parametrize("law", ["normal", "uniform"])
@pytest.mark.parametrize("shape", [(), (3,), (197, 64)])
def test_a_few_draws_are_the_first_of_many(law, shape):
    many = Run(network(), data(600)).draw("a", 0, 300, shape, law=law)
    few = Run(network(), data(600))
    for start, stop in ((0, 3), (3, 40), (40, 41), (10, 20), (250, 300)):
        assert torch.equal(few.draw("a", start, stop - start, shape, law=law), many[start:stop])


def test_draws_depend_on_seed_key_and_law():
    run = Run(network(), data())
    noise = run.draw("a", 0, 200, (50,))
    assert torch.equal(noise, run.draw("a", 0, 200, (50,)))
    assert not torch.equal(noise, run.draw("b", 0, 200, (50,)))
    assert not torch.equal(noise, Run(network(), data(), seed=1).draw("a", 0, 200, (50,)))
    # 10,000 numbers: the mean's standard error is 0.01 (normal) and 0.0029 (uniform); five of them
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 1) < 0.05
    uniform = run.draw("a", 0, 200, (50,), law="uniform")
    assert abs(uniform.mean() - 0.5) < 0.015
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert run.draw("a", 3, 0, (2,)).shape == (0, 2)


def test_draws_leave_the_global_generator_alone():
    run = Run(network(), data())
    state = torch.get_rng_state()
    run.draw("a", 0, 10, (3,))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("batch", [30, 100])
def test_views_are_reduced_against_the_clean_pass(batch):
    model, samples = network(), data()
    run = Run(model, samples, batch=batch, seed=2, order="given")

    def make(batch):
        noise = run.draw("noise", batch.start, len(batch.inputs), (6,))
        return {"clean": batch.inputs, "noisy": batch.inputs + noise}

    found = run.views(120, make, lambda tap, clean, view: (view - clean).flatten(1).pow(2).sum(1))
    assert list(found) == ["clean", "noisy"]
    assert list(found["noisy"]) == run.taps.names
    assert all(not rows.any() for rows in found["clean"].values())
    noise = run.draw("noise", 0, 120, (6,))
    torch.testing.assert_close(found["noisy"]["input"], noise.pow(2).sum(1), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        moved = model(samples.inputs[:120] + noise) - model(samples.inputs[:120])
    torch.testing.assert_close(found["noisy"]["2"], moved.pow(2).sum(1), rtol=1e-4, atol=1e-6)


def test_views_see_the_clean_activation_before_it_is_overwritten():
    torch.manual_seed(0)
    run = Run(nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True)), data(), layers=["0"])
    found = run.views(
        50,
        lambda batch: {"same": batch.inputs},
        lambda tap, clean, view: torch.stack([clean.min(1).values, (view - clean).abs().sum(1)], 1),
    )
    assert (found["same"]["0"][:, 0] < 0).any()
    assert not found["same"]["0"][:, 1].any()


def test_views_may_come_one_at_a_time_and_at_chosen_layers():
    run = Run(network(), data(), batch=50)

    def make(batch):
        for scale in (1.0, 2.0):
            yield f"x{scale:g}", batch.inputs * scale

    found = run.views(60, make, lambda tap, clean, view: (view / clean).flatten(1).mean(1), layers=["input"])
    assert list(found["x2"]) == ["input"]
    torch.testing.assert_close(found["x2"]["input"], torch.full((60,), 2.0))


def test_views_may_start_further_on():
    run = Run(network(), data(), batch=20)

    def make(batch):
        return {"moved": batch.inputs + run.draw("noise", batch.start, len(batch.inputs), (6,))}

    def reduce(tap, clean, view):
        return (view - clean).flatten(1).square().sum(1)

    whole = run.views(100, make, reduce)["moved"]
    rest = run.views(100, make, reduce, start=40)["moved"]
    assert len(rest["2"]) == 60
    assert all(torch.equal(whole[name][40:], rest[name]) for name in whole)


def test_views_against_another_reference():
    model, samples = network(), data(50)
    run = Run(model, samples, batch=20, order="given")
    found = run.views(
        50,
        lambda batch: {"same": batch.inputs},
        lambda tap, clean, view: (view - clean).flatten(1).square().sum(1),
        reference=lambda batch: batch.inputs * 2,
    )
    torch.testing.assert_close(found["same"]["input"], samples.inputs.square().sum(1))
    with torch.no_grad():
        moved = model(samples.inputs) - model(samples.inputs * 2)
    torch.testing.assert_close(found["same"]["2"], moved.square().sum(1), rtol=1e-4, atol=1e-6)


def test_views_show_the_clean_activations_once_with_their_place():
    run = Run(network(), data(), batch=20, order="given")
    seen: list[tuple[str, int]] = []
    kept: list[torch.Tensor] = []

    def look(tap, clean, start):
        seen.append((tap.name, start))
        if tap.name == "input":
            kept.append(clean.clone())

    run.views(
        70,
        lambda batch: {"a": batch.inputs, "b": batch.inputs + 1},
        lambda tap, clean, view: clean[:, 0],
        start=20,
        look=look,
    )
    assert seen == [(name, start) for start in (20, 40, 60) for name in run.taps.names]
    assert torch.equal(torch.cat(kept), data().inputs[20:70])


def test_a_random_network_gives_every_view_the_same_randomness():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x):
            return self.a(x) + torch.randn_like(x)

    run = Run(Noisy(), data())
    found = run.views(None, lambda batch: {"same": batch.inputs}, lambda tap, clean, view: (view - clean).abs().sum(1))
    assert not found["same"]["output"].any()


def test_the_clean_pass_shows_the_samples_that_were_asked_for_and_no_more():
    model = network()
    run = Run(model, data(), batch=40)
    run.share([50, 50])
    seen, sizes = count_forwards(model), []
    for batch in run.clean(50, [run.taps[-1]], lambda tap, value: sizes.append(len(value))):
        assert sizes[-1] == batch.size
    assert (sizes, seen) == ([40, 10], [40, 40])  # the recording's batches are whole


def test_a_clean_pass_that_goes_on_also_goes_on_recording(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "patience", 0.0)
    for start in (0, 80):  # the first is interrupted behind two batches
        model = network()
        run = Run(model, data(160), batch=40, cache=tmp_path)
        run.share([160, 160])
        run.identity  # noqa: B018  # looks at a first batch
        seen = count_forwards(model)
        for batch in run.clean(160, [run.taps[-1]], lambda tap, value: None, start=start):
            if batch.start == 40:
                break
        assert seen == [40, 40]
    assert torch.equal(run.recording()["2"], Run(network(), data(160), batch=40).recording()["2"])
    assert seen == [40, 40]


def test_work_over_samples_may_look_closer_at_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "patience", 0.0)
    steps = []

    def make(start, stop):
        steps.append(start)
        rows = torch.arange(start, stop)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return {"all": rows, **({"few": rows[:5]} if start == 0 else {})}

    run = Run(network(), data(100), batch=40, cache=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.blocks(Option(), "work", 100, make, task="work")
    tensors = run.blocks(Option(), "work", 100, make, task="work")
    assert (tensors["all"].tolist(), tensors["few"].tolist()) == (list(range(100)), list(range(5)))
    assert steps == [0, 40, 80, 80]


def test_what_two_instruments_ask_is_found_once():
    run, answers = Run(network(), data()), iter((1, 2))
    assert [run.once("a", lambda: next(answers)), run.once("a", lambda: next(answers))] == [1, 1]
    assert run.once("b", lambda: next(answers)) == 2


def test_pieces_are_kept_and_found_again(tmp_path):
    made = []

    def make():
        made.append(1)
        return {"x": torch.arange(3.0), "flag": torch.tensor([True, False])}

    def fresh(**options):
        return Run(network(), data(), cache=tmp_path, **options)

    first = fresh().piece(Option(), "a", make)
    second = fresh().piece(Option(), "a", make)
    assert len(made) == 1
    assert all(torch.equal(first[key], second[key]) and first[key].dtype == second[key].dtype for key in first)
    for number, run_and_key in enumerate(
        [
            (fresh(), Option(), "b"),
            (fresh(), Option(1), "a"),
            (fresh(seed=1), Option(), "a"),
            (fresh(batch=7), Option(), "a"),
            (fresh(layers=["2"]), Option(), "a"),
            (fresh(statistics="batch"), Option(), "a"),
            (Run(network(), data(249), cache=tmp_path), Option(), "a"),
        ],
        start=2,
    ):
        run, option, key = run_and_key
        run.piece(option, key, make)
        assert len(made) == number
    Run(network(), data()).piece(Option(), "a", make)  # no cache: made every time
    assert len(made) == number + 1


def test_pieces_of_any_precision(tmp_path):
    run = Run(network(), data(), cache=tmp_path)
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64):
        for _ in range(2):
            found = run.piece(Option(), str(dtype), lambda dtype=dtype: {"x": torch.ones(3, dtype=dtype)})
            assert found["x"].tolist() == [1, 1, 1]


def test_a_damaged_piece_is_made_again_and_said(tmp_path):
    events: list[Event] = []
    run = Run(network(), data(), cache=tmp_path, progress=events.append)
    run.piece(Option(), "a", lambda: {"x": torch.ones(2)})
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    path.write_bytes(path.read_bytes()[:-40])
    again = run.piece(Option(), "a", lambda: {"x": torch.zeros(2)})
    assert again["x"].tolist() == [0, 0]
    assert any("damaged and is made again" in event.say for event in events)
    assert run.piece(Option(), "a", lambda: {"x": torch.ones(2)})["x"].tolist() == [0, 0]


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.linear, self.scale = nn.Linear(3, 3), scale

    def forward(self, x):
        return self.linear(x) * self.scale


def test_every_change_of_a_model_changes_its_fingerprint():
    def made(scale=1.0, touch=lambda model: None):
        torch.manual_seed(0)
        model = nn.Sequential(Scaled(scale), nn.BatchNorm1d(3), nn.Dropout(0.1)).eval()
        touch(model)
        return model

    base = model_fingerprint(made())
    assert model_fingerprint(made()) == base
    assert model_fingerprint(made().train()) == base  # the mode is the run's business

    def weight(model):
        model[0].linear.weight.data[0, 0] += 1e-6

    def buffer(model):
        model[1].running_mean[0] = 1e-6

    def option(model):
        model[2].p = 0.2

    def structure(model):
        model[2] = nn.Identity()

    def frozen_epsilon(model):
        model[1].eps = 1e-4

    changed = [model_fingerprint(made(touch=touch)) for touch in (weight, buffer, option, structure, frozen_epsilon)]
    changed.append(model_fingerprint(made(scale=2.0)))  # a plain attribute, in no weight and in no printed form
    assert len({base, *changed}) == 7


def test_a_patched_forward_changes_the_runs_identity():
    model = network()
    before = Run(model, data()).identity
    inner = model[0].forward
    model[0].forward = lambda x: inner(x) * 2  # no attribute, no weight, no source file shows this
    assert Run(model, data()).identity != before
    del model[0].forward
    assert Run(model, data()).identity == before


SCALE = 1.0


class Global(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.limit = nn.Linear(6, 3), torch.tensor(0.1)

    def forward(self, x):
        y = self.linear(x)
        return torch.where(y > self.limit, y * SCALE, y)


def test_what_no_source_shows_is_seen_on_the_first_batch(monkeypatch):
    """A global, a tensor attribute and a hook that act on few samples only: not on the two that find the layers."""

    def identity(touch=lambda model: None):
        torch.manual_seed(0)
        model = Global()
        touch(model)
        return Run(model, data()).identity

    def limit(model):
        model.limit = torch.tensor(0.2)

    def hook(scale):
        return lambda model: model.register_forward_hook(lambda m, i, o: torch.where(o > 0.1, o * scale, o))

    base = identity()
    assert identity() == base
    found = {base, identity(limit), identity(hook(2.0)), identity(hook(3.0))}
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    found.add(identity())
    assert len(found) == 5


def test_draws_do_not_depend_on_the_default_dtype():
    run = Run(network(), data())
    before = run.draw("a", 0, 5, (3,))
    torch.set_default_dtype(torch.float64)
    try:
        after = Run(network().float(), data()).draw("a", 0, 5, (3,))
    finally:
        torch.set_default_dtype(torch.float32)
    assert after.dtype == torch.float32
    assert torch.equal(before, after)


class Tokens(nn.Module):
    """Every token looks at the valid ones."""

    def __init__(self):
        super().__init__()
        self.embedding, self.a, self.b = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, input_ids, attention_mask=None):
        x = self.embedding(input_ids)
        scores = x @ x.mT
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None] == 0, -torch.inf)
        return self.b(torch.relu(self.a(scores.softmax(-1) @ x)))


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])


@pytest.mark.parametrize(
    "inputs",
    [
        {"input_ids": IDS, "attention_mask": MASK},
        {"input_ids": IDS, "attention_mask": torch.ones_like(MASK)},
        {"input_ids": IDS},
        IDS,
    ],
    ids=["padded", "of one length", "without a mask", "ids alone"],
)
def test_text_is_read_by_its_mean_whatever_its_lengths(inputs):
    run = Run(Tokens(), as_dataset(inputs))
    assert run.readout == "mean"
    assert run.recording()["b"].shape == (2, 4)
    assert Run(Tokens(), as_dataset(inputs), readout="cls").readout == "cls"


def test_images_and_vectors_are_taken_whole():
    assert Run(network(), data()).readout is None
    pixels = Dataset("bytes", torch.zeros(3, 12, dtype=torch.uint8))
    assert not pixels.is_text
    assert not Dataset("pictures", torch.zeros(3, 1, 4, 4, dtype=torch.uint8)).is_text
    assert not Dataset("pictures", {"pixel_values": torch.zeros(3, 1, 4, 4)}).is_text


def test_padding_alone_changes_no_number():
    """Texts of one length and the same texts with padding behind them: the same means, up to rounding."""
    torch.manual_seed(0)
    model = Tokens()
    pad = torch.nn.functional.pad
    short = Run(model, as_dataset({"input_ids": IDS, "attention_mask": torch.ones_like(IDS)})).recording()
    wide = {"input_ids": pad(IDS, (0, 5)), "attention_mask": pad(torch.ones_like(IDS), (0, 5))}
    padded = Run(model, as_dataset(wide)).recording()
    for layer in short:
        torch.testing.assert_close(short[layer], padded[layer], msg=layer)


def test_another_tokenizer_is_the_same_data_and_another_run():
    torch.manual_seed(0)
    model = Tokens()

    def run(last, **options):
        ids = {"a": [1, 2], "b": [1, last]}
        return Run(model, encoded("t", ["a", "a", "b"], ids.__getitem__, **options), batch=2)

    first, second, again = run(3), run(4), run(3, length=64)  # they differ behind the first batch
    assert first.fingerprints["data"] == second.fingerprints["data"]
    assert first.identity != second.identity, "a cache must not mix them up"
    assert first.identity == again.identity, "no text is longer"
    short, other, alike = (profile_of(run, [Count()]).provenance["data"] for run in (first, second, again))
    assert short["fingerprint"] == other["fingerprint"]
    assert short["tokenizer"]["name"] == "dict.__getitem__, at most 128 tokens"
    assert tokenizers_apart(short, other) == (short["tokenizer"]["name"], other["tokenizer"]["name"])
    assert tokenizers_apart(short, alike) is None
    vectors = profile_of(Run(network(), data()), [Count()]).provenance["data"]
    assert "tokenizer" not in vectors
    assert tokenizers_apart(short, vectors) is None, "the data differ, which says more"


def test_bad_arguments():
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        Run(network(), data(), batch=0)
    with pytest.raises(ValueError, match="layers must match"):
        Run(network(), data(), layers=["nope"])
    with pytest.raises(ValueError, match="layers must name at least one layer, got none"):
        Run(network(), data(), layers=[])
    with pytest.raises(TypeError, match="layers must be names or globs, got 3"):
        Run(network(), data(), layers=3)
    with pytest.raises(ValueError, match="readout must be one of cls, mean, tokens or None, got 'men'"):
        Run(network(), data(), readout="men")
    with pytest.raises(ValueError, match="order must be one of drawn, given, got 'sorted'"):
        Run(network(), data(), order="sorted")
    with pytest.raises(TypeError, match="seed must be an integer, got 'a'"):
        Run(network(), data(), seed="a")
    with pytest.raises(TypeError, match="progress must be a function of an Event, got 3"):
        Run(network(), data(), progress=3)
    with pytest.raises(RuntimeError, match="must run on two and on three samples of the data, got RuntimeError: mat1"):
        Run(nn.Linear(7, 2), data())
    assert Run(network(), data(), seed=2**80).recording(10)["2"].shape == (10, 3)


def test_a_last_batch_of_one_has_no_statistics():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    run = Run(model, data(41), batch=40, statistics="batch")
    assert len(run.recording(40)["1"]) == 40
    with pytest.raises(ValueError, match="at least 2 samples with statistics='batch', got 1 at sample 40"):
        run.recording(41)["1"]


def test_the_model_is_left_as_it_was():
    model = network().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    run = Run(model, data())
    run.recording()["2"]
    run.views(20, lambda batch: {"v": batch.inputs}, lambda tap, clean, view: clean.sum(1))
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert taps.plain(model) is model
    assert not any(module._forward_hooks for module in model.modules())


def test_layers_numbers_are_kept_by_function_and_by_samples(tmp_path):
    """Two functions without a name, or one on more samples, are not taken for each other in a cache."""
    instrument = Sensitivity()
    for _ in range(2):  # made, then found again
        run = Run(network(), data(), batch=40, cache=tmp_path)
        plain = run.per_layer(instrument, lambda x: x.flatten(1).mean(1), n=50)
        large = run.per_layer(instrument, lambda x: 1000 * x.flatten(1).mean(1), n=50)
        more = run.per_layer(instrument, lambda x: x.flatten(1).mean(1), n=60)
        assert torch.allclose(large["1"], 1000 * plain["1"])
        assert (len(plain["1"]), len(more["1"])) == (50, 60)


def test_the_last_block_is_never_the_head():
    assert Run(network(), data()).last_block.name == "1"
    assert Run(network(), data(), layers=["input", "2"]).last_block is None
    assert Run(network(), data(), layers=["0", "2"]).last_block.name == "0"
