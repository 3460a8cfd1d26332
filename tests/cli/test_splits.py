"""A run's records are told apart by their content, and whoever reads the run gets the same ones."""

import json

import numpy as np
import pytest

from assay.errors import ConfigError
from assay.runs.directory import RunDirectory
from assay.training.inputs import load, of_run

TRAIN = ("train", "--model", "logistic", "--epochs", 1, "--batch-size", 64, "--epsilon", 4, "--seed", 0)


def test_what_reads_a_run_gets_its_records(assay, tmp_path):
    out = tmp_path / "run"
    code, text, err = assay(*TRAIN, "--data", "digits", "--records", 700, "--validation", "--json", "--out", out)
    assert code == 0, err
    record = json.loads(text)
    assert record["split"] == {"by": "content", "share": 700 / 1437}
    assert "follows from its own content" in (out / "statement.md").read_text()
    spec = RunDirectory.open(out).read_spec()
    again, _ = of_run(spec, None, 0, instead="")
    asked = load("digits", None, 700, validation=True)
    assert again.train_x.equal(asked.train_x)
    assert again.test_x.equal(asked.test_x)
    assert len(again.train_x) == record["records"]
    assert len(again.train_x) + len(again.test_x) == record["validation_of"]
    for command in (("attack", out, "--attack", "loss", "--records", 50), ("audit", out, "--canaries", 30)):
        code, _, err = assay(*command)
        assert code == 0, err


def test_a_run_of_an_earlier_version_gets_the_first_records(assay, tmp_path):
    """It says nothing of a split."""
    out = tmp_path / "run"
    assert assay(*TRAIN, "--data", "digits", "--out", out)[0] == 0
    spec = RunDirectory.open(out).read_spec()
    del spec["names"]["split"]
    spec["plan"]["records"] = 200
    bundle, _ = of_run(spec, None, 0, instead="")
    assert bundle.train_x.equal(load("digits", None, None).train_x[:200])


def test_another_file_under_the_name_of_a_runs_own_is_refused(assay, tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "own.npz"
    x, y = rng.normal(size=(400, 4)), rng.integers(0, 2, 400)
    np.savez(path, x=x, y=y)
    out = tmp_path / "run"
    assert assay(*TRAIN, "--data", path, "--out", out)[0] == 0
    assert "unit of privacy: one training record of the file" in (out / "statement.md").read_text()
    np.savez(path, x=x[:300], y=y[:300])
    with pytest.raises(ConfigError, match="the records of the run"):
        of_run(RunDirectory.open(out).read_spec(), None, 0, instead="")


def test_what_a_replaced_run_spent_is_told_for_ever(assay, tmp_path):
    out = tmp_path / "run"
    for _ in range(3):
        assert assay(*TRAIN, "--data", "digits", "--force", "--out", out)[0] == 0
    ledgers = sorted(path.name for path in (out / "ledgers").iterdir())
    assert ledgers == ["001.json", "001.jsonl", "002.json", "002.jsonl"]
    code, text, err = assay("show", out)
    assert code == 0
    assert text.startswith("# Privacy statement")
    assert err.count("an earlier run in this directory was charged") == 2
    assert "ledgers/002.jsonl" in err
    assert json.loads(assay("show", out, "--json")[1])["steps"] > 0, "nothing but JSON on standard output"
