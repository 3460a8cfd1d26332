"""The model of a finished run: loaded with its preparation, asked for predictions, exported and compared."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import assay
from assay.federated.from_names import FederatedSettings, federate

COLUMNS = {
    "age": {"type": "number", "low": 0, "high": 100},
    "ward": {"type": "category", "levels": ["a", "b"]},
    "days": {"type": "number", "low": 0, "high": 20},
    "ill": {"type": "flag"},
    "back": {"type": "flag"},
}
TOML = "\n".join(
    f"[columns.{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in column.items())
    for name, column in COLUMNS.items()
)
PATIENT = {"age": 70, "ward": "a", "days": 5, "ill": "yes", "back": 0}


def settings(**given: Any) -> assay.Settings:
    return assay.Settings(epsilon=3, delta=1e-3, epochs=1, seed=1, **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables and pictures, and runs on them."""
    root = tmp_path_factory.mktemp("afterwards")
    rows = torch.rand(120, 3, generator=torch.Generator().manual_seed(0)).tolist()
    lines = [
        f"{100 * a:.0f},{'a' if w < 0.5 else 'b'},{18 * a:.1f},{'yes' if a > 0.5 else 'no'},{int(m > 0.7)}"
        for a, w, m in rows
    ]
    (root / "stays.csv").write_text("\n".join([",".join(COLUMNS), *lines, ""]))
    (root / "stays.toml").write_text(TOML)
    for target in ("ill", "days", "ill,back"):
        chosen = settings(data=str(root / "stays.csv"), target=target, schema=root / "stays.toml", model="logistic")
        assay.train(chosen, out=root / target)
    for name, level in (("dark", 30), ("light", 220)):
        (root / "pictures" / name).mkdir(parents=True)
        for i in range(12):
            Image.new("RGB", (9, 7), (level + i,) * 3).save(root / "pictures" / name / f"{i}.png")
    (root / "pictures.toml").write_text("[pictures]\nsize = 8\nchannels = 1\n")
    chosen = settings(data=str(root / "pictures"), schema=root / "pictures.toml", model="logistic")
    assay.train(chosen, out=root / "seen")
    best = assay.presets.settings("digits", epsilon=3).changed(epochs=1, seed=1)
    assay.train(best, out=root / "best")
    return root


def test_a_model_of_features_with_a_mean_answers_as_the_run_measured(folder: Path) -> None:
    model = assay.load(folder / "best")
    assert model.record["features"].startswith("scatter")
    assert "input_shift" in dict(model.network.named_buffers())
    digits = assay.data.load("digits")
    found = model.predict(digits.test_x)
    right = np.mean([int(said) == int(true) for said, true in zip(found.values, digits.test_y, strict=True)])
    assert right == pytest.approx(model.record["result"]["test_accuracy"])
    assert torch.equal(model(digits.test_x[:5]), model(digits.test_x[:9])[:5])
    assert model.statement == (folder / "best" / "statement.md").read_text()


@pytest.mark.parametrize("kind", ["list", "frame", "columns", "file", "features"])
def test_rows_of_every_kind_are_prepared_by_the_schema(folder: Path, kind: str, tmp_path: Path) -> None:
    import pandas

    rows = [PATIENT, {**PATIENT, "age": None, "ward": "unseen"}]
    model = assay.load(folder / "ill")
    expected = model.predict(rows)
    frame = pandas.DataFrame(rows)
    frame.to_csv(tmp_path / "new.csv", index=False)
    given = {
        "list": [dict(reversed(row.items())) for row in rows],
        "frame": frame,
        "columns": frame.to_dict("list") | {"age": [70, None]},
        "file": tmp_path / "new.csv",
        "features": model.preparation.prepare(rows).x.numpy(),
    }[kind]
    found = model.predict(given)
    np.testing.assert_array_equal(found.array, expected.array)
    assert found.task.names == ("no", "yes")
    assert found.probabilities.sum(axis=1) == pytest.approx([1, 1])


def test_a_regression_answers_in_the_units_of_its_target(folder: Path) -> None:
    found = assay.load(folder / "days").predict([PATIENT])
    assert len(found.values) == 1
    assert -10 < found.values[0] < 30
    with pytest.raises(assay.ConfigError, match="values"):
        _ = found.probabilities


def test_several_labels_each_have_their_probability(folder: Path) -> None:
    found = assay.load(folder / "ill,back").predict([{"age": 99, "ward": "b", "days": 18}])
    assert found.task.names == ("ill", "back")
    assert found.values[0] == tuple(n for n, p in zip(("ill", "back"), found.probabilities[0], strict=True) if p >= 0.5)


def test_a_folder_of_pictures_is_prepared_as_the_run_did(folder: Path) -> None:
    model = assay.load(folder / "seen")
    found = model.predict(folder / "pictures")
    assert found.labels[0] == "dark/0.png"
    one = model.predict([Image.open(folder / "pictures" / "dark" / "0.png")])
    np.testing.assert_array_equal(one.array[0], found.array[0])


def test_pixels_and_shapes_that_are_not_the_runs_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = assay.load(folder / "seen")
    with pytest.raises(assay.ConfigError, match="transpose"):
        model.predict(np.zeros((2, 8, 8, 1)))
    with pytest.raises(assay.ConfigError, match=r"x\[None\]"):
        model.predict(np.zeros((1, 8, 8)))
    with pytest.raises(assay.DataError, match=r"127\.5"):
        model.predict(np.full((2, 1, 8, 8), 200))
    model.predict(np.full((2, 1, 8, 8), 0.9))
    assert "2 * x - 1" in caplog.text


def test_a_federated_run_is_loaded(tmp_path: Path) -> None:
    chosen = FederatedSettings(data="digits", model="logistic", clients=10, rounds=1, epsilon=8, seed=1)
    result = federate(chosen, out=tmp_path / "run")
    digits = assay.data.load("digits")
    found = assay.load(tmp_path / "run").predict(digits.test_x)
    right = np.mean([int(said) == int(true) for said, true in zip(found.values, digits.test_y, strict=True)])
    assert right == pytest.approx(result.accuracy)


def test_a_model_made_in_python_is_given_its_architecture(tmp_path: Path) -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    plan = assay.Plan.calibrated(epsilon=3, delta=1e-3, records=40, batch_size=10, epochs=1)
    torch.manual_seed(0)
    result = assay.fit(nn.Linear(3, 2), TensorDataset(x, (x[:, 0] > 0).long()), plan=plan, out=tmp_path / "run")
    with pytest.raises(assay.ConfigError, match=r"run\.json says in its field made_by .*model=\.\.\."):
        assay.load(tmp_path / "run")
    with pytest.raises(assay.ConfigError, match="weight has shape"):
        assay.load(tmp_path / "run", model=nn.Linear(3, 5))
    loaded = assay.load(tmp_path / "run", model=nn.Linear(3, 2))
    assert torch.equal(loaded(x), result.model(x))
    assert loaded.predict(x).probabilities.shape == (40, 2)


def test_a_run_made_in_python_says_how_it_goes_on(command: Any, tmp_path: Path) -> None:
    class Kill(assay.Callback):
        def on_step(self, progress: assay.Progress) -> None:
            raise KeyboardInterrupt

    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    plan = assay.Plan.calibrated(epsilon=3, delta=1e-3, records=40, batch_size=10, epochs=1)
    data, run = TensorDataset(x, (x[:, 0] > 0).long()), tmp_path / "run"
    names = {"data": "patients", "model": "net"}
    with pytest.raises(KeyboardInterrupt):
        assay.fit(nn.Linear(3, 2), data, plan=plan, out=run, names=names, callbacks=[Kill()])
    assert f"assay.resume(model, train, {str(run)!r})" in (run / "UNFINISHED.txt").read_text()
    code, _, err = command("resume", run)
    assert code == 2, err
    assert "assay.resume" in err
    assay.resume(nn.Linear(3, 2), data, run)
    for how in (["attack", run], ["audit", run, "--canaries", "10"]):
        code, _, err = command(*how)
        assert code == 2, err
        assert "a run started from Python" in err


def test_a_damaged_file_is_named(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder / "ill", tmp_path / "ill")
    whole = (tmp_path / "ill" / "model.safetensors").read_bytes()
    (tmp_path / "ill" / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(assay.AssayError, match=r"model\.safetensors is damaged"):
        assay.load(tmp_path / "ill")


@pytest.fixture
def command(assay: Any) -> Any:
    """The command line; the fixture has the name of the package."""
    return assay


def test_the_command_predicts_and_never_overwrites(command: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("back,ward,days,age\n0,a,5,70\n1,unseen,3,\n")
    answers = tmp_path / "answers.csv"
    code, _, err = command("predict", folder / "ill", tmp_path / "new.csv", "--out", answers)
    assert code == 0, err
    assert "not the records predicted here" in err
    assert (tmp_path / "answers.csv.statement.md").read_text() == assay.load(folder / "ill").statement
    rows = list(csv.DictReader(answers.open()))
    assert [row["row"] for row in rows] == ["2", "3"]
    assert all(float(row["p(no)"]) + float(row["p(yes)"]) == pytest.approx(1, abs=1e-5) for row in rows)
    code, _, err = command("predict", folder / "ill", tmp_path / "new.csv", "--out", answers)
    assert code == 2
    assert "--force" in err
    code, _, err = command("predict", folder / "ill", tmp_path / "new.csv", "--out", answers, "--force")
    assert code == 0, err
    (tmp_path / "short.csv").write_text("back,ward\n0,a\n")
    code, _, err = command("predict", folder / "ill", tmp_path / "short.csv")
    assert code == 1
    assert "has no column 'age'" in err


def test_a_program_runs_without_assay_and_carries_the_statement(command: Any, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "best.pt2"
    code, said, err = command("export", folder / "best", "--out", out)
    assert code == 0, err
    assert "records × 1 × 8 × 8" in said
    x = assay.data.load("digits").test_x[:7]
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import sys, torch; extra = {'statement.md': '', 'assay.json': ''};"
        f"p = torch.export.load({str(out)!r}, extra_files=extra).module();"
        f"torch.save(p(torch.load({str(tmp_path / 'x.pt')!r})), {str(tmp_path / 'y.pt')!r});"
        "assert 'assay' not in sys.modules; sys.stdout.write(extra['statement.md'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    statement = (folder / "best" / "statement.md").read_text()
    assert done.stdout == statement == (tmp_path / "best.pt2.statement.md").read_text()
    expected = assay.load(folder / "best").predict(x).array
    np.testing.assert_allclose(torch.load(tmp_path / "y.pt").numpy(), expected, atol=1e-4)
    code, _, err = command("export", folder / "best", "--out", out)
    assert code == 2
    assert "--force" in err


def test_an_onnx_model_answers_as_the_original(folder: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    described = assay.export(folder / "days", tmp_path / "days.onnx", format="onnx")
    assert described["input"]["features"][0] == "age"
    session = runtime.InferenceSession(str(tmp_path / "days.onnx"))
    model = assay.load(folder / "days")
    x = model.preparation.prepare([PATIENT, {**PATIENT, "age": 20}]).x
    found = session.run(None, {"records": x.numpy()})[0]
    np.testing.assert_allclose(found, model.predict(x).array, rtol=1e-4)
    held = session.get_modelmeta().custom_metadata_map
    assert held["statement"] == (folder / "days" / "statement.md").read_text()
    assert json.loads(held["assay"])["privacy"]["epsilon"] == model.epsilon
