"""TensorBoard, W&B and MLflow get what a run has released, and nothing else."""

import json
import os
import socket
import struct
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from assay import ConfigError, Plan, Training, fit, loggers, resume
from assay.runs.callbacks import OnStep

PLAN = Plan(records=60, batch_size=20, steps=9, noise_multiplier=1.0, delta=1e-3)
NAMES = ("loss/train (released)", "accuracy/test", "epsilon/verified")
FIELDS = ("train_loss", "test_accuracy", "epsilon")


def records(seed: int = 0) -> TensorDataset:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x[:, :3].argmax(1))


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 3)


def from_tensorboard(folder):
    """(step, name, value), and texts by name."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found, texts = [], {}
    for file in sorted(folder.glob("*tfevents*")):
        assert socket.gethostname() not in file.name
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "text":
                    texts[value.tag] = value.tensor.string_val[0].decode()
                else:
                    found.append((event.step, value.tag, value.tensor.float_val[0]))
    return found, texts


def wandb_records(data: bytes):
    """The records in a .wandb file: a log of LevelDB's form, whose blocks have 32 KiB, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    at, part = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            yield record
            part = b""


def from_wandb(folder):
    """(step, name, value), and the kinds of everything in the file."""
    found, kinds = [], set()
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in wandb_records(file.read_bytes()):
            kinds.add(record.WhichOneof("record_type"))
            if record.HasField("history"):
                items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                step = items["_step"]
                found += [(step, name, value) for name, value in items.items() if not name.startswith("_")]
    return found, kinds


def from_mlflow(folder):
    """(step, name, value), and the run's artifacts by name."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
    (experiment,) = [e for e in client.search_experiments() if e.name == "assay"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    found = [
        (point.step, name, point.value)
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    ]
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    return found, {p.name: p.read_text() for p in artifacts.iterdir()}, run.data


def epochs(found, names=NAMES):
    return sorted((step, name, pytest.approx(value, rel=1e-6)) for step, name, value in found if name in names)


@pytest.mark.skipif(os.name != "posix", reason="file stores by path")
def test_what_is_released_is_logged_and_the_raw_loss_is_not(tmp_path):
    for package in ("tensorboard", "wandb", "mlflow"):
        pytest.importorskip(package)
    raw = []

    def loss(outputs, targets):
        losses = F.cross_entropy(outputs, targets, reduction="none")
        if outputs.requires_grad:
            raw.extend([*losses.tolist(), float(losses.detach().mean()), float(losses.detach().sum())])
        return losses

    folder = tmp_path / "logs"
    logs = [made(directory=folder) for made in (loggers.TensorBoard, loggers.WandB, loggers.MLflow)]
    watched = fit(
        network(), records(), plan=PLAN, test=records(1), loss=loss, training=Training(seed=3), callbacks=logs
    )
    plain = fit(network(), records(), plan=PLAN, test=records(1), loss=loss, training=Training(seed=3))
    assert torch.equal(watched.model.weight, plain.model.weight), "a run that is logged is the same run"

    history = watched.record["history"]
    expected = sorted((e["step"], n, e[f]) for e in history for n, f in zip(NAMES, FIELDS, strict=True))
    boards, texts = from_tensorboard(folder)
    assert epochs(boards) == expected
    bees, kinds = from_wandb(folder)
    assert epochs(bees) == expected
    flows, files, mlflow_run = from_mlflow(folder)
    renamed = {n.replace("(", "").replace(")", ""): n for n in NAMES}
    assert epochs([(s, renamed.get(n, n), v) for s, n, v in flows]) == expected

    final = {f"final/{n}" for n, v in watched.record["result"].items() if v is not None}
    for found in (boards, bees, flows):
        assert {name for _, name, _ in found} - {*NAMES, *renamed} == final
        seen = [value for _, _, value in found]
        assert not [v for v in seen for r in raw if abs(v - r) <= 1e-6 * abs(r)], "a raw loss is logged"
    assert texts["statement.md"] == files["statement.md"] == watched.statement
    assert texts["README.md"] == files["README.md"]
    assert float(mlflow_run.params["epsilon.verified"]) == watched.epsilon
    assert "mlflow.user" not in mlflow_run.tags
    assert "artifact" in kinds
    assert not kinds & {"output", "output_raw", "stats"}, "neither the console nor the machine is copied"
    assert not list(folder.rglob("output.log")) + list(folder.rglob("wandb-metadata.json"))


def test_a_run_that_is_resumed_goes_on_in_the_same_mlflow_run(tmp_path):
    pytest.importorskip("mlflow")
    stopped = OnStep(lambda now: 1 / 0 if now.step == 4 else None)

    def log():
        return loggers.MLflow(directory=tmp_path / "run")

    with pytest.raises(ZeroDivisionError):
        fit(network(), records(), plan=PLAN, test=records(1), out=tmp_path / "run", callbacks=[stopped, log()])
    result = resume(network(), records(), tmp_path / "run", test=records(1), callbacks=[log()])
    found, _, _ = from_mlflow(tmp_path / "run")
    assert sorted(step for step, name, _ in found if name == "epsilon/verified") == [3, 6, 9]
    assert max(value for _, name, value in found if name == "epsilon/verified") == pytest.approx(result.epsilon)


def test_settings_of_a_logger_are_checked():
    pytest.importorskip("wandb")
    with pytest.raises(ConfigError, match="log wandb mode"):
        loggers.WandB(mode="onlin")
    with pytest.raises(ConfigError, match="one of its settings: project"):
        loggers.parse("wandb:colour=red")
    assert [type(one).__name__ for one in loggers.parse("tensorboard+wandb:project=hearts")] == ["TensorBoard", "WandB"]
    assert loggers.parse("wandb")[0].mode == "offline", "nothing leaves the machine unless somebody says so"
