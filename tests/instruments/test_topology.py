from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import Topology, topology
from lisse.maths.homology import diagram_distance, persistence
from lisse.maths.homology.divergence import normalised_diagram, topology_divergence
from lisse.profile import Profile


class Table(nn.Module):
    """Layers with the outputs one wants: sample i comes in as (i,) and leaves as row i of a table."""

    def __init__(self, *clouds):
        super().__init__()
        self.layers = nn.ModuleList([Look(cloud, first=place == 0) for place, cloud in enumerate(clouds)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Look(nn.Module):
    """Carries the sample's number along in front of every point, worth nothing as a distance."""

    def __init__(self, cloud, first):
        super().__init__()
        self.cloud, self.first = nn.Parameter(cloud), first
        self.scale = 1e-13

    def forward(self, x):
        number = (x[:, 0] if self.first else x[:, 0] / self.scale).round().long()
        return torch.cat([number[:, None] * self.scale, self.cloud[number]], 1)


def scaled(*factors, d=1):
    """A linear network that multiplies by one number after the other."""
    layers = [nn.Linear(d, d, bias=False).double() for _ in factors]
    for layer, factor in zip(layers, factors, strict=True):
        layer.weight.data = torch.eye(d, dtype=torch.float64) * factor
    return nn.Sequential(*layers)


K = np.arange(15)
CLOUDS = {
    "B": np.stack([np.cos(K), np.sin(2 * K), 0.5 * np.cos(3 * K)], 1),
    "C": np.stack([np.sin(1.3 * K), np.cos(0.7 * K), 0.25 * np.sin(2.1 * K)], 1),
    "D": np.stack([np.cos(K), np.sin(K), np.cos(2 * K), np.sin(2 * K), 0.1 * K], 1),
    "E": np.stack([(1 + 0.1 * K) * np.cos(2 * K), (1 + 0.1 * K) * np.sin(2 * K)], 1),
}
LINE = torch.tensor([[0.0], [1.0], [5.0], [21.0], [85.0]], dtype=torch.float64)  # H0: deaths 1, 4, 16, 64
X = torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def values(profile, quantity, **at):
    rows = [row for row in profile.rows if row.quantity == quantity]
    return [row.value for row in rows if all(row.at.get(key) == value for key, value in at.items())]


def only(profile, quantity, **at):
    (row,) = [row for row in profile.rows if row.quantity == quantity and at.items() <= dict(row.at).items()]
    return row


def measured(model, data, progress=None, cache=None, seed=0, readout=None, device=None, layers=None, **options):
    return lisse.measure(
        model, data, Topology(**options), progress=progress, cache=cache, seed=seed, readout=readout, device=device,
        layers=layers, order="given",
    )  # fmt: skip


# -- closed forms ----------------------------------------------------------------------------------------------------


def test_the_reference_pipeline():
    """By hand: layers [B, D, C, E, B], H0, W1, ground l2 (docs/errata.md#topology)."""
    model = Table(*(torch.from_numpy(CLOUDS[name]) for name in "BDCEB"))
    numbers = torch.arange(15, dtype=torch.float64)[:, None]
    profile = measured(model, numbers, dims=(0, 1), ground=2, include_input=False)
    expected = [7.449853620, 8.074164531, 2.886323375, 2.38566014]
    assert values(profile, "diagram_distance", p=1, dim=0) == pytest.approx(expected, abs=1e-8)
    rates = [0.08380177, 0.64252359, 0.17346055]
    assert values(profile, "change_rate", p=1, dim=0) == pytest.approx(rates, abs=1e-8)
    assert values(profile, "cumulative_change_rate", p=1, dim=0) == pytest.approx(np.cumsum(rates).tolist(), abs=2e-8)
    assert only(profile, "topolip_change_rate", p=1, dim=0, cloud=15).value == pytest.approx(0.6425235869, abs=1e-9)
    assert only(profile, "mean_change_rate", p=1, dim=0, cloud=15).value == pytest.approx(np.mean(rates), abs=1e-8)


def test_a_network_that_scales_has_diagrams_that_scale():
    """Deaths 1, 4, 16, 64: W1 between scales s and t is 85 |s - t|, each bar matched with itself (s / t under 3)."""
    model = scaled(1.5, 1.2, 2.0, 0.5)
    profile = measured(model, LINE)
    sizes = np.cumprod([1, 1.5, 1.2, 2.0, 0.5])
    for p, whole in ((1, 85.0), (2, 4369**0.5)):
        distance = whole * np.abs(np.diff(sizes))
        assert values(profile, "diagram_distance", p=p, dim=0) == pytest.approx(distance)
        rates = np.abs(np.diff(distance)) / distance[:-1]
        assert values(profile, "change_rate", p=p, dim=0) == pytest.approx(rates)
        assert only(profile, "topolip_change_rate", p=p, dim=0).value == pytest.approx(rates.max())
        assert only(profile, "mean_change_rate", p=p, dim=0).value == pytest.approx(rates.mean())
        # points on a line have no loops
        assert values(profile, "diagram_distance", p=p, dim=1) == [0.0] * 4
        assert values(profile, "diagram_distance", p=p, dim="all") == pytest.approx(distance)
        assert math.isnan(only(profile, "topolip_change_rate", p=p, dim=1).value)
    row = only(profile, "topolip_change_rate", p=1, dim=0)
    assert (row.kind, row.n, row.layer, row.low) == ("exact", 5, None, None)
    layers = [row.layer for row in profile.rows if row.quantity == "diagram_distance" and row.at["p"] == 1]
    assert layers[:4] == ["0", "1", "2", "3"]


def test_bottleneck_and_orders_between():
    profile = measured(scaled(1.5, 1.2), LINE, p=(1.5, math.inf), dims=(0,))
    assert values(profile, "diagram_distance", p=math.inf, dim=0) == pytest.approx([32.0, 19.2])
    assert values(profile, "diagram_distance", p=1.5, dim=0)[0] == pytest.approx(
        sum((d / 2) ** 1.5 for d in (1, 4, 16, 64)) ** (1 / 1.5)
    )
    assert not values(profile, "diagram_distance", dim="all")


def test_the_ground_norm_counts_where_bars_go_to_the_diagonal():
    collapsing = scaled(1.0, 0.0, 1.0)
    for ground, share in ((math.inf, 0.5), (2, 2**-0.5), (1, 1.0)):
        profile = measured(collapsing, LINE, ground=ground, dims=(0,), p=(1,))
        assert values(profile, "diagram_distance") == pytest.approx([0.0, 85 * share, 0.0])


def test_equal_layers_have_no_rate_and_are_counted():
    profile = measured(scaled(2.0, 1.0, 1.5), LINE, dims=(0,), p=(1,))
    assert values(profile, "diagram_distance") == pytest.approx([85.0, 0.0, 85.0])
    first, second = values(profile, "change_rate")
    assert first == pytest.approx(1.0)
    assert math.isnan(second)
    assert only(profile, "topolip_change_rate").value == pytest.approx(1.0)
    assert any("1 of 2 change rates have no value" in note and "0 = 1" in note for note in profile.notes)


def test_a_rotation_in_float32_is_equal_to_rounding():
    torch.manual_seed(0)
    turn = nn.Linear(6, 6, bias=False)
    nn.init.orthogonal_(turn.weight)
    model = nn.Sequential(nn.Linear(6, 6), turn, nn.Linear(6, 6))
    profile = measured(model, torch.randn(40, 6), include_input=False, dims=(0,), p=(1,))
    distances = values(profile, "diagram_distance")
    assert distances[0] < 1e-4 < distances[1]
    assert math.isnan(values(profile, "change_rate")[0])


def test_the_head_is_a_layer_unless_it_is_left_out():
    """The change rates of the others do not move; nor does the shape at the last block."""
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    cloud = torch.randn(60, 6, generator=torch.Generator().manual_seed(2))
    both, without = (measured(model, cloud, include_output=include, dims=(0,), p=(1,)) for include in (True, False))
    assert values(without, "change_rate") == values(both, "change_rate")[:-1]
    assert values(without, "shape_distance") == values(both, "shape_distance")[:-1]
    assert len(values(without, "diagram_distance")) == 2


def test_duplicate_points_change_nothing():
    once = measured(scaled(1.5, 1.2, 2.0), LINE)
    twice = measured(scaled(1.5, 1.2, 2.0), torch.cat([LINE, LINE]))
    for ours, theirs in zip(once.rows, twice.rows, strict=True):
        assert ours.value == pytest.approx(theirs.value, nan_ok=True)


# -- properties and an outside way -----------------------------------------------------------------------------------


def network(seed=0, widths=(4, 7, 5, 6, 4, 3)):
    torch.manual_seed(seed)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers).double()


def names(profile):
    return [layer["name"] for layer in profile.provenance["layers"]]


def activations(model, name):
    """Of a Sequential on X, up to the module of that name."""
    return X if name == "input" else model[: int(name) + 1](X).detach()


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 100), st.floats(0.01, 100))
def test_rates_do_not_change_with_a_common_scale(seed, factor):
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3))).double()
    with torch.no_grad():
        for layer in model:
            layer.weight.copy_(torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)))
            seed += 1
    one, other = measured(model, X[:25]), measured(model, X[:25] * factor)
    for ours, theirs in zip(one.rows, other.rows, strict=True):
        scale = factor if ours.quantity == "diagram_distance" else 1.0
        assert theirs.value == pytest.approx(ours.value * scale, rel=1e-6, nan_ok=True)
    for name, curve in one["topology"].arrays.items():
        if name.startswith("landscape/change_rate"):
            where = dict(part.split("=") for part in name.split("/")[2:])
            dim = int(where["dim"]) if where["dim"] != "all" else "all"
            top = only(one, "topolip_change_rate", p=int(where["p"]), dim=dim, cloud=25).value
            assert curve.shape == (1, 101)
            assert curve.min() >= 0
            assert curve.max() <= top
        elif name.startswith("landscape/cumulative"):
            assert (np.diff(curve) >= 0).all()


@pytest.mark.parametrize("options", [{}, {"ground": 2.0}, {"scale": "rms"}, {"include_input": False}])
def test_equal_to_a_plain_loop(options):
    model = network()
    profile = measured(model, X, clouds=1, **options)
    layers = [activations(model, name) for name in names(profile)]
    if options.get("include_input") is False:
        layers = layers[1:]
    if options.get("scale") == "rms":
        layers = [layer / layer.shape[1] ** 0.5 for layer in layers]
    diagrams = [persistence(layer) for layer in layers]
    ground = options.get("ground", math.inf)
    for p in (1, 2):
        for dim in (0, 1, "all"):
            which = None if dim == "all" else dim
            expected = [diagram_distance(a, b, dim=which, p=p, ground=ground) for a, b in itertools.pairwise(diagrams)]
            assert values(profile, "diagram_distance", p=p, dim=dim) == pytest.approx(expected, rel=1e-9)
    arrays = profile["topology"].arrays
    first = names(profile)[1 if options.get("include_input") is False else 0]
    np.testing.assert_allclose(arrays[f"diagram/{first}/H1"], diagrams[0][1].numpy(), rtol=1e-9)


def test_the_second_homology_on_request():
    sphere = torch.nn.functional.normalize(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    profile = measured(scaled(1.2, 1.3, d=3), sphere.double(), dims=(0, 1, 2), clouds=1)
    expected = persistence(sphere.double(), dims=(2,))[2]
    pytest.importorskip("gudhi")
    assert len(expected) >= 1
    distance = values(profile, "diagram_distance", p=1, dim=2)
    assert distance[0] == pytest.approx(diagram_distance(expected, expected * 1.2, p=1))


# -- clouds and intervals --------------------------------------------------------------------------------------------


def test_disjoint_clouds_give_students_intervals():
    import scipy.stats

    model = network()
    profile = measured(model, X, samples=12, clouds=5)
    rows = [r for r in profile.rows if r.quantity == "diagram_distance" and r.at["p"] == 1 and r.at["dim"] == 0]
    row = rows[0]
    assert (row.kind, row.n, row.at["cloud"]) == ("estimate", 60, 12)
    assert any("Means over 5 disjoint clouds of 12 samples" in note for note in profile.notes)
    from lisse.maths.intervals import disjoint_clouds
    from lisse.run import Run

    chosen = disjoint_clouds(60, 12, clouds=5, generator=Run(model, Dataset("d", X), order="given").generator("clouds"))
    hidden = activations(model, names(profile)[1])
    each = [diagram_distance(persistence(X[c]), persistence(hidden[c]), dim=0, p=1) for c in chosen]
    low, high = scipy.stats.t.interval(0.95, 4, loc=np.mean(each), scale=np.std(each, ddof=1) / 5**0.5)
    assert (row.value, row.low, row.high) == pytest.approx((np.mean(each), max(low, 0), high))
    narrow = measured(model, X, samples=12, clouds=5, level=0.5).rows[0]
    assert narrow.high - narrow.low < row.high - row.low
    other = measured(model, X, samples=12, clouds=5, seed=1).rows[0]
    assert other.value != row.value


def test_the_estimate_against_the_number_of_points():
    profile = measured(network(), X, samples=20, clouds=3)
    sizes = {row.at["cloud"] for row in profile.rows if row.quantity == "topolip_change_rate"}
    assert sizes == {10, 20}
    assert {row.at["cloud"] for row in profile.rows if row.layer is not None} == {20}


def test_a_summary_that_still_moves_is_named():
    class Holes(nn.Module):
        """Far outliers of different sizes per layer: half a cloud misses some of them."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x):
            for place, layer in enumerate(self.layers):
                x = layer(x) * torch.where(x[:, :1] > 1.3 + place / 4, 100.0 * (place + 1), 1.0)
            return x

    profile = measured(Holes().double(), X, samples=60)
    assert any("Not settled" in note and "from 30 to 60 points a cloud" in note for note in profile.notes)


def test_too_few_samples_for_intervals_are_said():
    profile = measured(network(), X, samples=25)
    assert {row.kind for row in profile.rows if row.quantity != "shape_distance"} == {"exact"}
    assert any("One cloud of 25 samples" in note and "without intervals" in note for note in profile.notes)
    quick = measured(network(), X, samples=25, clouds=1)
    assert quick.notes == ()
    assert len([r for r in quick.rows if r.quantity == "topolip_change_rate"]) == 6


def test_the_cloud_is_the_same_at_every_layer():
    """An isometry at every layer leaves every distance at 0 only if the samples are the same."""
    torch.manual_seed(0)
    turns = [nn.Linear(4, 4, bias=False) for _ in range(3)]
    for turn in turns:
        nn.init.orthogonal_(turn.weight)
    profile = measured(nn.Sequential(*turns).double(), X, samples=12)
    assert max(values(profile, "diagram_distance")) < 1e-5  # the weights were made in float32


def test_landmarks():
    profile = measured(network(), X, samples=60, landmarks=20, clouds=1)
    row = profile.rows[0]
    assert row.at["landmarks"] == 20
    assert len(profile["topology"].arrays["diagram/input/H0"]) == 19
    assert any("those of 20 landmarks of each cloud of 60" in note for note in profile.notes)
    every = measured(network(), X, samples=60, landmarks=60, clouds=1)
    whole = measured(network(), X, samples=60, clouds=1)
    assert [row.value for row in every.rows] == [row.value for row in whole.rows]


# -- tokens ----------------------------------------------------------------------------------------------------------


class Padded(nn.Module):
    """Stretches padding a thousand times: padding must not show."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.a, self.b = nn.Embedding(50, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids)
        for layer in (self.a, self.b):
            x = layer(x) * torch.where(attention_mask > 0, 1.0, 1000.0)[..., None]
        return x


def text(n=40):
    mask = (torch.arange(6) < torch.randint(2, 7, (n,), generator=torch.Generator().manual_seed(1))[:, None]).long()
    ids = torch.randint(1, 50, (n, 6), generator=torch.Generator().manual_seed(2))
    return {"input_ids": ids * mask, "attention_mask": mask}


def test_text_is_read_out_without_padding():
    profile = measured(Padded(), text(), samples=40, clouds=1)
    model, data = Padded(), text()
    mask = data["attention_mask"][..., None]
    x = model.embedding(data["input_ids"])
    expected = persistence(((model.a(x) * mask).sum(1) / mask.sum(1)).detach())
    np.testing.assert_allclose(profile["topology"].arrays["diagram/a/H0"], expected[0].numpy(), rtol=1e-5)


def test_token_clouds():
    profile = measured(Padded(), text(), samples=30, clouds=3, readout="tokens")
    (row, *_) = profile.rows
    assert (row.at["cloud"], row.n, row.kind) == (30, 90, "estimate")
    assert any("30 tokens" in note for note in profile.notes)
    whole = measured(Padded(), text(), samples=10_000, clouds=1, readout="tokens")
    model, data = Padded(), text()
    valid = data["attention_mask"].bool()
    tokens = model.a(model.embedding(data["input_ids"]))[valid].detach()
    assert whole.rows[0].n == len(tokens)
    np.testing.assert_allclose(
        whole["topology"].arrays["diagram/a/H0"], persistence(tokens)[0].numpy(), rtol=1e-4, atol=1e-6
    )


def test_patches_are_tokens_too_and_pixels_are_not():
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.stem, self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 5)
            self.head = nn.Linear(5, 2)

        def forward(self, x):
            patches = x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(x), 9, 4)
            return self.head(self.b(self.a(self.stem(patches))).mean(1))

    images = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    profile = measured(Patches(), images, samples=10_000, clouds=1, readout="tokens")
    assert any(note.startswith("Left out, because they hold no tokens: input") for note in profile.notes)
    assert profile.rows[0].n == 12 * 9
    some = lisse.measure(Patches(), images, Topology(samples=20, clouds=3), readout="tokens")
    assert some.rows[0].at["cloud"] == 20


# -- work that fails, stops and goes on ------------------------------------------------------------------------------


def failing_at(model, layer, error):
    """``persistence``, but for one layer, recognised by its diameter."""
    plain, points = topology.persistence, activations(model, layer)
    diameter = float(torch.cdist(points, points).max())

    def fails(*, distances, dims):
        if abs(float(distances.max()) - diameter) < 1e-9:
            raise error
        return plain(distances=distances, dims=dims)

    return fails


def test_one_layers_failure_names_it_and_loses_no_other(monkeypatch):
    model = network()
    layers = names(measured(model, X, clouds=1))
    monkeypatch.setattr(topology, "persistence", failing_at(model, layers[2], RuntimeError("no diagram")))
    profile = measured(model, X, clouds=1)
    assert any(f"No diagram at {layers[2]} (RuntimeError: no diagram)" in note for note in profile.notes)
    at = {"p": 1, "dim": 0, "cloud": 60}
    for quantity, indices in (("diagram_distance", [1, 4, 5]), ("change_rate", [5]), ("cumulative_change_rate", [])):
        found = [row.layer for row in profile.rows if row.quantity == quantity and row.at == at]
        assert found == [layers[index] for index in indices]
    assert not values(profile, "topolip_change_rate")

    def never(*, distances, dims):
        raise RuntimeError("none")

    monkeypatch.setattr(topology, "persistence", never)
    with pytest.raises(RuntimeError, match="none"):
        measured(model, X, clouds=1)


@pytest.mark.parametrize("error", [MemoryError("too large"), OSError(28, "No space left on device")])
def test_a_shortage_of_memory_or_room_is_raised_and_not_remembered(tmp_path, monkeypatch, error):
    model = network()
    expected = measured(model, X, clouds=1)
    with monkeypatch.context() as patch:
        patch.setattr(topology, "persistence", failing_at(model, names(expected)[2], error))
        with pytest.raises(type(error), match=str(error.args[-1])):
            measured(model, X, clouds=1, cache=tmp_path)
    same(measured(model, X, clouds=1, cache=tmp_path), expected)


def test_a_part_with_failures_is_not_remembered(tmp_path, monkeypatch):
    model = network()
    expected = measured(model, X, clouds=1)
    with monkeypatch.context() as patch:
        patch.setattr(topology, "persistence", failing_at(model, names(expected)[2], RuntimeError("out of memory")))
        assert len(measured(model, X, clouds=1, cache=tmp_path).rows) < len(expected.rows)
    same(measured(model, X, clouds=1, cache=tmp_path), expected)


def test_an_interrupted_run_goes_on_from_the_layers_it_has(tmp_path, monkeypatch):
    plain, made = topology.persistence, []

    def counted(*, distances, dims):
        made.append(len(distances))
        return plain(distances=distances, dims=dims)

    def stop(event):
        if event.task == "topology: diagrams" and event.done == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(topology, "persistence", counted)
    with pytest.raises(KeyboardInterrupt):
        measured(network(), X, clouds=1, cache=tmp_path, progress=stop)
    made.clear()
    profile = measured(network(), X, clouds=1, cache=tmp_path)
    assert len(made) == 3  # of six layers, three were finished
    same(profile, measured(network(), X, clouds=1))
    made.clear()
    same(measured(network(), X, clouds=1, cache=tmp_path), profile)
    assert not made


def same(one, other):
    assert one.notes == other.notes
    for ours, theirs in zip(one.rows, other.rows, strict=True):
        assert repr(ours) == repr(theirs)  # NaN is NaN
    for ours, theirs in zip(one.parts, other.parts, strict=True):
        assert list(ours.arrays) == list(theirs.arrays)
        for name, array in ours.arrays.items():
            np.testing.assert_array_equal(array, theirs.arrays[name])


def test_progress_is_told_per_layer():
    events = []
    measured(network(), X, clouds=1, progress=events.append)
    done = [(event.done, event.total) for event in events if event.task == "topology: diagrams"]
    assert done == [(place, 6) for place in range(7)]
    assert [event.done for event in events if event.task == "topology: distances"] == list(range(6))


def test_threads_change_nothing():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = measured(network(), X, samples=20)
        torch.set_num_threads(3)
        three = measured(network(), X, samples=20)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    same(one, three)


def test_a_small_memory_gives_the_same_numbers():
    one = measured(network(), X, clouds=1)
    other = lisse.measure(network(), X, Topology(clouds=1), memory="2kB", batch=7, order="given")
    for ours, theirs in zip(one.rows, other.rows, strict=True):
        assert ours.value == pytest.approx(theirs.value, rel=1e-9)


def test_the_profile_keeps_everything(tmp_path):
    profile = measured(network(), X, samples=20, p=(1, math.inf), landmarks=15)
    again = Profile.load(profile.save(tmp_path / "a.profile"))
    assert again.rows == profile.rows
    assert again["topology"].options["p"] == [1, math.inf]
    assert again["topology"].options["ground"] == math.inf
    for name, array in profile["topology"].arrays.items():
        np.testing.assert_array_equal(again["topology"].arrays[name], array)
    assert profile.provenance["seed"] == 0


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": (0.5,)}, r"^Topology: p must be at least 1 \(inf: bottleneck\), got \(0\.5,\)\.$"),
        ({"p": (math.nan,)}, r"^Topology: p must be at least 1"),
        ({"p": ()}, r"^Topology: p must be different numbers, such as \(1,\), got \(\)\.$"),
        ({"p": (1, 1)}, r"^Topology: p must be different numbers"),
        ({"p": 2}, r"^Topology: p must be different numbers, such as \(1,\), got 2\.$"),
        ({"dims": (0, 3)}, r"^Topology: dims must be some of 0, 1 and 2, got \(0, 3\)\.$"),
        ({"dims": "01"}, r"^Topology: dims must be different numbers"),
        ({"ground": 0.5}, r"^Topology: ground must be a norm's order, at least 1 \(or inf\), got 0\.5\.$"),
        ({"ground": "l2"}, r"^Topology: ground must be a norm's order, at least 1 \(or inf\), got 'l2'\.$"),
        ({"scale": "max"}, r"^Topology: scale must be one of rms, got 'max'\.$"),
        ({"samples": 1}, r"^Topology: samples must be a whole number of at least 2, got 1\.$"),
        ({"samples": 2.5}, r"^Topology: samples must be a whole number of at least 2, got 2\.5\.$"),
        ({"clouds": 0}, r"^Topology: clouds must be a whole number of at least 1, got 0\.$"),
        ({"landmarks": 1}, r"^Topology: landmarks must be a whole number of at least 2, got 1\.$"),
        ({"level": 1.0}, r"^Topology: level must lie in \(0, 1\), got 1\.0\.$"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Topology(**options)


def test_what_does_not_fit():
    single = measured(network(), X[:1])
    assert single.notes == ("Not measured: a cloud needs at least 2 samples, and Tensor has 1.",)
    shallow = measured(nn.Linear(4, 3).double(), X)
    assert shallow.notes[0].startswith("Not measured: a change rate needs at least 3 layers, the input counted, and")
    assert not shallow.rows


def test_options_are_plain_and_frozen():
    assert Topology(p=[1, 2]) == Topology()
    assert hash(Topology()) == hash(Topology(dims=[0, 1]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Topology().samples = 3


def test_a_summary_that_moves_in_every_cloud_is_told_from_one_that_only_varies():
    from lisse.instruments.topology.rows import LayerDistances, unsettled

    def table(rates, size):
        # WD = 1 and then 1 + r: the only rate is r.
        values = torch.stack([torch.ones(len(rates)), 1 + torch.tensor(rates)], 1).double()
        return [LayerDistances(values, torch.zeros_like(values), {"p": 1, "dim": 0, "cloud": size})]

    steady = [1.0, 2.0, 4.0, 8.0, 16.0]  # clouds differ a lot, yet each loses as much
    moved = unsettled(table([r + 2 for r in steady], 50), table(steady, 100), 0.95)
    assert len(moved) == 1
    assert moved[0].startswith("Not settled: 2 of 2 summaries still move by more than 10% from 50 to 100 points")
    varied = unsettled(table([9.0, 1.0, 1.0, 4.0, 2.0], 50), table([1.0, 2.0, 2.0, 3.0, 4.0], 100), 0.95)
    assert len(varied) == 1
    assert varied[0].startswith("Perhaps not settled: 2 of 2 summaries")
    assert unsettled(table(steady, 50), table(steady, 100), 0.95) == []
    assert unsettled([], [], 0.95) == []
    assert len(unsettled(table([2.0], 50), table([1.0], 100), 0.95)) == 1


# -- shapes in units of their spread -----------------------------------------------------------------------------------


def test_turning_shifting_and_scaling_leave_the_shape_alone():
    turn, _ = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))
    model = nn.Sequential(*(nn.Linear(4, 4).double() for _ in range(3)))
    for layer, factor in zip(model, (0.01, 300.0, 2.0), strict=True):
        layer.weight.data, layer.bias.data = factor * turn, torch.full((4,), 7.0, dtype=torch.float64)
    profile = measured(model, X, divergence="all")
    assert len(values(profile, "shape_distance")) == 3 * 6
    assert max(values(profile, "shape_distance")) < 1e-9
    assert values(profile, "topology_divergence") == [0.0] * 3


@pytest.mark.parametrize(("p", "dims"), [((1, 2), (0, 1)), ((2,), (1,)), ((math.inf, 3), (0,))])
def test_shapes_are_compared_with_that_of_the_input(p, dims):
    model, samples = network(), X[:24]  # one cloud, in the order of the data
    profile = measured(model, samples, p=p, dims=dims, divergence="last")
    with torch.no_grad():
        activations = {"1": model[:2](samples), "7": model[:8](samples), "9": model(samples)}
    for layer, cloud in activations.items():
        for order in p:
            rows = [row for row in profile.rows if row.quantity == "shape_distance" and row.layer == layer]
            last = [row for row in rows if row.at["p"] == order][-1]
            assert (last.kind, last.n, last.low, last.at["cloud"]) == ("exact", 24, None, 24)
            assert last.at["dim"] == ("all" if len(dims) > 1 else dims[0])
            expected = diagram_distance(
                *(normalised_diagram(points, dims=dims) for points in (samples, cloud)), p=order
            )
            assert last.value == pytest.approx(expected, rel=1e-9)
    (divergence,) = [row for row in profile.rows if row.quantity == "topology_divergence"]
    assert divergence.layer == "9"  # a layer with its activation behind it is no head
    assert divergence.value == pytest.approx(topology_divergence(samples, activations["9"]).value, rel=1e-9)
    # The headline's number: W1, or W2, or the first order; all dimensions.
    (array,) = profile["topology"].arrays["clouds/shape_distance"]
    first = [row for row in profile.rows if row.quantity == "shape_distance" and row.layer == "9"]
    assert array == next(row.value for row in first if row.at["p"] == p[0] and row.at["dim"] in ("all", dims[0]) and (
        len(dims) == 1 or row.at["dim"] == "all"))  # fmt: skip


def test_a_shape_does_not_depend_on_the_layers_between():
    everything = measured(network(), X)
    few = measured(network(), X, layers=["1", "5", "9"])  # without the input, too
    at = {"p": 1, "dim": "all"}
    assert values(few, "shape_distance", **at) == pytest.approx(values(everything, "shape_distance", **at)[::2])
    stem = measured(network(), X, include_input=False)  # from the first layer then
    assert len(values(stem, "shape_distance", **at)) == 4
    assert values(stem, "shape_distance", **at) != values(everything, "shape_distance", **at)[1:]


def test_shapes_rest_on_twelve_clouds():
    data = torch.randn(900, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    profile = measured(network(), data, samples=60, clouds=5, dims=(0,))
    (row,) = [row for row in profile.rows if row.quantity == "shape_distance" and row.layer == "9" and row.at["p"] == 1]
    assert (row.kind, row.n, row.at["cloud"]) == ("estimate", 300, 25)
    array = profile["topology"].arrays["clouds/shape_distance"]
    assert array.shape == (12,)
    assert row.value == pytest.approx(array.mean())
    assert row.low < row.value < row.high


def test_a_layer_that_is_a_point_has_no_shape():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(3, 3), nn.Tanh()).double()
    model[1].weight.data.zero_()
    profile = measured(model, X)
    at = {"p": 1, "dim": "all"}
    shape = values(profile, "shape_distance", **at)
    assert math.isfinite(shape[0])
    assert all(map(math.isnan, shape[1:]))
