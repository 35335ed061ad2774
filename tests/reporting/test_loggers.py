"""Profiles in TensorBoard, W&B and MLflow: written by the loggers themselves into folders, and read back from them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import lisse
from lisse.instruments import Sensitivity
from lisse.profile import Headline, Part, Profile, Quantity, Row
from lisse.reporting.loggers import scalars

R = Quantity("ratio", "R", "a ratio", better="lower", headline=Headline("R f"))
PROFILE = Profile(
    (
        Part(
            "toy",
            (
                Row("ratio", 0.5, "estimate", 10, layer="block.0", depth=0.5, low=0.25, high=0.75),
                Row("ratio", 2.0, "estimate", 10, layer="block 1", depth=1.0, low=1.5, high=float("inf")),
            ),
            (R,),
        ),
    ),
    {"training": {"step": 30}},
)
HEADLINE = {"lisse/R_f": 2.0, "lisse/R_f.low": 1.5}
LAYERS = {"lisse/layers/ratio/block.0": 0.5, "lisse/layers/ratio/block_1": 2.0}


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars that TensorBoard would show of a folder, by tag, and ``images`` under their own."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    tags = reader.Tags()
    shown = {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in tags["scalars"]}
    return shown | {tag: [(event.step, event.width) for event in reader.Images(tag)] for tag in tags["images"]}


def test_names_are_plain_and_infinite_numbers_are_left_out() -> None:
    assert scalars(PROFILE) == HEADLINE
    assert scalars(PROFILE, layers=True) == HEADLINE | LAYERS


def test_tensorboard(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    assert PROFILE.log(writer) == 2  # at the profile's own step
    assert PROFILE.log(writer, step=40, layers=True, figure=True) == 4
    shown = events(tmp_path)
    assert shown["lisse/R_f"] == [(30, 2.0), (40, 2.0)]
    assert shown["lisse/layers/ratio/block.0"] == [(40, 0.5)]
    assert [step for step, _ in shown["lisse/overview"]] == [40]
    writer.close()


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer ones want a database, which the small package lacks
    package = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    before = package.get_tracking_uri()
    package.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield package
    while package.active_run() is not None:
        package.end_run()
    package.set_tracking_uri(before)


def test_mlflow(mlflow: Any) -> None:
    with mlflow.start_run() as run:
        PROFILE.log(mlflow, step=1)
        PROFILE.log(run, step=2)
        PROFILE.log(step=3, figure=True)  # the run that is open
    client = mlflow.MlflowClient()
    points = client.get_metric_history(run.info.run_id, "lisse/R_f")
    assert [(point.step, point.value) for point in points] == [(1, 2.0), (2, 2.0), (3, 2.0)]
    assert [item.path for item in client.list_artifacts(run.info.run_id, "lisse")] == [
        "lisse/overview-step-00000003.png"
    ]


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log behind a header of 7 bytes: what W&B writes offline."""
    position, record = 7, b""
    while position + 7 <= len(data):
        room = 32768 - position % 32768
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        if room < 7 or kind == 0:  # the rest of a block that is too short for another header
            position += room
            continue
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            yield record
            record = b""


def offline_history(folder: Path) -> list[dict[str, Any]]:
    """The history in the file that W&B writes offline."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.rglob("*.wandb")
    for _ in range(600):  # its service may still be writing when the run is finished
        records = []
        for data in log_records(path.read_bytes()):
            records.append(wandb_internal_pb2.Record())
            records[-1].ParseFromString(data)
        if records and records[-1].WhichOneof("record_type") == "exit":
            break
        time.sleep(0.1)
    histories = [record.history.item for record in records if record.WhichOneof("record_type") == "history"]
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items} for items in histories
    ]


@pytest.mark.slow
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its service is a process of its own, which takes seconds to start and to end."""
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "600")  # it may start slowly on a busy machine
    run = wandb.init(mode="offline", dir=str(tmp_path), project="lisse")
    run.log({"loss": 1.0})
    PROFILE.log(run, step=7)
    PROFILE.log(step=5, figure=True)  # the run that is open; its own steps go on, ours may be any
    run.finish()
    history = offline_history(tmp_path)
    numbers = [{key: line[key] for key in ("lisse/R_f", "lisse/step")} for line in history if "lisse/R_f" in line]
    assert numbers == [{"lisse/R_f": 2.0, "lisse/step": 7}, {"lisse/R_f": 2.0, "lisse/step": 5}]
    assert [kind for line in history if (kind := line.get("lisse/overview/_type"))] == ["image-file"]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_lightning_trainers_own_logger_gets_the_numbers(tmp_path: Path) -> None:
    lightning = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")
    from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
    from torch.utils.data import DataLoader

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            loss = self.net(batch).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    samples = torch.randn(24, 6)
    watch = lisse.Watch(samples, Sensitivity(points=2, samples=10), module="net", figures=True)
    loggers = [TensorBoardLogger(str(tmp_path), "board"), CSVLogger(str(tmp_path), "table")]
    trainer = lightning.Trainer(
        max_epochs=2, logger=loggers, callbacks=[watch.lightning()], accelerator="cpu", log_every_n_steps=1,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(samples, 12))
    shown = events(tmp_path / "board" / "version_0")
    assert [step for step, _ in shown["lisse/stretch"]] == [0, 2, 4]
    assert len(shown["loss"]) == 4
    assert [step for step, _ in shown["lisse/overview"]] == [0, 2, 4]
    assert "lisse/stretch" in (tmp_path / "table" / "version_0" / "metrics.csv").read_text()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_hugging_face_trainer_reports_them_where_it_reports(tmp_path: Path, mlflow: Any, monkeypatch: Any) -> None:
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate, which is not installed")
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, num_labels=3,
        max_position_embeddings=16,
    )  # fmt: skip
    tokens = torch.randint(1, 30, (24, 6))
    samples = [{"input_ids": tokens[index], "labels": torch.tensor(index % 3)} for index in range(24)]
    arguments = TrainingArguments(
        str(tmp_path / "hf"), num_train_epochs=2, save_strategy="no", report_to=["tensorboard", "mlflow"], use_cpu=True,
        per_device_train_batch_size=6, disable_tqdm=True, logging_steps=2,
    )  # fmt: skip
    watch = lisse.Watch({"input_ids": tokens}, Sensitivity(points=2, samples=10))
    Trainer(
        BertForSequenceClassification(config), arguments, train_dataset=samples, callbacks=[watch.trainer()]
    ).train()
    (folder,) = {path.parent for path in (tmp_path / "hf" / "runs").rglob("events*")}
    shown = events(folder)
    assert [step for step, _ in shown["lisse/stretch"]] == [0, 4, 8]
    assert len(shown["train/loss"]) == 4
    (run,) = mlflow.search_runs(output_format="list")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "lisse/stretch")
    assert [point.step for point in history] == [0, 4, 8]


def test_a_watch_sends_to_a_logger_of_ones_own_or_to_none_and_a_broken_one_stops_nothing() -> None:
    sent: list[tuple[int, int]] = []
    logger = SimpleNamespace(log_metrics=lambda numbers, step: sent.append((step, len(numbers))))
    model, data = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(12, 4)
    lisse.Watch(data, Sensitivity(points=2), log=logger).measure(model, step=3)
    assert [step for step, _ in sent] == [3]
    lisse.Watch(data, Sensitivity(points=2), log=False).measure(model, step=4)
    assert len(sent) == 1

    def broken(numbers: Any, step: int) -> None:
        raise OSError("no room")

    watch = lisse.Watch(data, Sensitivity(points=2), log=SimpleNamespace(log_metrics=broken))
    with pytest.warns(UserWarning, match="step 5 is not in SimpleNamespace: OSError: no room"):
        watch.measure(model, step=5)
    assert list(watch.profiles) == [5]


def test_bad_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"log: target must be a SummaryWriter, .* got list"):
        PROFILE.log([])
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match="log: target must be given where no run"):
        PROFILE.log()
