"""`assay train` on a table, from its refusal without a schema to a run that is resumed and audited on the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import assay as library
from assay.training.from_names import resume

SCHEMA = """
[columns.patient]
type = "skip"
[columns.age]
type = "number"
low = 0
high = 100
[columns.ward]
type = "category"
levels = ["a", "b"]
[columns.days]
type = "number"
low = 0
high = 20
[columns.ill]
type = "flag"
[columns.back]
type = "flag"
"""
QUICK = ["--epsilon", "3", "--delta", "1e-3", "--epochs", "4", "--seed", "1"]


@pytest.fixture
def stays(tmp_path: Path) -> Path:
    drawn = torch.rand(300, 3, generator=torch.Generator().manual_seed(0)).tolist()
    rows = [
        f"{i // 3},{100 * age:.0f},{'a' if ward < 0.5 else 'b'},{18 * age:.1f}"
        f",{'yes' if age > 0.5 else 'no'},{int(more > 0.7)}"
        for i, (age, ward, more) in enumerate(drawn)
    ]
    (tmp_path / "stays.csv").write_text("\n".join(["patient,age,ward,days,ill,back", *rows, ""]))
    (tmp_path / "stays.toml").write_text(SCHEMA)
    return tmp_path


def train(assay: Any, folder: Path, target: str, *more: str) -> dict[str, Any]:
    command = ["train", "--data", str(folder / "stays.csv"), "--target", target, "--schema", str(folder / "stays.toml")]
    code, _, err = assay(*command, *QUICK, "--out", str(folder / "run"), "--force", *more)
    assert code == 0, err
    record: dict[str, Any] = json.loads((folder / "run" / "record.json").read_text())
    return record


def test_a_table_without_a_schema_is_refused_with_a_template(assay: Any, stays: Path) -> None:
    code, _, err = assay("train", "--data", stays / "stays.csv", "--target", "ill", "--out", stays / "run")
    assert code == 2
    assert '[columns.age]\ntype = "?"' in err
    assert not (stays / "run").exists()


@pytest.mark.parametrize(
    ("target", "kind", "figures"),
    [
        (
            "ill",
            "binary",
            {"test_auc", "test_f1", "test_balanced_accuracy", "test_calibration_error", "test_commonest"},
        ),
        ("days", "regression", {"test_mae", "test_r2", "test_rmse"}),
        ("ill,back", "multilabel", {"test_auc", "test_exact"}),
    ],
)
def test_each_task_is_trained_and_measured(assay: Any, stays: Path, target: str, kind: str, figures: set[str]) -> None:
    record = train(assay, stays, target)
    assert record["task"]["kind"] == kind
    assert figures <= {name for name, value in record["result"].items() if value is not None}
    assert record["table_schema"]["target"] == target.split(",")
    assert float(record["epsilon"]["verified"]) <= 3


@pytest.mark.parametrize(("more", "told"), [((), True), (("--unit", "patient"), False)])
def test_a_table_whose_unit_is_a_row_is_remarked_upon(
    assay: Any, stays: Path, more: tuple[str, ...], told: bool
) -> None:
    command = ["train", "--data", stays / "stays.csv", "--target", "ill", "--schema", stays / "stays.toml"]
    code, _, err = assay(*command, *QUICK, "--out", stays / "run", *more)
    assert code == 0, err
    assert ("note: ε protects one row of the table" in " ".join(err.split())) == told


def test_a_run_finds_its_rows_again_without_the_schema_file(assay: Any, stays: Path) -> None:
    finished = train(assay, stays, "days", "--model", "mlp")
    spec = json.loads((stays / "run" / "run.json").read_text())
    (stays / "stays.toml").unlink()
    for name in ("record.json", "statement.md", "model.safetensors"):
        (stays / "run" / name).unlink()
    assert spec["names"]["schema"]["columns"]
    again = resume(stays / "run")
    assert again.record["result"]["test_mae"] == finished["result"]["test_mae"]


def test_audits_and_attacks_know_which_tasks_they_are_for(assay: Any, stays: Path) -> None:
    train(assay, stays, "ill")
    for command in (("attack", stays / "run", "--attack", "loss", "--records", 20), ("audit", stays / "run")):
        code, _, err = assay(*command)
        assert code == 0, err
    train(assay, stays, "days")
    assert assay("audit", stays / "run")[0] == 0  # of one step, whatever is predicted
    again = ("audit", stays / "run", "--canaries", 10)
    for command in (("attack", stays / "run", "--attack", "loss", "--records", 20), again):
        code, _, err = assay(*command)
        assert code == 2
        assert "regression" in err


def test_a_schema_is_written_for_a_table_and_never_over_another(assay: Any, stays: Path) -> None:
    command = ("data", "schema", stays / "stays.csv", "--out", stays / "own.toml")
    assert assay(*command)[0] == 0
    assert "[columns.ward]" in (stays / "own.toml").read_text()
    assert assay(*command)[0] == 2


def test_python_has_the_settings_of_the_command_line(assay: Any, stays: Path) -> None:
    record = train(assay, stays, "days")
    settings = library.presets.of_options(
        {
            "data": str(stays / "stays.csv"),
            "target": "days",
            "schema": str(stays / "stays.toml"),
            "epsilon": 3,
            "delta": 1e-3,
            "epochs": 4,
            "seed": 1,
        }
    )
    assert library.train(settings).record["result"] == record["result"]


def test_a_table_has_a_preset_wherever_it_comes_from(stays: Path) -> None:
    asked = {"data": "hf:stays", "target": "back", "schema": str(stays / "stays.toml")}
    assert library.presets.default_of(asked) == "best"
    assert library.presets.default_of({**asked, "model": "logistic"}) is None
    pictures = stays / "pictures.toml"
    pictures.write_text("[pictures]\nsize = 8\n")
    assert library.presets.default_of({"data": "hf:scans", "schema": str(pictures)}) is None
    assert library.presets.default_of({"data": "hf:scans"}) is None


def test_the_rows_of_a_person_are_protected_and_split_together(assay: Any, stays: Path) -> None:
    record = train(assay, stays, "ill", "--unit", "patient", "--unit-rows", "3")
    assert float(record["epsilon"]["verified"]) <= 3
    assert "patient" in record["unit"]
