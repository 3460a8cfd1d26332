"""`--unit`: persons from the command line, end to end."""

import json

import numpy as np
import pytest


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """50 persons with one to five rows each."""
    path = tmp_path_factory.mktemp("data") / "visits.npz"
    ids = np.repeat(np.arange(50), 1 + np.arange(50) % 5)
    x = np.random.default_rng(0).normal(size=(len(ids), 4)).astype("float32")
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(int), patient_id=[f"P{i:03d}" for i in ids])
    return path


BASE = ("--model", "linear-head", "--epochs", 4, "--delta", 1e-3, "--epsilon", 3)


@pytest.mark.parametrize("sampling", ["persons", "rows"])
def test_train_and_calibrate(assay, visits, tmp_path, sampling):
    unit = ("--unit", "patient_id", "--unit-rows", 3, "--unit-sampling", sampling)
    code, _, err = assay("train", "--data", visits, *unit, *BASE, "--out", tmp_path / "run")
    assert code == 0, err
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["unit"] == "one patient_id with all of their rows"
    assert record["persons"]["sampled"] == sampling
    assert record["persons"]["rows"] == 3
    assert (record["records"] == record["persons"]["persons"]) == (sampling == "persons")
    assert 2.9 < record["epsilon"]["verified"] <= 3
    statement = (tmp_path / "run" / "statement.md").read_text()
    assert "unit of privacy: one patient_id with all of their rows" in statement
    _, dry, _ = assay("train", "--data", visits, *unit, *BASE, "--out", tmp_path / "new", "--dry-run", "--json")
    assert json.loads(dry)["verified"] == record["epsilon"]["verified"]


def test_calibrate_says_which_way_is_better(assay):
    asked = ("--unit", "patient_id", "--persons", 50, "--unit-rows", 3, "--records", 120, "--batch-size", 30)
    more = ("--steps", 20, "--epsilon", 3, "--delta", 1e-3)
    said = json.loads(assay("calibrate", *asked, *more, "--json")[1])
    ways = {way["unit_sampling"]: way["noise_in_average"] for way in said["ways"]}
    assert said["better"] == min(ways, key=ways.__getitem__)
    assert f"less noise: --unit-sampling {said['better']}" in assay("calibrate", *asked, *more)[1]
    code, _, err = assay("calibrate", *asked[:2], "--records", 120, *more)
    assert code == 2
    assert "--persons" in err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--unit", "patient"), "patient"),
        (("--unit-rows", 3), "unit_rows"),
        (("--unit", "patient_id", "--unit-rows", 0), "unit_rows"),
        (("--unit", "patient_id", "--unit-sampling", "rows"), "unit_rows"),
        (("--unit", "patient_id", "--unit-sampling", "visits"), "persons or rows"),
        (("--unit", "patient_id", "--micro-batch", 2), "micro_batch"),
        (("--unit", "patient_id", "--center", "mean:noise=40"), "center"),
    ],
)
def test_what_does_not_go_together_is_refused(assay, visits, tmp_path, given, told):
    code, _, err = assay("train", "--data", visits, *BASE, *given, "--out", tmp_path / "run")
    assert code != 0
    assert told in err
    assert not (tmp_path / "run").exists()
