"""The loop: one step after another, and what is kept between them."""

from __future__ import annotations

import math
import time
from typing import Any, Literal

import torch
from torch import Tensor

from lisse import taps
from lisse.data import Batch, Dataset
from lisse.maths.intervals import share_interval
from lisse.networks.answers import hits
from lisse.networks.attack import Adversary
from lisse.progress import Event, Listener
from lisse.training.feed import Feed, has_room, keyed
from lisse.training.folder import Board, Folder, content_digest, load_model_tensors, model_tensors
from lisse.training.optimiser import load_state, optimiser_for, rate_factor, state_tensors
from lisse.training.overfitting import WATCHED, Watchtower
from lisse.training.plan import TrainingPlan, weights_digest
from lisse.training.result import Log, Moment, Score, Status, Training, When

# Where reading a number waits for the device or for other processes, it is done once in so many steps, or as many as
# take so many seconds.
LOOK, PATIENCE = 50, 1.0
# A network that is kept Lipschitz is brought back as often as this, and at the ends of epochs.
CAP_EVERY = 8
# Checkpoints at the ends of short epochs take at most this share of the time.
CHECKPOINT_SHARE = 0.05
# Before the names of the weights that a collapse goes back to, in a checkpoint of later ones.
_GOOD = "good/"


class Loop:
    """The state of a training between two steps."""

    def __init__(
        self,
        plan: TrainingPlan,
        fabric: Any,
        folder: Folder | None,
        tell: Listener | None,
        *,
        channels_last: bool | None,
        checkpoint_seconds: float,
        test_every: int,
        tensorboard: bool,
    ) -> None:
        self.plan, self.fabric, self.folder, self.tell = plan, fabric, folder, tell
        self.checkpoint_seconds, self.test_every = checkpoint_seconds, test_every
        self.model, self.recipe = plan.model, plan.recipe
        self.device: torch.device = fabric.device
        self.world: int = fabric.world_size
        self.step, self.resumed, self.seconds_before = 0, 0, 0.0
        penalties = [penalty.name for penalty in plan.reader.penalties] if plan.reader else []
        self.columns = ["loss", *(["total", *penalties] if penalties else []), *(["accuracy"] if plan.labels else [])]
        tested = ["test_loss", *(["test_accuracy"] if plan.labels else [])] if plan.test is not None else []
        watched = WATCHED if isinstance(plan.lesson, Adversary) else ()
        self.log = Log(["epoch", "step", *self.columns, "lr", "seconds", *tested, *watched])
        self.sums = [0.0] * len(self.columns)  # over the samples of this epoch so far
        self.counted = 0
        self.pending: list[tuple[list[Tensor], int, int]] = []  # steps that were not looked at yet
        self.latest: dict[str, float] = {}
        self.score: Score | None = None
        self.bad: int | None = None
        self.collapse = ""
        # On a CPU of our own, a number costs nothing to read.
        self.look_every = 1 if self.device.type == "cpu" and self.world == 1 else LOOK
        self.look_at = 0  # the step after which to look next
        self.saved_at = self.told_at = self.said_at = self.looked_at = -math.inf
        self.save_cost = 0.0
        self.started = time.monotonic()
        self._prepare(channels_last)
        first = fabric.is_global_zero and folder is not None
        self.board = Board(folder.tensorboard, self.step) if tensorboard and first and folder is not None else None

    # -- the beginning -----------------------------------------------------------------------------------------------

    def _prepare(self, channels_last: bool | None) -> None:
        """Network, optimiser and data on the device; the state of the last checkpoint, where there is one."""
        inputs = self.plan.data.inputs
        images = isinstance(inputs, Tensor) and inputs.ndim == 4
        last = images and (self.device.type == "cuda" if channels_last is None else channels_last)
        self.model.train()
        self.model.to(self.device)
        if last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimiser = optimiser_for(self.model, self.recipe, self.plan.head, self.device)
        # A network that torch compiled stays as it is: Fabric would compile it anew, and only where it saw how.
        self.network, self.stepper = self.fabric.setup(self.model, self.optimiser, _reapply_compile=False)
        weight = next(p for p in self.model.parameters() if p.is_floating_point())
        true = self.fabric.strategy.precision.convert_input(torch.zeros(1, dtype=torch.get_default_dtype())).dtype
        dtype = weight.dtype if weight.dtype in (torch.float32, torch.float64) else true
        self.feed = Feed(
            self.plan.data, batch=self.recipe.batch, seed=self.plan.seed, device=self.device, dtype=dtype,
            crops=self.plan.crops, channels_last=last, rank=self.fabric.global_rank, world=self.world,
        )  # fmt: skip
        self.steps = self.feed.steps * self.recipe.epochs
        self.evaluation = Evaluation(self.fabric, self.plan, dtype, last)
        lesson, samples = self.plan.lesson, self.plan.test or self.plan.data
        self.tower = None
        if isinstance(lesson, Adversary):
            self.tower = Watchtower(lesson, samples, self.device, dtype, self.feed.used)
        self.good, self.good_step = self._weights(), 0
        self._restore()
        if self.world > 1:
            self.fabric.barrier()

    def _restore(self) -> None:
        latest = None if self.folder is None else self.folder.latest()
        if self.world > 1:
            self.fabric.barrier()  # all have read before one writes
        if latest is None:
            if self.folder is not None and self.fabric.is_global_zero:
                self.folder.rewrite_log(self.log)
                self._save()
            return
        tensors, document, complaints = latest
        for complaint in complaints:
            self._say(complaint, level="warning")
        load_model_tensors(self.model, tensors)
        load_state(self.model, self.optimiser, tensors)
        good = {name.removeprefix(_GOOD): value for name, value in tensors.items() if name.startswith(_GOOD)}
        self.good, self.good_step = good or self._weights(), int(document.get("good_step", document["step"]))
        if document["precision"]:
            self.fabric.strategy.precision.load_state_dict(document["precision"])
        self.step = self.resumed = int(document["step"])
        self.seconds_before = float(document["seconds"])
        self.sums, self.counted = [float(value) for value in document["sums"]], int(document["seen"])
        for values in tensors["log/rows"].tolist():
            row = {name: value for name, value in zip(self.log.columns, values, strict=True) if not math.isnan(value)}
            self.log.append({**row, "epoch": int(row["epoch"]), "step": int(row["step"])})
        assert self.folder is not None
        if self.fabric.is_global_zero:
            self.folder.rewrite_log(self.log)
        if self.step:
            self._say(f"goes on at step {self.step:,} of {self.steps:,} of {self.folder.path}")
        self.saved_at = time.monotonic()

    # -- the way -----------------------------------------------------------------------------------------------------

    def run(self) -> Training:
        """All steps that are left."""
        try:
            return self._run()
        finally:
            if self.board is not None:
                self.board.close()

    def _run(self) -> Training:
        self.started = time.monotonic()
        self.saved_at = self.looked_at = self.started
        self._call("start")
        per_epoch = self.feed.steps
        while self.step < self.steps:
            epoch, k = divmod(self.step, per_epoch)
            last = k == per_epoch - 1
            self._train_step(epoch, k)
            if self.bad is None:
                self.step += 1
            looked = last or self.step >= self.look_at
            if self.bad is not None or (looked and not self._look()):
                return self._diverged()
            self._call("step")
            if last:
                self._end_epoch(epoch)
                if self.bad is not None:
                    return self._diverged()
                if self.collapse:
                    return self._collapsed()
            if looked and self._due(last):
                self._save()
            if looked:
                self.looked_at = time.monotonic()
        return self._finish()

    def _train_step(self, epoch: int, k: int) -> None:
        plan, reader = self.plan, self.plan.reader
        batch = self.feed.get(epoch, k)
        size = self.feed.size(k)
        factor = rate_factor(self.recipe, self.step, self.steps, self.feed.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * factor
        _seed(keyed(plan.seed, f"step of process {self.fabric.global_rank}", self.step), self.device)
        for augment in plan.augment:
            batch = batch._replace(inputs=augment(batch.inputs))  # type: ignore[arg-type]
        y = batch.targets
        if plan.lesson is not None:
            assert isinstance(batch.inputs, Tensor)
            with self.fabric.strategy.precision.forward_context():
                views = plan.lesson.views(self.model, batch.inputs, y)
            assert y is not None
            batch = batch._replace(inputs=views, targets=y.repeat(len(views) // len(y)))
        if reader is None:
            output, inner = plan.outcome(self.network, batch.inputs)
            total = task = self._task(output, inner, y)
            values = [task]
        else:
            if reader.inputs:
                assert isinstance(batch.inputs, Tensor)
                batch = batch._replace(inputs=batch.inputs.detach().requires_grad_())
            with reader.reading() as activations:
                if reader.inputs:
                    output, inner = self._outcome_with_slopes(batch.inputs)
                else:
                    output, inner = plan.outcome(self.network, batch.inputs)
            task = self._task(output, inner, y)
            penalties = reader.values(activations, output, batch)
            total = task
            for penalty, value in zip(reader.penalties, penalties, strict=True):
                total = total + penalty.weight * value
            values = [task, total, *penalties]
        if self.look_every == 1 and not math.isfinite(total.item()):
            self.bad = self.step + 1
            return
        self.stepper.zero_grad(set_to_none=True)
        count = len(y) if y is not None else _count(batch.inputs)
        # Processes are averaged with equal weights; where their shares differ, the loss makes up for it.
        even = count * self.world == size
        self.fabric.backward(total if even else total * (count * self.world / size))
        if self.recipe.clip is not None:
            self.fabric.clip_gradients(self.network, self.stepper, max_norm=self.recipe.clip, error_if_nonfinite=False)
        self.stepper.step()
        if plan.cap is not None and ((self.step + 1) % CAP_EVERY == 0 or k == self.feed.steps - 1):
            plan.cap.keep()
        with torch.no_grad():
            numbers = [value.detach() for value in values]
            if plan.labels and y is not None:
                numbers.append(hits(output[: len(y)], y).sum())  # of several views, the first
            self.pending.append((numbers, count, size))

    def _outcome_with_slopes(self, inputs: Any) -> tuple[Any, Tensor | None]:
        """As Fabric runs the network, but for its watch that nothing but its own backward goes back through it."""
        precision = self.fabric.strategy.precision
        with precision.forward_context():
            output, inner = self.plan.outcome(self.network._forward_module, precision.convert_input(inputs))
        return precision.convert_output(output), inner

    def _task(self, output: Any, inner: Tensor | None, y: Any) -> Tensor:
        """The loss before penalties."""
        if inner is not None:
            return inner
        lesson = self.plan.lesson
        return self.plan.loss(output, y) if lesson is None else lesson.task(output, y, self.plan.loss)

    def _look(self) -> bool:
        """Read what the last steps gave; false if a loss was not finite."""
        if not self.pending:
            return True
        # On the device as few operations as can be until now: each costs the host more than the device.
        rows = torch.stack([value.float() for values, _, _ in self.pending for value in values])
        rows = rows.reshape(len(self.pending), len(self.columns))
        losses = len(self.columns) - self.plan.labels
        shares = torch.tensor([count for _, count, _ in self.pending], dtype=rows.dtype).to(rows.device)
        rows[:, :losses] *= shares[:, None]  # means over samples; right answers are sums already
        if self.world > 1:
            rows = self.fabric.all_reduce(rows, reduce_op="sum")
        first = self.step - len(self.pending)
        total = 1 if self.plan.reader is not None else 0
        table = rows.tolist()  # waits for the device
        if self.look_every > 1:
            self._pace()
        for index, (row, (_, _, size)) in enumerate(zip(table, self.pending, strict=True)):
            if not math.isfinite(row[total]):
                self.bad = first + index + 1
                return False
            self.sums = [a + b for a, b in zip(self.sums, row, strict=True)]
            self.counted += size
        size = self.pending[-1][2]
        self.latest = dict(zip(self.columns, (value / size for value in row), strict=True))
        self.latest["lr"] = self.optimiser.param_groups[0]["lr"]
        self.pending.clear()
        instant = time.monotonic()
        if self.tell is not None and (instant - self.told_at > 0.2 or self.step == self.steps):
            self.told_at = instant
            per_epoch = self.feed.steps
            samples = self.step // per_epoch * self.feed.used + min(
                self.step % per_epoch * self.feed.batch, self.feed.used
            )
            unit = "images" if self.feed.images else "samples"
            self.tell(Event("train", samples, self.recipe.epochs * self.feed.used, unit))
        return True

    def _pace(self) -> None:
        """When to look next: slow steps are looked at more often, as a checkpoint is only made where one was."""
        waited = time.monotonic() - self.looked_at
        if self.world > 1:  # all have to look after the same step
            waited = float(self.fabric.all_reduce(torch.tensor(waited, device=self.device), reduce_op="max"))
        affordable = int(PATIENCE * len(self.pending) / max(waited, 1e-9))
        self.look_at = self.step + max(1, min(self.look_every, affordable))

    def _end_epoch(self, epoch: int) -> None:
        row: dict[str, float] = {"epoch": epoch + 1, "step": self.step}
        row |= {name: value / self.counted for name, value in zip(self.columns, self.sums, strict=True)}
        row |= {"lr": self.optimiser.param_groups[0]["lr"], "seconds": self._seconds()}
        final = self.step == self.steps
        if self.plan.test is not None and (final or (epoch + 1) % self.test_every == 0):
            self.score = self.evaluation.score()
            row["test_loss"] = self.score.loss
            if self.score.accuracy is not None:
                row["test_accuracy"] = self.score.accuracy
        if self.tower is not None and (final or (epoch + 1) % self.tower.every == 0):
            row |= self._watched()
        self.sums, self.counted = [0.0] * len(self.columns), 0
        self.log.append(row)
        self.latest = dict(row)
        if self.folder is not None and self.fabric.is_global_zero:
            self.folder.append_log(self.log)
        if self.board is not None:
            self.board(row)
        instant = time.monotonic()
        if self.tell is not None and (final or instant - self.said_at > 2):
            self.said_at = instant
            parts = [f"loss {row['loss']:.4g}"]
            parts += [f"accuracy {row['accuracy']:.2%}"] if "accuracy" in row else []
            parts += [f"test accuracy {row['test_accuracy']:.2%}"] if "test_accuracy" in row else []
            parts += [f"test loss {row['test_loss']:.4g}"] if {"test_loss"} <= row.keys() and len(parts) < 3 else []
            self._say(f"epoch {epoch + 1} of {self.recipe.epochs}: {', '.join(parts)}")
        self._call("epoch")

    def _weights(self) -> dict[str, Tensor]:
        """A copy of the weights, under an adversary alone: what a collapse goes back to."""
        if self.tower is None:
            return {}
        return {name: value.detach().clone() for name, value in model_tensors(self.model).items()}

    def _watched(self) -> dict[str, float]:
        """The accuracies of the watchtower; a collapse is remembered, weights that held are kept."""
        assert self.tower is not None
        try:
            usual, harder = self.tower.accuracies(taps.plain(self.model))
        except ValueError:  # the network overflows there, and at the next step
            self.bad = self.step
            return {}
        if self.world > 1:  # all have to come to the same end
            usual, harder = self.fabric.broadcast((usual, harder))
        before = max((row[WATCHED[1]] for row in self.log if WATCHED[1] in row), default=0.0)
        if not self.tower.one_sided(usual, harder):
            self.good, self.good_step = self._weights(), self.step
        elif 2 * self.step >= self.steps or self.tower.fell(before, harder):
            way = "with pgd or trades" if self.tower.adversary.method == "fgsm" else "in more steps"
            self.collapse = (
                f"catastrophic overfitting by step {self.step:,} of {self.steps:,}: accuracy {usual:.2f} under the "
                f"training's own adversary, {harder:.2f} under PGD. Train {way}, or at a smaller eps; the weights are "
                f"those of step {self.good_step:,}"
            )
        return dict(zip(WATCHED, (usual, harder), strict=True))

    def _call(self, when: When) -> None:
        if not self.plan.callbacks or not self.fabric.is_global_zero:
            return
        moment = Moment(
            model=self.model, when=when, step=self.step, steps=self.steps, epoch=self.step / self.feed.steps,
            epochs=self.recipe.epochs, out=None if self.folder is None else self.folder.path, log=dict(self.latest),
        )  # fmt: skip
        with taps.modes_restored(self.model):
            for callback in self.plan.callbacks:
                callback(moment)

    # -- what is kept ------------------------------------------------------------------------------------------------

    def _due(self, last: bool) -> bool:
        if self.folder is None:
            return False
        since = time.monotonic() - self.saved_at
        due = (
            self.step == self.steps
            or since >= self.checkpoint_seconds
            or (last and since * CHECKPOINT_SHARE >= self.save_cost)
        )
        return bool(self.fabric.broadcast(due)) if self.world > 1 else due

    def _save(self) -> None:
        """A checkpoint of now, unless it is no good one (the next loss will say so)."""
        if self.folder is None or not self.fabric.is_global_zero or not self._finite():
            return
        started = time.monotonic()
        rows = [[row.get(column, math.nan) for column in self.log.columns] for row in self.log]
        tensors = {**model_tensors(self.model), **state_tensors(self.model, self.optimiser)}
        tensors["log/rows"] = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(self.log.columns))
        if self.good_step != self.step:
            tensors |= {_GOOD + name: value for name, value in self.good.items()}
        document = {
            "seconds": self._seconds(), "sums": self.sums, "seen": self.counted, "good_step": self.good_step,
            "precision": self.fabric.strategy.precision.state_dict(),
        }  # fmt: skip
        self.folder.save(self.step, tensors, document)
        self.saved_at = time.monotonic()
        self.save_cost = self.saved_at - started

    def _finite(self) -> bool:
        """Whether the weights are, and what the network last answered to the test data with them."""
        if self.plan.labels and self.score is not None and math.isnan(self.score.loss):
            return False
        flags = [torch.isfinite(p.detach()).all() for p in self.model.parameters() if p.is_floating_point()]
        return bool(torch.stack(flags).all())

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _say(self, text: str, level: Literal["info", "warning"] = "info") -> None:
        if self.tell is not None:
            self.tell(Event("train", say=text, level=level))

    # -- the end -----------------------------------------------------------------------------------------------------

    def _finish(self) -> Training:
        if not self._finite():
            self.bad = self.steps
            return self._diverged()
        self.stepper.zero_grad(set_to_none=True)
        if self.plan.test is not None and self.score is None:
            self.score = self.evaluation.score()
        self._call("end")
        return self._result("finished", self.steps)

    def _diverged(self) -> Training:
        assert self.bad is not None
        self.stepper.zero_grad(set_to_none=True)
        self._say(f"the loss of step {self.bad:,} of {self.steps:,} is not finite: diverged", level="warning")
        self.score = None
        good = None
        if self.folder is not None:
            latest = self.folder.latest()
            if latest is not None:
                load_model_tensors(self.model, latest[0])
                good = int(latest[1]["step"])
        return self._result("diverged", self.bad, good)

    def _collapsed(self) -> Training:
        self.stepper.zero_grad(set_to_none=True)
        self._say(self.collapse, level="warning")
        self.score = None
        load_model_tensors(self.model, self.good)
        return self._result("collapsed", self.step, self.good_step)

    def _result(self, status: Status, step: int, good: int | None = None) -> Training:
        checkpoint, seconds = None, self._seconds()
        if self.folder is not None:
            checkpoint = self.folder.final if status == "finished" else self.folder.last_good
            if self.fabric.is_global_zero:
                self.folder.save_model(self.model, checkpoint)
                result = {
                    "status": status, "step": step, "steps": self.steps, "seconds": seconds,
                    "epochs": self.recipe.epochs, "epoch": step / self.feed.steps,
                    "test": None if self.score is None else self.score.as_dict(),
                    "weights": weights_digest(taps.plain(self.model)), "log": self.folder.log_digest(),
                    "file": content_digest(checkpoint),
                }  # fmt: skip
                if status != "finished":
                    result |= {"checkpoint": checkpoint.name, "checkpoint_step": good}
                self.folder.end(result)
        if self.world > 1:
            self.fabric.barrier()
        return Training(
            status=status, step=step, steps=self.steps, epoch=step / self.feed.steps, epochs=self.recipe.epochs,
            log=self.log, test=self.score, seconds=seconds, checkpoint=checkpoint,
            out=None if self.folder is None else self.folder.path, resumed=self.resumed, model=self.model,
        )  # fmt: skip


def _seed(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def _count(inputs: Any) -> int:
    return len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)


# A batch has at most so many samples, and no more than so many numbers unless the recipe's batches have.
BATCH, NUMBERS = 1000, 2**22


class Evaluation:
    """Scores the model of a plan on its test data; each process takes its share of the batches."""

    def __init__(self, fabric: Any, plan: TrainingPlan, dtype: torch.dtype, channels_last: bool) -> None:
        self.fabric, self.plan, self.dtype, self.last = fabric, plan, dtype, channels_last
        self.data: Dataset | None = None
        self.batch = BATCH
        if plan.test is not None:
            self.data = plan.test.to(fabric.device) if has_room(plan.test, fabric.device) else plan.test
            parts = plan.test.inputs.values() if isinstance(plan.test.inputs, dict) else [plan.test.inputs]
            numbers = sum(part[0].numel() for part in parts)
            self.batch = min(BATCH, max(plan.recipe.batch or 1, NUMBERS // max(numbers, 1)))

    def score(self) -> Score:
        """The score of the model as it is now; its modes are put back."""
        plan, data = self.plan, self.data
        assert data is not None
        model = taps.plain(plan.model)
        device = self.fabric.device
        sums = torch.zeros(2, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        starts = range(self.fabric.global_rank * self.batch, len(data), self.fabric.world_size * self.batch)
        precision = self.fabric.strategy.precision
        with taps.modes_restored(model), torch.no_grad():
            model.eval()
            for start in starts:
                batch = next(data.batches(self.batch, start, min(start + self.batch, len(data))))
                batch = _moved(batch, device)
                inputs = precision.convert_input(self._laid(batch.inputs))
                with precision.forward_context():
                    output, inner = plan.outcome(model, inputs)
                    output = precision.convert_output(output)
                count = min(self.batch, len(data) - start)
                value = plan.loss(output, batch.targets) if inner is None else inner
                sums[0] += value.detach() * count
                if plan.labels and batch.targets is not None:
                    sums[1] += hits(output, batch.targets).sum()
        if self.fabric.world_size > 1:
            sums = self.fabric.all_reduce(sums, reduce_op="sum")
        loss, right = sums.tolist()
        n = len(data)
        if not plan.labels:
            return Score(loss / n, n)
        share = share_interval(right / n, n)
        return Score(loss / n, n, right / n, float(share.low), float(share.high))

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
