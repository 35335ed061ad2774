"""Loss and accuracy on test data, in evaluation mode, without waiting for the device between batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lisse import taps
from lisse.data import Batch, Dataset
from lisse.training.feed import fits
from lisse.training.plan import Plan
from lisse.training.result import Score, binomial_interval

# A batch has at most so many samples, and no more than so many numbers unless the recipe's batches have.
BATCH, NUMBERS = 1000, 2**22


class Evaluation:
    """Scores the model of a plan on its test data; each process takes its share of the batches."""

    def __init__(self, fabric: Any, plan: Plan, dtype: torch.dtype, channels_last: bool) -> None:
        self.fabric, self.plan, self.dtype, self.last = fabric, plan, dtype, channels_last
        self.data: Dataset | None = None
        self.batch = BATCH
        if plan.test is not None:
            self.data = plan.test.to(fabric.device) if fits(plan.test, fabric.device) else plan.test
            parts = plan.test.inputs.values() if isinstance(plan.test.inputs, dict) else [plan.test.inputs]
            numbers = sum(part[0].numel() for part in parts)
            self.batch = min(BATCH, max(plan.recipe.batch or 1, NUMBERS // max(numbers, 1)))

    def score(self) -> Score:
        """The score of the model as it is now; its modes are put back."""
        plan, data = self.plan, self.data
        assert data is not None
        model = taps.plain(plan.model)
        modules = list(model.modules())
        modes = [module.training for module in modules]
        device = self.fabric.device
        sums = torch.zeros(2, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        starts = range(self.fabric.global_rank * self.batch, len(data), self.fabric.world_size * self.batch)
        precision = self.fabric.strategy.precision
        try:
            model.eval()
            with torch.no_grad():
                for start in starts:
                    batch = next(data.batches(self.batch, start, min(start + self.batch, len(data))))
                    batch = _moved(batch, device)
                    inputs = precision.convert_input(self._laid(batch.inputs))
                    with precision.forward_context():
                        output, own = plan.outcome(model, inputs)
                        output = precision.convert_output(output)
                    count = min(self.batch, len(data) - start)
                    value = plan.loss(output, batch.targets) if own is None else own
                    sums[0] += value.detach() * count
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


def _moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device, where its data stay with the host because they would not fit."""
    inputs: Any = batch.inputs
    inputs = {key: part.to(device) for key, part in inputs.items()} if isinstance(inputs, dict) else inputs.to(device)
    return batch._replace(inputs=inputs, targets=None if batch.targets is None else batch.targets.to(device))
