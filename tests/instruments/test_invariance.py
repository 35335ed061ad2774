"""What instruments declare that their numbers do not see, they do not see."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from same_function import NETWORKS, Change, changed, network, pictures
from torch import nn

import lisse
from lisse.instruments import ALL, Isometry, Propagation, Robustness, Sensitivity, Stability, Topology
from lisse.maths.comparison import statistic_of
from lisse.profile import Profile, Row
from lisse.run import Instrument

SMALL: list[Instrument] = [
    Topology(samples=12, clouds=5, p=(1,), dims=(0, 1)),
    Sensitivity(samples=20, clouds=3, points=2, draws=8, margins=20, max_iter=20, tol=1e-10),
    Stability(samples=40),
    Robustness(
        samples=40, corruptions=("gaussian_noise",), severities=(3,), attacks=("fgsm",), eps=(0.05,), sigma=(),
        delta=(), distances=10, steps=3,
    ),
]  # fmt: skip
CHANGES = {
    "rotation": Change(rotated=True), "shift": Change(shifted=True), "scale": Change((30.0, 0.02, 5.0)),
    "temperature": Change(temperature=7.0),
}  # fmt: skip


def measured(model: nn.Module, instruments: list[Instrument]) -> Profile:
    return lisse.measure(model, pictures(), instruments)


@functools.cache
def profile_of_kind(kind: str) -> Profile:
    return measured(network(kind), SMALL)


def near(a: Row, b: Row) -> bool:
    """Equal up to rounding, and what Lanczos iteration leaves open."""
    return math.isclose(a.value, b.value, rel_tol=1e-5, abs_tol=1e-9) or (math.isnan(a.value) and math.isnan(b.value))


def moved(before: Profile, after: Profile) -> set[str]:
    """The quantities of which a number is another."""
    assert [(row.quantity, row.layer, row.at) for row in before.rows if "radius" not in row.at] == [
        (row.quantity, row.layer, row.at) for row in after.rows if "radius" not in row.at
    ]
    return {a.quantity for a, b in zip(before.rows, after.rows, strict=True) if not near(a, b)}


# -- the tests' own changes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_changes_leave_the_function_alone(kind):
    everything = Change((30.0, 0.02, 5.0), permuted=True, rotated=True, shifted=True, seed=3)
    model, images = network(kind), pictures().inputs
    with torch.no_grad():
        same = changed(kind, model, everything)(images)
        torch.testing.assert_close(same, model(images), rtol=1e-9, atol=1e-9)
        hot = changed(kind, model, Change(everything.constants, temperature=7.0))(images)
        torch.testing.assert_close(hot, 7 * model(images), rtol=1e-9, atol=1e-9)
    hidden = [lisse.Run(m, pictures()) for m in (model, changed(kind, model, everything))]
    last = hidden[0].last_block.name
    assert not torch.allclose(hidden[0].recording(9)[last], hidden[1].recording(9)[last], rtol=1e-2)


# -- declarations ------------------------------------------------------------------------------------------------------


@functools.cache
def everything() -> tuple[list[Instrument], Profile]:
    """All numbers of all instruments that look at any network, of one whose layers may be turned and shifted."""
    instruments: list[Instrument] = [
        Topology(samples=12, clouds=5, divergence="all"),
        Isometry(samples=20, clouds=3, points=8, max_iter=20, tol=1e-10),
        Sensitivity(samples=20, clouds=3, points=8, draws=9, margins=20, max_iter=20, tol=1e-10),
        Stability(samples=40),
        Robustness(
            samples=40, corruptions=("gaussian_noise", "fog"), severities=(3,), eps=(0.05,), sigma=(0.1,), delta=(1.0,),
            distances=10, steps=3,
        ),
    ]  # fmt: skip
    return instruments, measured(network("affine"), instruments)


@pytest.mark.parametrize("name", CHANGES)
def test_declared_invariances_hold(name):
    instruments, before = everything()
    after = measured(changed("affine", network("affine"), CHANGES[name]), instruments)
    quantities = {(part.instrument, quantity.name): quantity for part in before for quantity in part.quantities}
    wrong, seen = [], set()
    for old, new in zip(before.parts, after.parts, strict=True):
        shifted = moved(Profile((old,)), Profile((new,)))
        seen |= shifted
        wrong += [q for q in shifted if name in quantities[old.instrument, q].invariant]
    assert wrong == []
    # The papers' numbers do move, where a layer has another scale or the logits another temperature.
    moving = {
        "rotation": set(), "shift": {"norm"}, "temperature": {"lipschitz_from_input", "distance_error"},
        "scale": {"topolip_change_rate", "lipschitz_from_input", "distance_error", "norm"},
    }  # fmt: skip
    assert moving[name] <= seen


@pytest.mark.parametrize("name", ["rotation", "scale", "temperature"])
def test_declared_invariances_hold_along_a_residual_stream(name):
    options = Propagation(samples=40, kernels=8, lemma=0)
    # Gains of layer norms are folded on both sides: what stands behind a norm is read, too.
    before, after = (
        measured(changed("transformer", network("transformer"), change), [options])
        for change in (Change(), CHANGES[name])
    )
    assert {row.quantity for row in before.rows} >= {"ratio", "similarity", "attention_distance"}
    quantities = before.quantities
    shifted = moved(before, after)
    assert [quantity for quantity in shifted if name in quantities[quantity].invariant] == []
    assert ("norm" in shifted) == (name == "scale")


def test_what_judges():
    """A headline judges only with all of it declared; each instrument that looks at any network has one."""
    judging = {kind.__name__: {q.name for q in kind.QUANTITIES if q.judges} for kind in ALL}
    assert judging == {
        "Topology": {"shape_distance"},
        "Stability": {"relative_stability"},
        "Contraction": set(),
        "Propagation": set(),
        "Isometry": set(),
        "Lipschitz": set(),
        "Sensitivity": {"relative_stretch", "margin_distance"},
        "Robustness": {"clean_accuracy", "mean_corruption_error", "attack_distance"},
        "Drift": set(),
    }


def test_judging_numbers_travel_with_their_samples():
    """Of the row at the last block, or of the whole network: one array a headline, of which it is what it says."""
    profile = profile_of_kind("mlp")
    for part in profile:
        for quantity in part.quantities:
            if not quantity.judges:
                continue
            (row,) = [
                row
                for row in part.rows
                if row.quantity == quantity.name and row.layer in (None, profile.last_block)
                and all(row.at.get(key, order[0]) == order[0] for key, order in quantity.headline.prefers.items())
            ]  # fmt: skip
            (array,) = [
                part.arrays[name]
                for name in (f"samples/{quantity.name}", f"clouds/{quantity.name}")
                if name in part.arrays
            ]
            assert row.value == pytest.approx(statistic_of(array, quantity.statistic))


# -- any change at all -------------------------------------------------------------------------------------------------


#: Draws of the slow test for all networks together; LISSE_DRAWS=1000 takes about ten minutes of a core.
DRAWS = int(os.environ.get("LISSE_DRAWS", "200"))


@st.composite
def changes(draw: st.DrawFn, kinds: Iterable[str] = NETWORKS) -> tuple[str, Change]:
    """A network, a constant for every layer, an order of its units, a rotation where it can have one, a temperature."""
    powers = st.floats(-2, 2)
    kind = draw(st.sampled_from(sorted(kinds)))
    return kind, Change(
        tuple(10**power for power in draw(st.lists(powers, min_size=1, max_size=4))),
        temperature=10 ** draw(powers),
        seed=draw(st.integers(0, 10**6)),
        permuted=draw(st.booleans()),
        rotated=draw(st.booleans()),
        shifted=draw(st.booleans()),
    )


def check_that_no_judge_moves(kind: str, change: Change) -> None:
    before = profile_of_kind(kind)
    after = measured(changed(kind, network(kind), change), SMALL)
    judging = {name for name, quantity in before.quantities.items() if quantity.judges}
    assert not moved(before, after) & judging


@given(changes())
@settings(max_examples=12)
def test_no_judging_number_moves(case):
    check_that_no_judge_moves(*case)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_no_judging_number_moves_under_many_changes(kind):
    @given(changes([kind]))
    @settings(max_examples=-(-DRAWS // len(NETWORKS)), suppress_health_check=list(HealthCheck))
    def check(case):
        check_that_no_judge_moves(*case)

    check()


@pytest.mark.parametrize("kind", NETWORKS)
def test_judging_numbers_do_move_where_something_changes(kind):
    """The tests above could pass by silence: one channel of one layer at another size is another network."""
    model = network(kind)
    with torch.no_grad():
        layer = next(module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d)))
        layer.weight[0] *= 20
    before, after = profile_of_kind(kind), measured(model, SMALL)
    judging = {name for name, quantity in before.quantities.items() if quantity.judges}
    assert len(moved(before, after) & judging) >= 3
