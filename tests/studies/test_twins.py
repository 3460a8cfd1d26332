"""Runs that are taken from another study instead of being trained again, without training anything."""

import json
import os
from dataclasses import replace

import pytest

from assay import Plan, presets
from assay.errors import ConfigError
from assay.report.collect import Collector
from assay.studies import twins
from assay.studies.directory import Study
from assay.studies.grid import Grid

PLAN = Plan(records=10, batch_size=2, steps=3, noise_multiplier=1.0, delta=1e-3)
RUN = {
    "schema": "assay.run/1",
    "plan": PLAN.to_json(),
    "training": {},
    "names": {},
}  # of an earlier version: no digests
RECORD = {
    "schema": "assay.record/1",
    "status": "done",
    "method": "dpsgd",
    "data": "digits",
    "epsilon": {"verified": 1.0, "delta": 1e-3},
    "result": {"test_accuracy": None},
}


def study(root, name, **changed):
    given = {"title": name, "shared": {"epochs": 3}, "axes": {"method": {"a": {"method": "dpsgd"}}}, "seeds": [0]}
    return Study.at(root / "p" / name, Grid(**(given | changed)))


def finished(made, record=None):
    """The study's first run with files such as a finished run has."""
    directory = made.of(next(made.grid.runs()))
    (directory.path / "rounds").mkdir(parents=True)
    (directory.path / "rounds/1.safetensors").write_text("a model on the way")
    (directory.path / "attacks.json").write_text("{}")
    directory.spec.write_text(json.dumps(RUN))
    directory.record.write_text(json.dumps(RECORD) if record is None else record)
    os.utime(directory.record, (1e9, 1e9))
    return made


def taken(made, root):
    return twins.take(made, next(made.grid.runs()), root)


def test_a_finished_run_with_the_same_options_is_copied_with_its_date_but_not_its_attacks(tmp_path):
    finished(study(tmp_path, "one", shared={"epochs": 3, "clip": "flat:1", "force": False}))
    other = study(tmp_path, "other", shared={"clip": "flat:1"}, axes={"x": {"y": {"method": "dpsgd", "epochs": 3}}})
    assert taken(other, tmp_path) == "p/one"
    copy = other.path / "y/seed0"
    assert sorted(path.name for path in copy.rglob("*")) == ["1.safetensors", "record.json", "rounds", "run.json"]
    assert (copy / "record.json").stat().st_mtime == 1e9, "measured when it was trained"
    assert taken(other, tmp_path) is None, "it is there"


@pytest.mark.parametrize(
    "changed",
    [
        {"shared": {"epochs": 4}},
        {"shared": {"epochs": 3, "clip": "flat:1"}},
        {"shared": {"epochs": 3, "secure_rng": True}},
        {"seeds": [1]},
        {"command": "federate"},
    ],
)
def test_another_option_seed_or_command_is_another_run(tmp_path, changed):
    finished(study(tmp_path, "one"))
    other = study(tmp_path, "other", **changed)
    assert taken(other, tmp_path) is None
    assert not other.of(next(other.grid.runs())).path.exists()


PRESET = {"shared": {"data": "mnist", "epsilon": 1.0, "preset": "best"}}


def changed_preset(monkeypatch):
    there = presets.of(PRESET["shared"])
    other = replace(there, settings=there.settings | {"lr": 99.0})
    monkeypatch.setattr(presets, "of", lambda asked: other)


def test_a_run_with_a_preset_is_the_same_while_the_preset_is(tmp_path, monkeypatch):
    finished(study(tmp_path, "one", **PRESET))
    assert taken(study(tmp_path, "two", **PRESET), tmp_path) == "p/one"
    typed = {**presets.of(PRESET["shared"]).settings, **PRESET["shared"]}
    assert taken(study(tmp_path, "three", shared=typed), tmp_path) == "p/one", "what it stands for, said in full"
    changed_preset(monkeypatch)
    assert taken(study(tmp_path, "four", **PRESET), tmp_path) is None


def test_a_preset_is_that_of_the_data_set_that_commands_take_without_one(tmp_path):
    made = study(tmp_path, "one", shared={"epsilon": 1.0, "preset": "best"})
    assert next(made.grid.runs()).decided["lr"] == presets.get("best", "mnist", 1.0).settings["lr"]


def test_a_study_is_not_gone_on_with_when_its_preset_has_changed(tmp_path, monkeypatch):
    begun = finished(study(tmp_path, "one", **PRESET))
    assert study(tmp_path, "one", **PRESET).unfinished() == []
    assert next(Study.open(begun.path).grid.runs()).decided["lr"] == 4.0
    changed_preset(monkeypatch)
    with pytest.raises(ConfigError, match=r"presets\.best, mnist, 1\.0\.lr was 4\.0 and now is 99\.0"):
        study(tmp_path, "one", **PRESET)
    assert next(Study.open(begun.path).grid.runs()).decided["lr"] == 4.0, "what it was begun with"


def test_the_order_of_an_option_given_several_times_matters(tmp_path):
    finished(study(tmp_path, "one", shared={"epochs": 3, "denoise": ["a", "b"]}))
    assert taken(study(tmp_path, "other", shared={"epochs": 3, "denoise": ["b", "a"]}), tmp_path) is None


@pytest.mark.parametrize("record", ["{", "{}", json.dumps({**RECORD, "status": "unfinished"})])
def test_only_a_record_that_says_so_is_a_finished_run(tmp_path, record):
    finished(study(tmp_path, "one"), record)
    assert taken(study(tmp_path, "other"), tmp_path) is None


def test_a_damaged_study_beside_it_is_passed_over(tmp_path):
    (tmp_path / "p/damaged").mkdir(parents=True)
    (tmp_path / "p/damaged/study.json").write_text("{")
    finished(study(tmp_path, "one"))
    assert taken(study(tmp_path, "other"), tmp_path) == "p/one"


def test_a_run_that_has_begun_is_left_alone(tmp_path):
    finished(study(tmp_path, "one"))
    other = study(tmp_path, "other")
    begun = other.of(next(other.grid.runs()))
    begun.path.mkdir(parents=True)
    begun.spec.write_text("{}")
    assert taken(other, tmp_path) is None
    assert [path.name for path in begun.path.iterdir()] == ["run.json"]


def test_a_copy_that_was_killed_is_no_run_and_is_made_again(tmp_path):
    one = finished(study(tmp_path, "one"))
    other = study(tmp_path, "other")
    killed = other.path / "a/.seed0.part"
    killed.mkdir(parents=True)
    (killed / "record.json").write_text((one.path / "a/seed0/record.json").read_text())
    assert len(other.unfinished()) == 1
    found = Collector(other.path).collect()
    assert (found.finished, found.damaged, found.waiting) == ((), (), ("a/seed0",))
    assert taken(other, tmp_path) == "p/one"
    assert not killed.exists()
    assert other.unfinished() == []


def test_a_copy_that_fails_leaves_nothing(tmp_path, monkeypatch):
    finished(study(tmp_path, "one"))
    other = study(tmp_path, "other")

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr("assay._util.files.os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        taken(other, tmp_path)
    assert list((other.path / "a").iterdir()) == []
