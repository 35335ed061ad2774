"""Loss and accuracy on test data, in evaluation mode, without waiting for the device between batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lisse import taps
from lisse.data import Dataset
from lisse.training.plan import Plan, output_of
from lisse.training.result import Score, binomial_interval

BATCH = 1000


class Evaluation:
    """Scores the model of a plan on its test data; each process takes its share of the batches."""

    def __init__(self, fabric: Any, plan: Plan, dtype: torch.dtype, channels_last: bool) -> None:
        self.fabric, self.plan, self.dtype, self.last = fabric, plan, dtype, channels_last
        self.data: Dataset | None = None if plan.test is None else plan.test.to(fabric.device)

    def score(self) -> Score:
        """The score of the model as it is now; its modes are put back."""
        plan, data = self.plan, self.data
        assert data is not None
        model = taps.plain(plan.model)
        modules = list(model.modules())
        modes = [module.training for module in modules]
        device = self.fabric.device
        sums = torch.zeros(2, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        starts = range(self.fabric.global_rank * BATCH, len(data), self.fabric.world_size * BATCH)
        precision = self.fabric.strategy.precision
        try:
            model.eval()
            with torch.no_grad():
                for start in starts:
                    batch = next(data.batches(BATCH, start, min(start + BATCH, len(data))))
                    inputs = precision.convert_input(self._laid(batch.inputs))
                    with precision.forward_context():
                        output = precision.convert_output(output_of(taps.feed(model, inputs)))
                    count = min(BATCH, len(data) - start)
                    sums[0] += plan.loss(output, batch.targets).detach() * count
                    if plan.labels:
                        sums[1] += (output.argmax(1) == batch.targets).sum()
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode
        if self.fabric.world_size > 1:
            sums = self.fabric.all_reduce(sums, reduce_op="sum")
        loss, right = sums.tolist()
        n = len(data)
        if not plan.labels:
            return Score(loss / n, n)
        return Score(loss / n, n, right / n, *binomial_interval(round(right), n))

    def _laid(self, inputs: Any) -> Any:
        if isinstance(inputs, dict):
            return {key: self._laid(value) for key, value in inputs.items()}
        if isinstance(inputs, Tensor) and inputs.is_floating_point():
            inputs = inputs.to(self.dtype)
            if self.last and inputs.ndim == 4:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs
