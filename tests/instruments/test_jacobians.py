"""How a network's graph is held while its Jacobians are taken."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn

from lisse import Run
from lisse.data import Dataset
from lisse.instruments.jacobians import graph, graph_bytes, kept_bytes, samples_at_once


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 500), nn.Tanh(), nn.Linear(500, 4)).eval()


def data(dtype: torch.dtype = torch.float32) -> Dataset:
    return Dataset("d", torch.rand(30, 6).to(dtype))


def test_a_graph_keeps_activations_and_no_weights():
    run = Run(network(), data())
    # The answers of the layers, what tanh keeps of its own, and of its derivative.
    assert 4 * (6 + 500 + 500 + 4) <= kept_bytes(run, run.taps.source) <= 4 * (4 * 500 + 40) < 4 * 500 * 10


def test_a_derivative_that_breaks_off_is_counted_up_to_there():
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.round().detach() * 2

    run = Run(nn.Sequential(nn.Linear(6, 9), Broken()), data())
    assert kept_bytes(run, run.taps.source) >= 4 * (6 + 9)


def test_weights_have_no_gradient_inside_and_theirs_again_after():
    run = Run(network(), data())
    run.model[0].weight.requires_grad_(False)
    before = [weight.requires_grad for weight in run.model.parameters()]
    with suppress(ZeroDivisionError), graph(run, list(run.taps), torch.rand(3, 6)) as (x, _, y):
        assert not any(weight.requires_grad for weight in run.model.parameters())
        assert torch.autograd.grad(y.sum(), x)[0].shape == (3, 6)
        raise ZeroDivisionError
    assert [weight.requires_grad for weight in run.model.parameters()] == before
    assert sum(before) == 3


def test_more_memory_and_smaller_numbers_are_more_samples():
    def count(memory: int, dtype: torch.dtype = torch.float32) -> int:
        run = Run(network().to(dtype), data(dtype), memory=memory)
        assert graph_bytes(run, 10, most=20) <= max(memory, graph_bytes(run, 10, most=1))
        return samples_at_once(run, 10, most=20)

    assert count(1) == 1
    assert 1 < count(2**20) < 20 == count(2**30)
    assert count(2**20, torch.bfloat16) > count(2**20)
