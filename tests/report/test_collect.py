"""Every run is found in whatever state it is, none is dropped, none is touched."""

import json
import math
import shutil

import pytest

from assay.attacks.storage import write_attacks
from assay.errors import ConfigError
from assay.report.collect import Collector
from assay.report.groups import Tone, group_runs, verdict
from assay.runs.directory import RunDirectory
from assay.runs.statement import statement
from assay.studies.directory import Study
from assay.studies.grid import Grid

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


def snapshot(root):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def test_finished_unfinished_and_damaged_are_all_named_and_left_alone(tmp_path, run, resealed, unfinished):
    run(tmp_path / "deep/er/done")
    unfinished(tmp_path / "stopped")
    (run(tmp_path / "torn") / "record.json").write_text('{"schema": "assay.rec')
    (run(tmp_path / "future") / "record.json").write_text('{"schema": "assay.record/99"}')
    (run(tmp_path / "wrong") / "record.json").write_text('{"schema": "assay.record/1", "method": 3}')
    nonsense = run(tmp_path / "nonsense") / "record.json"
    record = json.loads(nonsense.read_text())
    record["epsilon"]["verified"] = "a lot"
    resealed(nonsense.parent, record)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/.run.json.77.part").write_text("{")
    before = snapshot(tmp_path)
    found = Collector(tmp_path).collect()
    assert [entry.name for entry in found.finished] == ["deep/er/done"]
    assert [entry.name for entry in found.unfinished] == ["stopped"]
    assert {entry.name for entry in found.damaged} == {"torn", "future", "wrong", "nonsense", "begun"}
    assert "assay.record/99" in next(entry.why for entry in found.damaged if entry.name == "future")
    assert snapshot(tmp_path) == before, "a torn ledger of a run at work is not repaired by somebody who reads it"


def test_what_an_unfinished_run_has_spent_is_what_its_ledger_says(tmp_path, trained, unfinished):
    unfinished(tmp_path / "stopped")
    (entry,) = Collector(tmp_path).collect().unfinished
    record = json.loads((trained / "record.json").read_text())
    assert (entry.charged, entry.planned) == (record["steps_charged"], record["steps"])
    assert entry.epsilon == pytest.approx(record["epsilon"]["verified"], rel=0.01)
    assert (entry.method, entry.data, entry.model) == ("gredp", "digits", "logistic")


def test_a_run_that_says_less_than_its_ledger_counts_nowhere(tmp_path, trained, resealed):
    """All digests agree: somebody has written them again."""
    record = json.loads((trained / "record.json").read_text())
    record["epsilon"]["verified"] = 0.5
    shutil.copytree(trained, tmp_path / "run")
    resealed(tmp_path / "run", record, statement(record))
    found = Collector(tmp_path).collect()
    assert not found.finished
    (entry,) = found.damaged
    assert "record.json says ε = 0.5, but run/ledger.jsonl gives" in entry.why


@pytest.mark.parametrize("forged", [True, False], ids=["its digest too", "by hand"])
def test_a_statement_that_was_edited_is_not_shown_and_holds_nothing(tmp_path, run, resealed, forged):
    path = run(tmp_path / "run", variant="sound", target_is="verified", target=10.0, verified=3.0, claimed=3.0)
    text = (path / "statement.md").read_text()
    assert verdict(group_runs(Collector(tmp_path).collect().finished)[0]).tone is Tone.GOOD
    edited = text.replace("spent ε = 3 ", "spent ε = 0.5 ")
    assert edited != text
    if forged:
        resealed(path, json.loads((path / "record.json").read_text()), edited)
    else:
        (path / "statement.md").write_text(edited)
    (entry,) = Collector(tmp_path).collect().finished
    assert not entry.statement
    assert "statement.md" in entry.trouble
    assert verdict(group_runs([entry])[0]).tone is Tone.BAD


def test_a_damaged_ledger_is_said_and_is_no_zero(tmp_path, unfinished):
    ledger = unfinished(tmp_path / "stopped") / "ledger.jsonl"
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join([lines[0], "garbage", *lines[1:-1]]) + "\n")
    (entry,) = Collector(tmp_path).collect().unfinished
    assert entry.epsilon is None
    assert "damaged" in entry.trouble


def test_a_run_itself_and_a_study_with_runs_not_begun(tmp_path, run):
    run(tmp_path / "one")
    assert [entry.name for entry in Collector(tmp_path / "one").collect().finished] == ["one"]
    grid = Grid(title="A study", shared={}, axes={"method": {"a": {}, "b": {}}}, seeds=[0])
    study = Study.at(tmp_path / "study", grid)
    run(tmp_path / "study/a/seed0")
    found = Collector(study.path).collect()
    assert (found.title, found.waiting) == ("A study", ("b/seed0",))
    study.file.write_text("{")
    assert "study.json" in Collector(study.path).collect().damaged[0].why


def test_pictures_and_attacks(tmp_path, run):
    path = run(tmp_path / "one")
    (path / "maps").mkdir()
    (path / "maps/heat.png").write_bytes(PNG)
    (path / "fake.png").write_bytes(b"<script>alert(1)</script>")
    write_attacks(RunDirectory(path), [{"attack": "loss", "auc": {"value": 0.5}}])
    write_attacks(RunDirectory(path), [{"attack": "loss", "auc": {"value": 0.6}}])
    (entry,) = Collector(tmp_path).collect().finished
    assert entry.attacks == (), "no ε covers them"
    (entry,) = Collector(tmp_path, uncovered=True).collect().finished
    assert [(p.name, bool(p.data), p.why) for p in entry.pictures] == [
        ("fake.png", False, "not a PNG picture"),
        ("maps/heat.png", True, ""),
    ]
    assert [attack["auc"]["value"] for attack in entry.attacks] == [0.6]
    (path / "attacks.json").write_text("{}")
    (entry,) = Collector(tmp_path, uncovered=True).collect().finished
    assert entry.attacks == ()
    assert "attacks.json" in entry.trouble


def test_collecting_again_sees_what_has_changed_and_only_that(tmp_path, run, monkeypatch):
    run(tmp_path / "a")
    collector = Collector(tmp_path)
    first, token = collector.collect(), collector.fingerprint()
    assert collector.fingerprint() == token
    run(tmp_path / "b", verified="inf")
    assert collector.fingerprint() != token
    second = collector.collect()
    assert second.finished[0] is first.finished[0]
    assert math.isinf(float(second.finished[1].record["epsilon"]["verified"]))


def test_a_directory_is_asked_for(tmp_path):
    with pytest.raises(ConfigError, match="directory"):
        Collector(tmp_path / "nowhere")


def test_an_empty_ledger_has_spent_nothing(tmp_path, unfinished):
    path = unfinished(tmp_path / "stopped")
    (path / "ledger.jsonl").write_text('{"schema": "assay.led')
    (entry,) = Collector(tmp_path).collect().unfinished
    assert (entry.charged, entry.epsilon) == (0, 0.0)
