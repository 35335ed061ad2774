"""The folder of a run: what it is (``config.json``), where it stands (``checkpoints/``, ``log.csv``), how it ended
(``result.json``, ``model.safetensors``). One process at a time writes there.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn

from lisse.profile_file.container import writing
from lisse.training.checkpoint import load_model_tensors, read_checkpoint, write_checkpoint
from lisse.training.result import Log

KEPT = 2
_LEFT = re.compile(r"\.((config|result)\.json|log\.csv|(model|last-good|step-\d+)\.safetensors)\.[0-9a-f]{8,16}\.tmp")


class Folder:
    """``out`` of a training, opened by :meth:`held`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.final = path / "model.safetensors"
        self.last_good = path / "last-good.safetensors"
        self.log_file = path / "log.csv"
        self.tensorboard = path / "tensorboard"
        self._rows = 0

    # -- who may write ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder and hold it: a second process gets an error. The system lets go when a process dies."""
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR, 0o666)
        try:
            try:
                import fcntl

                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:  # pragma: no cover - not on Windows
                pass
            except BlockingIOError as error:
                raise RuntimeError(
                    f"train: out must not be in use, got {self.path}, where another training is writing. Wait for it, "
                    "or choose another folder."
                ) from error
            for left in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")):
                if _LEFT.fullmatch(left.name):  # of a process that was killed while it wrote
                    left.unlink(missing_ok=True)
            yield
        finally:
            os.close(handle)

    # -- what the run is -------------------------------------------------------------------------------------------

    def begin(self, config: Mapping[str, Any]) -> None:
        """Write what the run is, or check that the run that is here is the same one."""
        file = self.path / "config.json"
        if not file.exists():
            for there in (self.final, self.checkpoints):
                if there.exists():
                    raise FileExistsError(
                        f"train: out must be a new folder or that of a run, got {self.path}, which holds {there.name} "
                        "but no config.json. Choose another folder."
                    )
            _write_json(file, config)
            return
        try:
            before = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"train: {file} must be JSON, got a damaged file. Choose another folder.") from error
        differing = differences(before, json.loads(json.dumps(config)))
        if differing:
            anew = all(text.startswith("model weights = ") for text in differing)
            hint = " Load the model anew: a run knows it by the weights it began with." if anew else ""
            raise ValueError(
                f"train: out must be a new folder or that of the same run, got {self.path}, where the run has "
                f"{'; '.join(differing[:6])}. Choose another folder, or repeat the command as it was.{hint}"
            )

    def begun_weights(self) -> Any:
        """The hash of the weights that the run of this folder began with."""
        return json.loads((self.path / "config.json").read_text("utf-8"))["model"].get("weights")

    # -- where it stands -------------------------------------------------------------------------------------------

    def save(self, step: int, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        """A checkpoint of ``step``; older ones but one go away once it is on the disk, and damaged ones after it."""
        self.checkpoints.mkdir(exist_ok=True)
        try:
            write_checkpoint(self._checkpoint(step), tensors, {"step": step, **document})
        except OSError as error:
            raise self._no_room(error) from error
        found = self._found()
        here = found.index(self._checkpoint(step))
        for path in (*found[:here], *found[here + KEPT :]):
            path.unlink(missing_ok=True)

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any], list[str]] | None:
        """The newest whole checkpoint (tensors, document) and complaints about newer ones; ``None`` without any."""
        complaints: list[str] = []
        for path in self._found():
            try:
                tensors, document = read_checkpoint(path)
            except ValueError as error:
                complaints.append(str(error))
                continue
            return tensors, document, complaints
        if complaints:
            raise ValueError(f"{complaints[0]} No other is left: choose another folder.")
        return None

    def newest(self) -> Path | None:
        """The file of the newest checkpoint."""
        return next(iter(self._found()), None)

    def _found(self) -> list[Path]:
        return sorted(self.checkpoints.glob("step-*.safetensors"), reverse=True)

    def _checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:012d}.safetensors"

    def _no_room(self, error: OSError) -> OSError:
        newest = self.newest()
        kept = f"The last good checkpoint, {newest}, is safe" if newest else "No checkpoint was written yet"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "os error 28" in str(error).lower()
        why = "the disk is full" if full or "No space" in str(error) else (error.strerror or str(error))
        return OSError(
            f"train: out must have room for a checkpoint, got {self.path}: {why}. {kept}: make room and repeat the "
            "command."
        )

    # -- the log ---------------------------------------------------------------------------------------------------

    def rewrite_log(self, log: Log) -> None:
        """Put the log on the disk as it is now, whole: rows that a killed process wrote later are gone."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(log.columns)
        table.writerows(_cells(log, row) for row in log)
        try:
            with writing(self.log_file) as file:
                file.write(text.getvalue().encode())
        except OSError as error:
            raise self._no_room(error) from error
        self._rows = len(log)

    def append_log(self, log: Log) -> None:
        """Add the rows that are not there yet."""
        try:
            with open(self.log_file, "a", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(_cells(log, row) for row in log[self._rows :])
        except OSError as error:
            raise self._no_room(error) from error
        self._rows = len(log)

    def read_log(self) -> Log:
        """The log as it is on the disk."""
        if not self.log_file.exists():
            return Log(())
        with open(self.log_file, encoding="utf-8", newline="") as file:
            table = list(csv.reader(file))
        columns = table[0] if table else []
        rows = [
            {column: _number(column, text) for column, text in zip(columns, row, strict=True) if text}
            for row in table[1:]
        ]
        return Log(columns, rows)

    # -- the weights -----------------------------------------------------------------------------------------------

    def save_model(self, model: nn.Module, path: Path) -> None:
        """The weights alone, as a file that :func:`lisse.load_model` reads where the model came from a spec."""
        card: Any = getattr(model, "lisse", None)
        try:
            if getattr(card, "architecture", ""):
                card.save(model, path)
            else:
                weights = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
                write_checkpoint(path, weights, {})
        except (OSError, SafetensorError) as error:
            raise self._no_room(error if isinstance(error, OSError) else OSError(errno.EIO, str(error))) from error

    def load_model(self, model: nn.Module, path: Path) -> None:
        """Put back what :meth:`save_model` wrote."""
        card: Any = getattr(model, "lisse", None)
        if getattr(card, "architecture", ""):
            card.load(model, path)
        else:
            load_model_tensors(model, {f"model/{name}": value for name, value in read_checkpoint(path)[0].items()})

    # -- how it ended ----------------------------------------------------------------------------------------------

    def end(self, result: Mapping[str, Any]) -> None:
        """Mark the run as ended; from now on a rerun returns at once."""
        try:
            _write_json(self.path / "result.json", result)
        except OSError as error:
            raise self._no_room(error) from error

    def ended(self) -> dict[str, Any] | None:
        """How the run ended, or ``None``."""
        file = self.path / "result.json"
        if not file.exists():
            return None
        found = json.loads(file.read_text("utf-8"))
        return found if isinstance(found, dict) else None


def differences(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> list[str]:
    """``name = old instead of new`` for everything that differs; what starts with an underscore is only information."""
    found = []
    for key in dict.fromkeys((*before, *now)):
        if key.startswith("_"):
            continue
        name = f"{where}{key}"
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{name} ")
        elif old != new:
            found.append(f"{name} = {_short(old)} instead of {_short(new)}")
    return found


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _cells(log: Log, row: Mapping[str, float]) -> list[str]:
    return ["" if math.isnan(value := row.get(column, math.nan)) else repr(value) for column in log.columns]


def _number(column: str, text: str) -> float:
    return int(text) if column in ("epoch", "step") else float(text)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with writing(path) as file:
        file.write((json.dumps(value, indent=1) + "\n").encode())
