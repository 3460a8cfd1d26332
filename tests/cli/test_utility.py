"""What makes private models better, as a user types it: features, augmentation, averages, presets, tuning, transfer."""

import json
from importlib.util import find_spec

import pytest

needs_kymatio = pytest.mark.skipif(find_spec("kymatio") is None, reason="kymatio is not installed")
DIGITS = ("train", "--data", "digits", "--epochs", 2)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@needs_kymatio
def test_a_run_on_features_says_so_and_resumes_on_them(assay, tmp_path):
    out = tmp_path / "run"
    words = (
        "--data",
        "digits",
        "--features",
        "scatter:J=1,L=4",
        "--model",
        "scatter-linear",
        "--epochs",
        2,
        "--clip",
        0.1,
    )
    code, _, err = assay("train", *words, "--lr", 4, "--seed", 1, "--out", out)
    assert code == 0, err
    record = json.loads((out / "record.json").read_text())
    assert record["features"] == "scatter:J=1,L=4"
    statement = (out / "statement.md").read_text()
    assert "Features: scattering transform with 1 scales and 4 angles" in statement
    assert "They cost no privacy: each record's features depend on that record" in statement
    weights = json.loads((out / "run.json").read_text())["names"]
    assert weights["features"] == "scatter:J=1,L=4"
    assert record["result"]["test_accuracy"] > 0.5
