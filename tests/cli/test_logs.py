"""--log tensorboard: what is released anyway, as event files."""

import importlib.util
import json
import socket

import pytest

TRAIN = (
    "train",
    "--data",
    "digits",
    "--model",
    "logistic",
    "--epochs",
    2,
    "--epsilon",
    2,
    "--seed",
    0,
    "--log",
    "tensorboard",
)


def test_only_released_values_are_logged(assay, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    assert assay(*TRAIN, "--out", tmp_path / "run")[0] == 0
    (file,) = (tmp_path / "run").glob("*tfevents*")
    assert socket.gethostname() not in file.name
    logged = [
        (event.step, value.tag, value.tensor.float_val[0])
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tensor.float_val and not value.tag.startswith("final/")
    ]
    history = json.loads((tmp_path / "run/record.json").read_text())["history"]
    names = {"loss/train (released)": "train_loss", "accuracy/test": "test_accuracy", "epsilon/verified": "epsilon"}
    assert {tag for _, tag, _ in logged} == set(names)
    for entry in history:
        for tag, key in names.items():
            assert (entry["step"], tag, pytest.approx(entry[key], rel=1e-6)) in logged
    assert len(logged) == 3 * len(history)


def test_a_log_that_cannot_be_written_is_refused_before_training(assay, tmp_path, monkeypatch):
    code, _, err = assay(*TRAIN[:-1], "neptune", "--out", tmp_path / "run")
    assert code == 2
    assert "log = 'neptune' is not accepted: one of mlflow:" in err
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "tensorboard" else found(name, *a)
    )
    code, _, err = assay(*TRAIN, "--out", tmp_path / "run")
    assert code == 2
    assert "pip install 'tensorboard>=2.16'" in err
    assert not (tmp_path / "run").exists()


def test_dry_run_says_what_would_be_spent_and_writes_nothing(assay, tmp_path):
    dry = [word for word in TRAIN if word not in ("--log", "tensorboard")]
    code, out, _ = assay(*dry, "--out", tmp_path / "run", "--dry-run", "--json")
    assert code == 0
    assert 1.9 < json.loads(out)["verified"] <= 2
    assert not (tmp_path / "run").exists()
