"""`assay show`: a record alone makes the statement, of central, staged and federated runs and of earlier versions."""

import json
import shutil

import pytest

from assay.runs.statement import statement

SMALL = ("--data", "digits", "--model", "mlp", "--seed", 7)
RUNS = {
    "central": ("train", "--epochs", 0.2, "--batch-size", 128, "--epsilon", 2),
    "staged": ("train", "--epochs", 0.2, "--batch-size", 128, "--epsilon", 2, "--center", "mean:noise=40"),
    "federated": ("federate", "--noise", "local", "--clients", 20, "--per-round", 5, "--rounds", 2, "--delta", 1e-3),
}


@pytest.fixture(params=RUNS)
def run(request, assay, tmp_path):
    command, *options = RUNS[request.param]
    code, _, err = assay(command, *SMALL, *options, "--out", tmp_path / "run")
    assert code == 0, err
    return tmp_path / "run"


def test_a_copied_record_makes_the_statement_of_its_run(assay, run, tmp_path):
    copied = tmp_path / "copy.json"
    shutil.copy(run / "record.json", copied)
    assert assay("show", copied)[:2] == assay("show", run)[:2]
    record = json.loads(copied.read_text())
    assert statement(record) == (run / "statement.md").read_text()
    assert json.loads(assay("show", copied, "--json")[1]) == record


def test_a_run_of_an_earlier_version_is_shown_and_audited(assay, run):
    """Such records have no sentences, and central ones no kind; run.json has what is missing."""
    record, spec = (json.loads((run / name).read_text()) for name in ("record.json", "run.json"))
    before = record.pop("sentences")
    for one in (record, spec):
        if one["kind"] == "central":
            del one["kind"]
        del one["digest"]
        one["schema"] = one["schema"].replace("/2", "/1")
    del record["files"]
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("digest")
    lines[0]["schema"] = "assay.ledger/1"
    lines[0].pop("run")
    (run / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "record.json").write_text(json.dumps(record))
    (run / "run.json").write_text(json.dumps(spec))
    assert assay("show", run)[1].startswith("# Privacy statement")
    code, _, err = assay("show", run / "record.json")
    assert code == 1
    assert "without `sentences`" in err
    assert assay("audit", run, "--releases", 200, "--seed", 1)[0] == 0
    record = json.loads((run / "record.json").read_text())
    assert record["sentences"] == before
    text = assay("show", run / "record.json")[1]
    row = next(line for line in text.splitlines() if line.startswith("| audited |"))
    assert f"ε {row.split('|')[2].strip()} with" in record["audit"]["sentence"], "rounded the same way on one page"


def test_what_is_no_record_is_refused(assay, tmp_path):
    for text in ("[]", "{", '{"schema": "assay.run/1"}'):
        (tmp_path / "other.json").write_text(text)
        code, _, err = assay("show", tmp_path / "other.json")
        assert code == 1
        assert "other.json" in err
