import copy
import csv
import dataclasses
import functools
import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lisse.data import Dataset
from lisse.instruments import Topology
from lisse.maths.change_rate import change_rate
from lisse.maths.corruption import corrupt
from lisse.models import load_model
from lisse.networks.zoo import seeded
from lisse.profile import Part, Profile, Row
from lisse.progress import Event
from lisse.training import Recipe
from lisse_experiments import Task, form, study
from lisse_experiments.steps import ALL_STEPS
from lisse_experiments.topolip import networks, run, tables
from lisse_experiments.topolip.accuracy import ALL, CORRUPTIONS, SEVERITIES, CorruptedAccuracy
from lisse_experiments.topolip.correlation import rank_correlation, ranks, spearman
from lisse_experiments.topolip.inputs import NormalisedInput
from lisse_experiments.topolip.result import Result, over_seeds, stored_result


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    """Few resamples, except where the numbers are compared with committed ones."""
    if request.node.get_closest_marker("slow") is None:
        few = functools.partial(rank_correlation, resamples=100, permutations=200)
        monkeypatch.setattr(tables, "rank_correlation", few)


# --- correlation ----------------------------------------------------------------------------------------------------


def test_ranks_share_ties():
    assert ranks(torch.tensor([10.0, 30.0, 10.0, 20.0])).tolist() == [1.5, 4.0, 1.5, 3.0]


def test_spearman_of_monotone_reversed_and_constant():
    x = torch.tensor([1.0, 2.0, 5.0, 9.0])
    assert spearman(x, x**3) == 1.0
    assert spearman(x, -x) == -1.0
    assert spearman(x, torch.ones(4)) == 0.0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=4, max_size=12))
def test_spearman_is_scipys(pairs):
    from scipy.stats import spearmanr

    x, y = (torch.tensor([float(pair[side]) for pair in pairs]) for side in (0, 1))
    ours = float(spearman(x, y))
    constant = x.min() == x.max() or y.min() == y.max()
    assert ours == pytest.approx(0.0 if constant else float(spearmanr(x, y).statistic), abs=1e-12)


def test_the_p_value_is_the_share_of_all_permutations():
    import itertools

    x, y = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 3.0, 2.0, 5.0, 4.0]
    observed = abs(float(spearman(torch.tensor(x), torch.tensor(y))))
    every = [abs(float(spearman(torch.tensor(x), torch.tensor(p)))) for p in itertools.permutations(y)]
    exact = np.mean([value >= observed - 1e-12 for value in every])
    found = rank_correlation(x, y, permutations=20_000)
    assert found.p_value == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000))
    assert found.value == pytest.approx(0.8)
    assert found.low <= found.value <= found.high


def test_the_interval_is_seeded_and_narrows_with_networks():
    few, many = list(range(8)), list(range(64))
    noisy = {n: [x + 3 * math.sin(7.3 * x) for x in range(n)] for n in (8, 64)}
    one = rank_correlation(few, noisy[8], seed=1, resamples=300, permutations=100)
    assert one == rank_correlation(few, noisy[8], seed=1, resamples=300, permutations=100)
    assert one != rank_correlation(few, noisy[8], seed=2, resamples=300, permutations=100)
    wide = rank_correlation(many, noisy[64], resamples=300, permutations=100)
    assert wide.high - wide.low < one.high - one.low


def test_correlation_leaves_out_what_has_no_value_and_refuses_uneven_lists():
    nan = math.nan
    found = rank_correlation([1.0, 2.0, nan, 3.0, 4.0], [1.0, 2.0, 9.0, 3.0, 4.0], resamples=100, permutations=100)
    assert (found.value, found.n) == (1.0, 4)
    assert math.isnan(rank_correlation([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).value)
    with pytest.raises(ValueError, match="x and y must have one value per network, got 2 and 1"):
        rank_correlation([1.0, 2.0], [1.0])


# --- accuracy -------------------------------------------------------------------------------------------------------


class Brightness(nn.Module):
    """Class 1 where the mean pixel is above a half."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Identity(), nn.Linear(64, 64), nn.Linear(64, 64))
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        self.blocks(x.flatten(1))
        mean = x.mean((1, 2, 3)) * self.weight
        return torch.stack([0.5 - mean, mean - 0.5], 1)


@pytest.fixture(scope="module")
def pictures():
    generator = torch.Generator().manual_seed(0)
    images = (
        torch.rand(60, 1, 8, 8, generator=generator) * 0.3 + torch.linspace(0.2, 0.5, 60).view(-1, 1, 1, 1)
    ).clamp(0, 1)
    return Dataset("pictures", images, (images.mean((1, 2, 3)) > 0.5).long())


def test_accuracy_is_that_of_the_corrupted_images(pictures):
    instrument = CorruptedAccuracy(corruptions=("gaussian_noise", "pixelate"))
    profile = instrument.measure(Brightness(), pictures, batch=7)
    (part,) = profile
    rows = {(row.quantity, row.at["corruption"], row.at.get("severity")): row for row in part.rows}
    assert rows["accuracy", "clean", 0].value == 1.0
    assert rows["accuracy", "clean", 0].high == 1.0
    assert rows["accuracy", "clean", 0].low == pytest.approx(60 / (60 + 1.959964**2))  # Wilson, all of 60
    # Pixelate draws nothing: the naive number.
    for severity in SEVERITIES:
        seen = corrupt(pictures.inputs, "pixelate", severity).mean((1, 2, 3)) > 0.5
        naive = float((seen.long() == pictures.targets).double().mean())
        assert rows["accuracy", "pixelate", severity].value == pytest.approx(naive)
    each = [rows["accuracy", "gaussian_noise", severity].value for severity in SEVERITIES]
    assert rows["mean_accuracy", "gaussian_noise", None].value == pytest.approx(np.mean(each))
    drop = rows["drop", ALL, None]
    both = [rows["drop", name, None].value for name in ("gaussian_noise", "pixelate")]
    assert drop.value == pytest.approx(np.mean(both))
    assert drop.low <= drop.value <= drop.high
    assert rows["lost_share", ALL, None].value == pytest.approx(drop.value)  # clean accuracy is 1
    assert len(part.arrays["right/gaussian_noise/5"]) == 60


def test_every_network_sees_the_same_noise_and_another_seed_another(pictures):
    instrument = CorruptedAccuracy(corruptions=("gaussian_noise",), severities=(5,))

    def right(seed, batch):
        (part,) = instrument.measure(Brightness(), pictures, seed=seed, batch=batch)
        return part.arrays["right/gaussian_noise/5"].tolist()

    assert right(0, 7) == right(0, 60)
    assert right(0, 7) != right(1, 7)


def test_accuracy_needs_images_with_labels(pictures):
    bare = dataclasses.replace(pictures, targets=None)
    (part,) = CorruptedAccuracy().measure(Brightness(), bare)
    assert "images with labels" in part.notes[0]


# --- findings and claims from made-up results -----------------------------------------------------------------------


def made(network, *, topolip=1.0, spread=0.1, clean=0.8, drop=0.2) -> Result:
    """A result as the instruments would give it."""
    rates = [
        Row(
            quantity,
            value,
            "estimate",
            size * 5,
            low=value - spread,
            high=value + spread,
            at={"p": p, "dim": dim, "cloud": size},
        )
        for size, factor in ((36, 3.0), (72, 1.0))
        for p in (1, 2)
        for dim in (0, 1, "all")
        for quantity, value in (
            ("topolip_change_rate", factor * topolip * p),
            ("mean_change_rate", factor * topolip / 2),
        )
    ]
    rates += [
        Row("shape_distance", topolip, "estimate", 60, layer=layer, depth=depth, low=topolip - spread,
            high=topolip + spread, at={"p": p, "dim": "all", "cloud": 41})
        for p in (1, 2)
        for layer, depth in (("blocks.1", 0.5), ("head", 1.0))
    ]  # fmt: skip
    rows = [
        Row(
            "accuracy",
            clean,
            "estimate",
            100,
            low=clean - 0.05,
            high=clean + 0.05,
            at={"corruption": "clean", "severity": 0},
        )
    ]
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            value = clean - drop * severity / 3
            rows.append(
                Row(
                    "accuracy",
                    value,
                    "estimate",
                    100,
                    low=value,
                    high=value,
                    at={"corruption": name, "severity": severity},
                )
            )
    for name in (*CORRUPTIONS, ALL):
        for quantity, value in (("mean_accuracy", clean - drop), ("drop", drop)):
            rows.append(
                Row(quantity, value, "estimate", 100, low=value - 0.02, high=value + 0.02, at={"corruption": name})
            )
    rows.append(Row("lost_share", drop / clean, "estimate", 100, at={"corruption": ALL}))
    profile = Profile(
        (
            Part("topology", tuple(rates), Topology.QUANTITIES),
            Part("corruptedaccuracy", tuple(rows), CorruptedAccuracy.QUANTITIES),
        ),
        {"last_block": "blocks.1"},
    )
    return Result(network, [{"epoch": 1, "loss": 1.0}], profile, 10, 10)


def as_the_paper_says(**changes) -> list[Result]:
    """Ten results in which everything the paper claims holds."""
    level = {"Attn": 0.5, "ViT": 1.0, "ResNet": 3.0, "Conv": 5.0}
    found = []
    for place, network in enumerate(networks.printed()):
        topolip = level[network.family] + 0.01 * place
        result = made(network, topolip=topolip, drop=0.1 * topolip)
        if network.name == "attention_large":
            result = Result(network, [], None, 3, 1000)
        found.append(changes.get(network.name, result))
    return found


def test_findings_stand_beside_the_papers():
    found = {finding.key: finding for finding in tables.findings(as_the_paper_says(), 0)}
    snow = found["table2/resnet50/snow"]
    assert (snow.theirs, snow.source, snow.unit) == (73.1, "Table 2", "%")
    assert snow.value == pytest.approx(100 * (0.8 - 0.1 * 3.08))
    assert found["table2/resnet50/drop"].theirs == pytest.approx((41.4 + 31.1 + 18.3 + 57.5 + 36.6) / 5)
    assert found["rate/vit_small/max/W2"].value == pytest.approx(2 * 1.04)  # of whole clouds, not of halves
    assert found["rate/vit_small/mean/W1"].value == pytest.approx(1.04 / 2)
    assert found["spearman/max/W1/drop"].value == pytest.approx(1.0)
    assert found["spearman/max/W1/drop"].n == 9
    assert len([key for key in found if key.startswith("table2/")]) == 70


def test_their_differences_are_the_printed_ones():
    printed = {
        "attention_small": (2.3, -1.7, -4.2, 1.0, 1.0), "vit_large": (-45.6, -47.2, -50.9, -46.7, -45.3),
        "resnet101": (-39.9, -30.6, -16.8, -56.7, -25.2),
    }  # fmt: skip
    for name, differences in printed.items():
        clean, *rest = networks.TABLE_2[name]
        assert [round(value - clean, 1) for value in rest] == list(differences)


def test_a_diverged_network_is_a_result():
    found = {finding.key: finding for finding in tables.findings(as_the_paper_says(), 0)}
    lost = found["table2/attention_large/clean"]
    assert math.isnan(lost.value)
    assert lost.theirs == 12.0
    assert lost.note == "diverged at step 3 of 1,000"
    assert found["rate/attention_large/max/W1"].note == "diverged at step 3 of 1,000"
    claims = {claim.key: claim for claim in tables.claims(as_the_paper_says(), 0)}
    assert claims["attention-large-diverges"].holds


def test_all_claims_hold_where_the_numbers_are_the_papers():
    claims = tables.claims(as_the_paper_says(), 0)
    # These ViTs and ResNets are not alike: a third of the change rate and of the drop.
    assert [claim.key for claim in claims if not claim.holds] == ["alike/W2", "alike/drop"]
    assert {claim.key for claim in claims if not claim.theirs} == {
        "conv-above-attn/mean/W1", "conv-above-attn/mean/W2", "resnet-above-vit/mean/W1", "resnet-above-vit/mean/W2",
        "goes-with-drop/mean/W1", "goes-with-drop/mean/W2", "goes-with-drop/shape/W1", "goes-with-drop/shape/W2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "turned"),
    [
        ("resnet18", {"topolip": 1.1}, "resnet-above-vit/max/W1"),
        ("resnet18", {"topolip": 3.0, "spread": 2.5}, "resnet-above-vit/max/W1"),  # intervals touch
        ("convolution_large", {"topolip": 0.4}, "conv-above-attn/max/W2"),
        ("vit_base", {"topolip": 1.0, "drop": 0.5}, "vits-lose-less"),
        ("attention_large", {}, "attention-large-diverges"),
    ],
)
def test_a_claim_fails_with_one_network(name, change, turned):
    network = next(network for network in networks.printed() if network.name == name)
    claims = {
        claim.key: claim.holds for claim in tables.claims(as_the_paper_says(**{name: made(network, **change)}), 0)
    }
    assert not claims[turned]


def test_a_claim_about_a_family_that_diverged_is_not_decided():
    gone = {n.name: Result(n, [], None, 1, 9) for n in networks.printed() if n.family == "Attn"}
    claim = next(c for c in tables.claims(as_the_paper_says(**gone), 0) if c.key == "conv-above-attn/max/W1")
    assert claim.holds is None
    assert claim.detail.startswith("no network of one side")


def stepping(network, steps: list[list[float]], first: float) -> Result:
    """A result with the distances of two clouds, and the first distance from the normalised input."""
    clouds = np.array(steps)
    names = [f"p={p}/dim={dim}" for p in (1, 2) for dim in (0, 1, "all")]
    parts = (
        Part("topology", (), Topology.QUANTITIES, (), {f"steps/{name}": clouds for name in names}),
        Part("normalisedinput", (), (), (), {f"first/{name}": np.full(len(clouds), first) for name in names}),
    )
    return Result(network, [], Profile(parts, {}))


def test_readings_are_with_or_without_the_head_and_of_either_input():
    one = stepping(networks.printed()[0], [[1.0, 2.0, 8.0], [1.0, 3.0, 12.0]], 4.0)
    assert one.reading(1).value == pytest.approx(3.0)  # 2 to 8, 3 to 12: the head
    assert one.reading(2, 0, head=False).value == pytest.approx((1 + 2) / 2)
    assert one.reading(1, normalised=True, head=False).value == pytest.approx((0.5 + 0.25) / 2)
    assert one.reading(1).n == 2
    assert made(networks.printed()[0]).reading(1) is None


def test_an_order_that_hangs_on_a_reading_is_said_to():
    families = {"Conv": [[1.0, 2.0, 3.0]] * 2, "Attn": [[1.0, 1.2, 9.0]] * 2}  # the head alone turns the order
    results = [stepping(n, families[n.family], 1.0) for n in networks.printed() if n.family in families]
    (conv, *_) = [c for c in tables.claims(results, 0) if c.key == "readings/conv-above-attn/W1"]
    assert conv.holds is False  # not in every one
    assert conv.detail.startswith("holds in 6, fails in 6, is open in 0 of 12 readings")
    without = [stepping(n, [[*row[:2], row[1]] for row in families[n.family]], 1.0) for n in networks.printed()[:4]]
    (conv, *_) = [c for c in tables.claims(without, 0) if c.key == "readings/conv-above-attn/W1"]
    assert conv.holds


@pytest.mark.parametrize(("factor", "spread", "holds"), [(1.2, 0.05, True), (3.0, 0.05, False), (1.4, 0.5, None)])
def test_vit_large_and_resnet101_are_alike_within_a_factor(factor, spread, holds):
    changes = {
        "vit_large": made(networks.printed()[6], topolip=1.0, spread=spread),
        "resnet101": made(networks.printed()[9], topolip=factor, spread=spread),
    }
    claims = {claim.key: claim.holds for claim in tables.claims(as_the_paper_says(**changes), 0)}
    assert claims["alike/W2"] is holds
    assert claims["alike/drop"] is True


def test_a_network_that_was_not_trained_yet_decides_nothing():
    claims = tables.claims([result for result in as_the_paper_says() if result.network.family != "Attn"], 0)
    answers = {claim.key: claim.holds for claim in claims}
    assert answers["attention-large-diverges"] is answers["conv-above-attn/max/W1"] is None


def test_tables_hold_every_severity_and_the_papers_differences(tmp_path):
    two, rates, _ = tables.write_tables(as_the_paper_says(), tmp_path)
    rows = list(csv.DictReader(two.open()))
    mean = next(
        row for row in rows if (row["network"], row["corruption"], row["severity"]) == ("ResNet18", "snow", "mean")
    )
    assert (mean["theirs"], mean["their difference"]) == ("73.3", "-17.6")
    assert float(mean["difference"]) == pytest.approx(-10 * 3.07, abs=0.01)
    assert float(mean["difference low"]) < float(mean["difference"]) < float(mean["difference high"])
    assert len([row for row in rows if row["network"] == "ResNet18"]) == 1 + 5 * 6
    assert [row["note"] for row in rows if row["network"] == "Attn (large)"] == ["diverged at step 3 of 1,000"]
    assert len(list(csv.DictReader(rates.open()))) == 10 * 3 * 2 * 3


# --- the networks ---------------------------------------------------------------------------------------------------


def test_the_papers_epochs_and_the_same_ten_names():
    epochs = {network.family: network.recipe.epochs for network in networks.printed()}
    assert epochs == {"Attn": 100, "Conv": 200, "ResNet": 100, "ViT": 200}
    assert [n.name for n in networks.printed()] == [n.name for n in networks.small()] == list(networks.TABLE_2)
    assert run.settings("paper").topology == Topology(samples=500, clouds=5)
    assert [n.name for n in networks.in_minutes()] == list(networks.TABLE_2)
    for network in (*networks.printed(), *networks.in_minutes()):
        assert network.recipe.label_smoothing == 0  # for none, so that families differ in their layers
    assert max(network.recipe.epochs for network in networks.in_minutes()) == 20


@pytest.mark.parametrize("network", networks.small(), ids=lambda network: network.name)
def test_small_networks_take_digits_and_depend_on_the_seed(network):
    one, same, other = (load_model(network.with_seed(seed)) for seed in (1, 1, 2))
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert one(x).shape == (2, 10)
    assert torch.equal(one(x), same(x))
    assert not torch.equal(one(x), other(x))


def test_printed_networks_normalise_as_cifar():
    (full,) = [network for network in networks.printed() if network.name == "convolution_small"]
    model = load_model(full.with_seed(3))
    assert model.lisse.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-3)
    assert sum(weight.numel() for weight in model.parameters()) == 260_938


# --- progress of the whole ------------------------------------------------------------------------------------------


# --- run, on two tiny networks --------------------------------------------------------------------------------------


def tiny(name: str, *, lr: float = 3e-3) -> networks.Network:
    (full,) = [network for network in networks.small() if network.name == name]
    return dataclasses.replace(full, recipe=Recipe(epochs=1, batch=64, lr=lr, schedule="constant", warmup=0.0))


@pytest.fixture
def two(monkeypatch):
    """Two networks, the second of which diverges, on few digits and small clouds."""
    bad = tiny("convolution_small", lr=1e30)
    bad = dataclasses.replace(bad, recipe=dataclasses.replace(bad.recipe, optimizer="sgd"))
    # The claims ask for Attn (large): it is the first here.
    chosen = run.Settings(
        "digits", (tiny("attention_large"), bad), Topology(samples=20, clouds=3), 364, "64MiB", "64-true"
    )
    monkeypatch.setattr(run, "settings", lambda scale, device: chosen)
    monkeypatch.setattr(run, "CorruptedAccuracy", functools.partial(CorruptedAccuracy, severities=(3,)))
    load = run.load_data
    monkeypatch.setattr(run, "load_data", lambda spec, split: load(spec, split=split, limit=130))
    return chosen


def test_a_run_records_divergence_goes_on_and_is_not_done_twice(two, tmp_path, monkeypatch):
    heard: list[Event] = []
    task = Task("smoke", tmp_path / "out", progress=heard.append)
    first = run.run(task)
    found = {finding.key: finding for finding in first.findings}
    assert found["table2/convolution_small/clean"].note.startswith("diverged at step")
    assert math.isnan(found["table2/convolution_small/clean"].value)
    assert 0 <= found["table2/attention_large/clean"].value <= 100
    assert any("diverged" in note for note in first.notes)
    assert {path.name for path in first.files} == {
        *(f"figure-{n}.png" for n in range(1, 11)), "correlation.png", "table2.csv", "rates.csv", "readings.csv",
    }  # fmt: skip
    assert all(path.stat().st_size > 0 for path in first.files)
    assert not (tmp_path / "out" / "networks" / "attention_large" / "checkpoints").exists()
    assert [event.done for event in heard if event.task == ALL_STEPS][-1] == 100

    import lisse.training.loop

    monkeypatch.setattr(lisse.training.loop.Loop, "run", lambda self: pytest.fail("trained again"))
    monkeypatch.setattr("lisse_experiments.topolip.accuracy._right", lambda *args: pytest.fail("measured again"))
    monkeypatch.setattr("lisse_experiments.topolip.figures.draw", lambda results, folder: [])
    second = run.run(task)
    assert repr(second.findings) == repr(first.findings)  # NaN is not equal to itself
    assert second.claims == first.claims


def test_a_part_is_done_and_what_is_left_is_said(two, tmp_path, monkeypatch):
    monkeypatch.setattr("lisse_experiments.topolip.figures.draw", lambda results, folder: [])
    task = Task("medium", tmp_path, units=("attention_large:0",))
    part = run.run(task)
    assert any("Not done yet: convolution_small:0." in note for note in part.notes)
    assert {finding.key.split("/")[1] for finding in part.findings if "/" in finding.key} >= {"attention_large"}
    # The results alone, from another machine, are enough for the tables.
    shutil.rmtree(tmp_path / "networks")
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(run, "result_of", lambda *args: pytest.fail("done again"))
    again = run.run(dataclasses.replace(task, minutes=0.0, units=()))
    assert repr(again.findings) == repr(part.findings)
    with pytest.raises(ValueError, match="units must be networks or network:seed"):
        run.run(dataclasses.replace(task, units=("resnet",)))
    with pytest.raises(ValueError, match="minutes must be enough"):
        run.run(dataclasses.replace(task, out=tmp_path / "empty", minutes=0.0))


def test_processes_side_by_side_leave_what_one_finds(two, tmp_path):
    broken = dataclasses.replace(two.networks[1], name="broken", spec="zoo:nothing")
    plan = dataclasses.replace(two, networks=(two.networks[0], broken), judged=20)
    unit, failing = run.units(plan, 0)
    task = Task("medium", tmp_path)
    with pytest.raises(ValueError, match="nothing") as caught:  # at the end: the other was done all the same
        run.side_by_side([failing, unit], dataclasses.replace(task, workers=2), plan, None)
    assert any("broken:0" in note for note in caught.value.__notes__)
    apart = stored_result(unit.network, *run.request_for(unit, task, plan))
    assert apart.profile is not None
    assert apart.accuracy("accuracy", "clean").n == 20
    assert stored_result(unit.network, *run.request_for(unit, task, two)) is None  # asked for more images
    steps = apart.part("topology").arrays["steps/p=2/dim=all"]
    assert float(rates(steps).amax(-1).mean()) == pytest.approx(apart.rate("max", 2).value)


def rates(steps) -> torch.Tensor:
    return change_rate(torch.from_numpy(steps))


def test_seeds_are_averaged_and_the_diverged_left_out():
    network = networks.printed()[7]
    one = over_seeds([made(network, topolip=level, drop=level / 10) for level in (1.0, 2.0, 3.0)])
    rate = one.rate("max", 1)
    half = 4.302653 / 3**0.5  # Student's 97.5 % point of two degrees of freedom, standard deviation 1
    assert (rate.value, rate.low, rate.high, rate.n) == pytest.approx((2.0, 2 - half, 2 + half, 3))
    assert one.accuracy("drop", ALL).value == pytest.approx(0.2)
    lost, alone = Result(network, [], None, 3, 10), made(network)
    assert over_seeds([lost, alone]) is alone
    assert over_seeds([lost, lost]).diverged


def test_the_normalised_input_takes_the_place_of_the_raw_one():
    generator = torch.Generator().manual_seed(0)
    images = Dataset("images", torch.rand(60, 3, 4, 4, generator=generator))
    with seeded(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    options = {"samples": 20, "clouds": 3}
    (plain,) = Topology(**options).measure(model, images, order="given")
    (same,) = NormalisedInput(**options, mean=(0.0,) * 3, std=(1.0,) * 3).measure(model, images, order="given")
    for name in ("p=1/dim=0", "p=2/dim=1", "p=2/dim=all"):
        np.testing.assert_allclose(same.arrays[f"first/{name}"], plain.arrays[f"steps/{name}"][:, 0])
    scaled = dataclasses.replace(images, inputs=(images.inputs - 0.4) / 0.25)
    again = copy.deepcopy(model)
    with torch.no_grad():  # the same first layer of other inputs
        again[1].bias += again[1].weight @ torch.full((48,), 0.4)
        again[1].weight *= 0.25
    (other,) = Topology(**options).measure(again, scaled, order="given")
    (ours,) = NormalisedInput(**options, mean=(0.4,) * 3, std=(0.25,) * 3).measure(model, images, order="given")
    np.testing.assert_allclose(ours.arrays["first/p=1/dim=0"], other.arrays["steps/p=1/dim=0"][:, 0], rtol=1e-4)


# --- the whole ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_smoke_run_finds_what_is_committed(tmp_path):
    chosen = study("topolip")
    outcome, _ = form.timed(chosen, Task("smoke", tmp_path))
    committed = form.expected(chosen.about.folder)["smoke"]
    assert form.differences(outcome, committed) == []
    assert len([finding for finding in outcome.findings if finding.within is not None]) > 100
    claims = {claim.key: claim for claim in outcome.claims}
    for key in ("conv-above-attn/max/W1", "conv-above-attn/max/W2"):
        assert claims[key].holds, claims[key].detail
    for key in ("resnet-above-vit/max/W1", "resnet-above-vit/max/W2"):  # small ViTs on digits change shape abruptly
        assert not claims[key].holds, claims[key].detail
    clean = {finding.key: finding.value for finding in outcome.findings if finding.key.endswith("/clean")}
    assert all(clean[f"table2/{name}/clean"] > 90 for name in ("resnet18", "resnet50", "resnet101"))
    assert all(clean[f"table2/{name}/clean"] > 65 for name in ("vit_small", "vit_base", "vit_large"))
