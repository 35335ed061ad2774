"""The folder of a run: what it is (``config.json``), where it stands (``checkpoints/``, ``log.csv``), how it ended
(``result.json``, ``model.safetensors``). One process at a time writes there.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lisse.identity import hash_tensor
from lisse.profile_file.replacement import remove_left, write_tensors, writing
from lisse.training.result import Log, Score, Status

KEPT = 2


class Folder:
    """``out`` of a training, opened by :meth:`lock`."""

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
    def lock(self) -> Iterator[None]:
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
            for folder in (self.path, self.checkpoints):
                remove_left(folder)  # of a process that was killed while it wrote
            yield
        finally:
            os.close(handle)

    # -- what the run is -------------------------------------------------------------------------------------------

    def begin(self, config: Mapping[str, Any]) -> None:
        """Write what the run is, or check that the run that is here is the same one."""
        file = self.path / "config.json"
        if not file.exists():
            for path in (self.final, self.checkpoints):
                if path.exists():
                    raise FileExistsError(
                        f"train: out must be a new folder or that of a run, got {self.path}, which holds {path.name} "
                        "but no config.json. Choose another folder."
                    )
            _write_json(file, config)
            return
        try:
            before = json.loads(file.read_text("utf-8"))
            if not isinstance(before, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
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
        try:
            return json.loads((self.path / "config.json").read_text("utf-8"))["model"]["weights"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None  # :meth:`begin` says that it is damaged

    # -- where it stands -------------------------------------------------------------------------------------------

    def save(self, step: int, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        """A checkpoint of ``step``; older ones but one go away once it is on the disk, and damaged ones after it."""
        self.checkpoints.mkdir(exist_ok=True)
        try:
            write_checkpoint(self._checkpoint(step), tensors, {"step": step, **document})
        except OSError as error:
            raise self._no_room(error) from error
        checkpoints = self._files()
        index = checkpoints.index(self._checkpoint(step))
        for path in (*checkpoints[:index], *checkpoints[index + KEPT :]):
            path.unlink(missing_ok=True)

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any], list[str]] | None:
        """The newest whole checkpoint (tensors, document) and complaints about newer ones; ``None`` without any."""
        complaints: list[str] = []
        for path in self._files():
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
        return next(iter(self._files()), None)

    def _files(self) -> list[Path]:
        return sorted(self.checkpoints.glob("step-*.safetensors"), reverse=True)

    def _checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:012d}.safetensors"

    def _no_room(self, error: OSError) -> OSError:
        newest = self.newest()
        comfort = f"The last good checkpoint, {newest}, is safe" if newest else "No checkpoint was written yet"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "os error 28" in str(error).lower()
        why = "the disk is full" if full or "No space" in str(error) else (error.strerror or str(error))
        return OSError(
            f"train: out must have room for a checkpoint, got {self.path}: {why}. {comfort}: make room and repeat the "
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

    def log_digest(self) -> str:
        """A hash of the log as it is on the disk."""
        return content_digest(self.log_file)

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
        try:
            result = json.loads(file.read_text("utf-8"))
            states = result["status"] in get_args(Status) and isinstance(result["weights"], str)
            numbers = [result[key] for key in ("step", "steps", "epoch", "epochs", "seconds")]
            Score(**(result["test"] or {"loss": 0.0, "n": 0}))
        except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
            return None  # a damaged one: the run ends again, from its last checkpoint
        return result if states and all(isinstance(number, (int, float)) for number in numbers) else None


def differences(before: Mapping[str, Any], after: Mapping[str, Any], where: str = "") -> list[str]:
    """``name = old instead of new`` for everything that differs; what starts with an underscore is only information."""
    lines = []
    for key in dict.fromkeys((*before, *after)):
        if key.startswith("_"):
            continue
        name = f"{where}{key}"
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += differences(old, new, f"{name} ")
        elif old != new:
            lines.append(f"{name} = {_short(old)} instead of {_short(new)}")
    return lines


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _cells(log: Log, row: Mapping[str, float]) -> list[str]:
    return ["" if math.isnan(value := row.get(column, math.nan)) else repr(value) for column in log.columns]


def _number(column: str, text: str) -> float:
    return int(text) if column in ("epoch", "step") else float(text)


def content_digest(path: Path) -> str:
    """A hash of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12)).hexdigest()


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with writing(path) as file:
        file.write((json.dumps(value, indent=1) + "\n").encode())


class Board:
    """Writes rows of the log as scalars; a resumed run takes back what was written after its checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                'train: tensorboard must be installed for tensorboard=True, got none. pip install "lisse[tensorboard]"'
            ) from error
        self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def __call__(self, row: Mapping[str, float]) -> None:
        """Write one epoch's row at its step."""
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name, value, int(row["step"]))
        self.writer.flush()

    def close(self) -> None:
        """Finish the file."""
        self.writer.close()


# A checkpoint is one file that holds a whole moment of a run: weights, optimiser, position and log. Tensors with JSON
# in their header, so that the two cannot disagree; never a pickle. The header has a digest of both: one flipped bit
# would else go on silently, to other weights. Files of format 1 have none.
_FORMAT = 2
_KEY = "lisse-training"


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    """Tensors and document in one file: ``path`` is whole or not there at all."""
    content = {"format": _FORMAT, **document}
    write_tensors(path, tensors, lambda written: {_KEY: json.dumps({**content, "digest": _digest(written, content)})})


def _digest(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> str:
    digest = hashlib.blake2b(json.dumps(document).encode(), digest_size=20)
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}\n".encode())
        hash_tensor(digest, tensors[name])
    return digest.hexdigest()


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the document of a file that :func:`write_checkpoint` wrote; a ``ValueError`` if it is none."""
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dict
        document = json.loads(text)
    except (SafetensorError, ValueError, RuntimeError, RecursionError) as error:
        raise ValueError(f"train: {path} must be a checkpoint of a training, got a damaged file ({error}).") from error
    if not isinstance(document, dict) or document.get("format") not in (1, _FORMAT):
        raise ValueError(f"train: {path} must be a checkpoint of a training of this version, got another.")
    if document.pop("digest", None) != _digest(tensors, document) and document["format"] == _FORMAT:
        raise ValueError(f"train: {path} must be a checkpoint as it was written, got a damaged file (digest).")
    return tensors, document


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers of a model, as ``model/NAME``."""
    return {f"model/{name}": value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def load_model_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy what :func:`model_tensors` gave into a model of the same architecture."""
    weights = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    state = model.state_dict()
    addresses = {(state[name].data_ptr(), tuple(state[name].shape)) for name in weights if name in state}
    missing = [
        name for name, value in state.items()
        if name not in weights and isinstance(value, Tensor)
        and value.numel() and (value.data_ptr(), tuple(value.shape)) not in addresses
    ]  # fmt: skip
    wrong = [name for name, value in weights.items() if name not in state or state[name].shape != value.shape]
    if missing or wrong:
        raise ValueError(
            f"train: model must be that of the run's checkpoint, got another architecture "
            f"({', '.join((missing + wrong)[:4])} differ). Choose another folder with out=…"
        )
    model.load_state_dict(weights, strict=False)
