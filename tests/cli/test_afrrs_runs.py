"""AFRRS from the command line, kill -9 before training included."""

import json
import signal
import time

import pytest

DIGITS = ["--method", "afrrs", "--data", "digits", "--model", "mlp", "--epochs", "1", "--batch-size", "128"]


def test_a_sound_run_is_trained_shown_audited_and_attacked(assay, tmp_path):
    run = tmp_path / "run"
    code, out, err = assay("train", *DIGITS, "--seed", 0, "--epsilon", 3, "--out", run, "--json")
    assert code == 0, err
    record = json.loads(out)
    assert 0.95 * 3 <= record["epsilon"]["verified"] <= 3
    assert [part["name"] for part in record["parts"]] == ["relevance"]
    assert record["parts"][0]["verified"] < record["epsilon"]["verified"]
    assert (run / "relevance.png").exists()
    shown = assay("show", run)[1]
    assert "Before training: the average relevance" in shown
    code, out, err = assay("audit", run, "--releases", 2000, "--seed", 1, "--json")
    assert code == 0, err
    assert json.loads(out)["verdict"] == "consistent"
    code, out, err = assay("attack", run, "--records", 100, "--json")
    assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--option", "explain=data:digits"], ["explain", "digits is the private one"]),
        (["--option", "explain=file:nowhere"], ["explain", "exists"]),
        (["--option", "share=2"], ["share", "between 0 and 1"]),
        (["--variant", "published"], ["Linear layer without bias"]),
        (["--variant", "published", "--clip", "flat:1", "--model", "afrrs-mnist"], ["model", "afrrs-mnist"]),
    ],
)
def test_what_does_not_go_together_is_told_before_anything_is_written(assay, tmp_path, arguments, told):
    code, _, err = assay("train", *DIGITS, "--epsilon", 3, *arguments, "--out", tmp_path / "run")
    assert code == 2, err
    assert all(part in err for part in told), err
    assert not (tmp_path / "run").exists()


def test_epsilon_and_methods_know_it(assay):
    common = ["--method", "afrrs", "--records", 60000, "--batch-size", 500, "--epochs", 30, "--json"]
    sound = json.loads(assay("epsilon", *common, "--noise-multiplier", 2)[1])
    plain = json.loads(assay("epsilon", *common[2:], "--noise-multiplier", 2)[1])
    assert sound["verified"] > plain["verified"]
    published = json.loads(assay("calibrate", *common, "--variant", "published", "--epsilon", 0.6)[1])
    assert 0.999 * 0.6 <= published["claimed"] <= 0.6
    assert published["verified"] == "inf"
    once = ["--option", "objective=record", "--option", "explain=data:digits"]
    finite = json.loads(assay("calibrate", *common, "--variant", "published", "--epsilon", 0.6, *once)[1])
    assert finite["verified"] == pytest.approx(0.199 + 500 * 0.199 / 32 + 0.0691, rel=0.01)
    assert "not sound" in assay("methods", "afrrs")[1]


def entries(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]] if path.exists() else []
    return [line for line in lines if line.get("once")]


def test_a_run_killed_while_it_releases_pays_again_and_keeps_its_ceiling(process, assay, tmp_path):
    arguments = ["train", *DIGITS, "--epsilon", 4, "--option", "share=0.2", "--out", "run"]
    child = process(*arguments)
    ledger, end = tmp_path / "run/ledger.jsonl", time.monotonic() + 120
    while not entries(ledger):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    whole = (tmp_path / "run/stage.safetensors").exists()
    code, out, err = assay("resume", tmp_path / "run", "--json")
    assert code in (0, 3), err
    record = json.loads(out)
    assert record["epsilon"]["verified"] <= 4
    assert len(entries(ledger)) == (1 if whole else 2)
    if not whole:
        assert record["status"] == "budget-spent", "the answer that was lost stays charged"
