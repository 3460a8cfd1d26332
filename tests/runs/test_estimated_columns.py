"""Runs whose columns were estimated: charged first, within ε, once, under a budget, and by person."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

import assay
from assay._util.files import lock
from assay.accounting.budget import Budget
from assay.accounting.epsilon import Adjacency, epsilon
from assay.accounting.ledger import read_ledger
from assay.data.tables.drafts import read_draft, training_rows
from assay.errors import AssayError, BudgetSpentError, ConfigError, DataError
from assay.presets import of_options
from assay.runs.callbacks import Callback
from assay.runs.result import InterruptedRunError
from assay.training.budgets import create
from assay.training.from_names import resume


@pytest.fixture(scope="module")
def stays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw, path = random.Random(0), tmp_path_factory.mktemp("stays") / "stays.csv"
    with path.open("w") as file:
        file.write("who,age,ward,back\n")
        for row in range(4000):
            age, ward = draw.randint(18, 95), draw.choice(["heart", "other"])
            file.write(f"{row // 2},{age},{ward},{'yes' if age > 60 else 'no'}\n")
        file.write("2001,about 40,secret ward,never seen\n")
    return path


def asked(stays: Path, **changes):
    given = {"data": str(stays), "target": "back", "schema": "auto", "unit": "who", "epsilon": 3, "delta": 1e-4}
    return of_options({**given, "epochs": 3, **changes})


def test_an_estimate_is_charged_first_and_the_whole_stays_within_epsilon(stays: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = assay.train(asked(stays), out=run)
    columns = {one["name"]: one for one in result.record["table_schema"]["columns"]}
    assert columns["ward"]["levels"] == ["heart", "other"]
    assert columns["back"]["levels"] == ["no", "yes"]
    assert columns["age"]["type"] == "number"
    assert 0.9 * 3 < result.epsilon <= 3
    ledger = read_ledger(run / "ledger.jsonl")
    assert ledger is not None
    first = ledger.charges()[0]
    assert first.once
    share = epsilon(first.event, 1e-4, Adjacency.ADD_OR_REMOVE_ONE)
    assert 0.7 < share <= 0.75
    assert any("levels of 3 columns" in part["name"] for part in result.record["parts"])
    assert "estimated" in result.statement
    lines = [line for line in result.statement.splitlines() if line and not line.startswith("|---")]
    assert sum(math.ceil(len(line) / 130) for line in lines) <= 72  # a page in small print
    assert not (run / "estimate.jsonl").exists()


def test_a_table_is_not_read_twice_for_one_charge(stays: Path, tmp_path: Path) -> None:
    """A run that never began leaves its charge, and the same request takes what was shown; another one is refused."""
    from assay.training.from_names import begin_run

    run = tmp_path / "run"
    first = begin_run(asked(stays), out=run)
    charged = (run / "estimate.jsonl").read_bytes()
    again = begin_run(asked(stays), out=run)
    assert again.names["schema"] == first.names["schema"]
    assert (run / "estimate.jsonl").read_bytes() == charged
    with pytest.raises(ConfigError, match="another estimate of columns was charged there"):
        begin_run(asked(stays, epsilon=2), out=run)
    with (run / "estimate.jsonl").open("rb") as file:  # as a process that is at it holds it
        assert lock(file)
        with pytest.raises(AssayError, match="at work"):
            begin_run(asked(stays, epsilon=2), out=run, force=True)
    (run / "schema.json").unlink()  # somebody may have seen it
    with pytest.raises(ConfigError, match="another estimate of columns was charged there"):
        begin_run(asked(stays), out=run)
    begin_run(asked(stays), out=run, force=True)
    assert (run / "ledgers" / "001.jsonl").read_bytes() == charged


def test_a_total_counts_an_estimate_that_no_run_followed(stays: Path, tmp_path: Path) -> None:
    from assay.training.from_names import begin_run

    run = tmp_path / "run"
    begin_run(asked(stays), out=run)
    alone = assay.runs.total([run])
    (part,) = alone.parts
    assert 0.7 < alone.epsilon <= 0.75
    assert (part.begun, part.unit, part.data, part.delta) == (False, "who", str(stays), 1e-4)
    begin_run(asked(stays, epsilon=2), out=run, force=True)
    both = assay.runs.total([run])
    assert both.epsilon > alone.epsilon
    assert (both.parts[0].replaced, both.unit) == (1, "who")
    (run / "schema.json").unlink()  # a process was killed before it was written: who is protected is not known
    with pytest.raises(ConfigError, match="one unit in all runs"):
        assay.runs.total([run])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"run\.json"):
        assay.runs.total([tmp_path / "empty"])


def test_a_budget_covers_the_estimate_before_it_is_made(stays: Path, tmp_path: Path, monkeypatch) -> None:
    from assay.training.from_names import begin_run

    monkeypatch.chdir(tmp_path)
    create("stays", epsilon=3, delta=1e-4, data=str(stays), unit="who")
    with pytest.raises(BudgetSpentError):
        begin_run(asked(stays, epsilon=5, budget="stays"), out=tmp_path / "much")
    assert not (tmp_path / "much" / "estimate.jsonl").exists()
    begin_run(asked(stays, epsilon=1, budget="stays"), out=tmp_path / "one")  # and then the process is killed
    (account,) = Budget("stays").state().accounts
    assert account.open
    result = assay.train(asked(stays, epsilon=1, budget="stays"), out=tmp_path / "one")
    (account,) = Budget("stays").state().accounts
    assert not account.open
    assert result.epsilon <= 1
    assert Budget("stays").spent() >= result.epsilon * 0.9


def test_a_run_under_a_budget_is_resumed_although_somebody_has_no_usable_target(
    stays: Path, tmp_path: Path, monkeypatch
) -> None:
    class Stops(Callback):
        def on_step(self, progress):
            raise TimeoutError

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "some.csv"
    path.write_text(stays.read_text() + "".join(f"p{i},40,heart,\n" for i in range(50)))
    create("stays", epsilon=3, delta=1e-4, data=str(path), unit="who")
    with pytest.raises(TimeoutError):
        assay.train(asked(path, epsilon=1, budget="stays"), out=tmp_path / "one", callbacks=[Stops()])
    assert resume(tmp_path / "one").epsilon <= 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "auto:share=0.001"}, "stand out of the noise"),
        ({"records": 100}, "all records with --schema auto"),
        ({"target": "height"}, "a column of the table"),
        ({"unit": "ward", "target": "ward"}, "beside the unit"),
    ],
)
def test_what_cannot_be_estimated_is_refused_before_it_is_charged(stays, tmp_path, changes, said) -> None:
    with pytest.raises(ConfigError, match=said):
        assay.train(asked(stays, **changes), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Stops(assay.Callback):
    def on_step(self, progress: assay.Progress) -> None:
        raise InterruptedRunError(f"after step {progress.step}")


def test_a_value_that_a_person_declared_otherwise_is_refused_before_anything_is_charged(stays, tmp_path) -> None:
    """An estimate leaves out what does not fit; what somebody declared must fit, as without an estimate."""
    schema, run = tmp_path / "schema.toml", tmp_path / "run"
    schema.write_text('[table]\ncolumns = "auto"\n[columns.age]\ntype = "number"\nlow = 0\nhigh = 120\n')
    with pytest.raises(DataError, match=r"row 4002, column 'age': 'about 40' is not accepted"):
        assay.train(asked(stays, schema=str(schema)), out=run)
    assert not run.exists()
    schema.write_text('[table]\ncolumns = "auto"\n[columns.back]\ntype = "flag"\n')
    with pytest.raises(DataError, match=r"row 4002, column 'back': 'never seen' is not accepted"):
        assay.train(asked(stays, schema=str(schema)), out=run)
    assert not run.exists()


def test_rows_without_a_usable_target_are_left_out_and_counted_in_every_rate(tmp_path: Path) -> None:
    """Also in a run that is resumed, and where the inputs' mean is released first, as the preset for tables does."""
    path, run = tmp_path / "t.csv", tmp_path / "run"
    rows = [f"{age},{'' if age % 50 == 7 else 'yes' if age > 1000 else 'no'}\n" for age in range(2000)]
    path.write_text("age,back\n" + "".join(rows))
    settings = of_options({"data": str(path), "target": "back", "schema": "auto", "epsilon": 3, "epochs": 1})
    with pytest.raises(InterruptedRunError):
        assay.train(settings, out=run, callbacks=[Stops()])
    result = resume(run)
    used = assay.load(run).record["records"]
    there = training_rows(path, read_draft(path, "auto", "back", None), None)
    usable = sum(value in ("yes", "no") for value in there.table.rows["back"].to_pylist())
    assert usable < used == there.units
    assert result.record["center"] is not None
    assert result.epsilon <= 3
