"""Tables by a schema: what becomes of a column, what a row's features depend on, and what a template tells."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay import data
from assay.data import tables
from assay.data.tables.cells import MISSING, count_cells
from assay.data.tables.columns import read_number
from assay.data.tables.drafts import read_draft, training_rows
from assay.data.tables.encoding import texts
from assay.data.tables.loading import read
from assay.data.tables.schema import as_schema
from assay.errors import AssayError, ConfigError, DataError

SCHEMA: dict[str, Any] = {
    "age": {"type": "number", "low": 0, "high": 100},
    "ward": {"type": "category", "levels": ["surgery", "medicine"]},
    "seen": {"type": "date", "first": "2020-01-01", "last": "2020-12-31"},
    "smoker": {"type": "flag"},
    "signs": {"type": "labels", "levels": ["fever", "cough"], "separator": "+"},
    "note": {"type": "text", "size": 8},
    "key": {"type": "skip"},
    "died": {"type": "category", "levels": ["no", "yes"]},
}
COLUMNS: dict[str, list[Any]] = {
    "age": ["25", "", "250"],
    "ward": ["medicine", "kitchen", "NA"],
    "seen": ["2020-01-01", "2020-12-31T10:30", ""],
    "smoker": ["Yes", "0", "?"],
    "signs": ["fever+cough", "", "cough"],
    "note": ["a long night", "", "night"],
    "key": ["x1", "x2", "x3"],
    "died": ["yes", "no", "no"],
}


def prepared(**changed: Any) -> dict[str, np.ndarray[Any, Any]]:
    schema = as_schema(SCHEMA, "died")
    x = tables.features(read(pa.table({**COLUMNS, **changed})), schema)
    return dict(zip(schema.feature_names(), x.T, strict=True))


def test_every_type_of_column_becomes_what_is_declared() -> None:
    found = prepared()
    assert found["age"].tolist() == [0.25, 0.0, 1.0]  # scaled, missing, clamped
    assert found["age is missing"].tolist() == [0, 1, 0]
    assert found["ward=medicine"].tolist() == [1, 0, 0]
    assert found["ward is another"].tolist() == [0, 1, 0]
    assert found["ward is missing"].tolist() == [0, 0, 1]
    assert found["seen"].tolist() == [0, 1, 0]
    assert found["cosine of seen in the year"][0] == 1
    assert found["smoker"].tolist() == [1, 0, 0]
    assert found["smoker is missing"].tolist() == [0, 0, 1]
    assert found["signs has fever"].tolist() == [1, 0, 0]
    assert found["signs has cough"].tolist() == [1, 0, 1]
    assert found["signs is missing"].tolist() == [0, 0, 0]
    words = np.stack([found[f"words of note, cell {i}"] for i in range(8)], axis=1)
    assert np.linalg.norm(words, axis=1) == pytest.approx([1, 0, 1])
    assert not any("key" in name or "died" in name for name in found)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.just(""), st.integers(-(10**9), 10**9).map(str), st.floats(-1e30, 1e30).map(str)),
            st.sampled_from(["surgery", "medicine", "", "kitchen", "ward 7"]),
            st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
        ),
        min_size=2,
        max_size=12,
    )
)
def test_a_rows_features_depend_on_that_row_alone_and_stay_within_bounds(rows: list[tuple[str, str, str]]) -> None:
    schema = as_schema({name: SCHEMA[name] for name in ("age", "ward", "note", "died")}, "died")

    def features(some: list[tuple[str, str, str]]) -> np.ndarray[Any, Any]:
        columns = dict(zip(("age", "ward", "note"), map(list, zip(*some, strict=True)), strict=True))
        return tables.features(read(pa.table(columns)), schema)

    together = features(rows)
    assert np.abs(together).max() <= 1 + 1e-6
    assert np.array_equal(together[1:], features(rows[1:]))
    assert np.array_equal(together[:1], features(rows[:1]))


def table_file(path: Path, rows: int = 60, each: int = 2) -> Path:
    """A table of patients with several rows each, one column drawn at random."""
    ages = torch.randint(0, 90, (rows,), generator=torch.Generator().manual_seed(0)).tolist()
    lines = [f"p{i // each},{age},{'yes' if age > 45 else 'no'}" for i, age in enumerate(ages)]
    path.write_text("\n".join(["patient,age,died", *lines, ""]))
    return path


def test_rows_of_one_person_are_in_one_part_and_others_do_not_move_them(tmp_path: Path) -> None:
    schema = {"age": SCHEMA["age"], "died": SCHEMA["died"]}
    path = table_file(tmp_path / "patients.csv")
    whole = data.load(path, target="died", schema=schema, unit="patient")
    assert whole.unit_column == "patient"
    assert whole.train_units is not None
    assert whole.test_units is not None
    assert torch.unique(whole.train_units, return_counts=True)[1].tolist() == [2] * len(torch.unique(whole.train_units))
    assert len(whole.train_x) + len(whole.test_x) == 60
    lines = path.read_text().splitlines()
    (tmp_path / "fewer.csv").write_text("\n".join([lines[0], *lines[5:]]))
    fewer = data.load(tmp_path / "fewer.csv", target="died", schema=schema, unit="patient")
    assert whole.train_keys is not None
    assert fewer.train_keys is not None
    assert set(fewer.train_keys.tolist()) <= set(whole.train_keys.tolist())
    assert len(whole.train_keys) - len(fewer.train_keys) <= 2


def test_parquet_and_csv_of_the_same_rows_give_the_same_records(tmp_path: Path) -> None:
    path = table_file(tmp_path / "patients.csv")
    schema = {"age": SCHEMA["age"], "patient": {"type": "skip"}, "died": SCHEMA["died"]}
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    patients, ages, died = zip(*rows, strict=True)
    typed = pa.table(
        {"patient": patients, "age": [int(age) for age in ages], "died": pa.array(died).dictionary_encode()}
    )
    pyarrow.parquet.write_table(typed, tmp_path / "patients.parquet")
    one, other = (data.load(tmp_path / f"patients.{end}", target="died", schema=schema) for end in ("csv", "parquet"))
    assert one.train_x.equal(other.train_x)
    assert one.test_y.equal(other.test_y)
    memory = data.table(typed, target="died", schema=schema)
    assert memory.train_x.equal(one.train_x)


def test_numbers_of_a_file_with_types_are_read_as_they_are_written() -> None:
    values = [2.5, 3.0, math.nan, math.inf, None]
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        table = read(pa.table({"size": pa.array(np.array(values, object), from_pandas=True).cast(kind)}))
        assert texts(table, "size") == ["2.5", "3", None, "inf", None], kind


@pytest.mark.parametrize("between", [";", "\t", "|"])
def test_the_row_of_names_says_what_stands_between_values(between: str, tmp_path: Path) -> None:
    rows = [["age", "size, cm", "seen", "died"], ["25", '"1,5"', "2020-03-01", "no"], ["50", "2", "1.3.2020", "yes"]]
    path = tmp_path / "clinic.csv"
    path.write_text("\n".join(between.join(row) for row in [rows[0], *rows[1:] * 4]), encoding="utf-8-sig")
    schema = {
        "age": SCHEMA["age"],
        "size, cm": {"type": "number", "low": 0, "high": 2},
        "seen": SCHEMA["seen"],
        "died": SCHEMA["died"],
    }
    x = tables.features(path, as_schema({"table": {"decimal": ","}, "columns": schema}, "died"))
    assert x[:, 0].tolist() == [0.25, 0.5] * 4
    assert x[:, 2].tolist() == [0.75, 1.0] * 4
    assert (x[0, 4:7] == x[1, 4:7]).all(), "the first of March in two forms"


def test_numbers_with_a_decimal_comma_are_estimated_as_numbers_and_dates_as_dates(tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain.csv", tmp_path / "semicolons.csv"
    rows = [(f"p{row}", f"{row % 97}.5", f"{2019 + row % 4}-03-{1 + row % 28:02}", "no") for row in range(500)]
    plain.write_text("who,crp,seen,back\n" + "".join(f"{','.join(row)}\n" for row in rows))
    with ours.open("w") as file:
        file.write("who;crp;seen;back\n")
        for who, crp, seen, back in rows:
            year, month, day = seen.split("-")
            file.write(f"{who};{crp.replace('.', ',')};{day}.{month}.{year};{back}\n")
    counted = []
    for path in (plain, ours):
        draft = read_draft(path, "auto", "back", "who")
        there = training_rows(path, draft, "who")
        counted.append([count_cells(there.table, name, there.weights, draft.reading) for name in ("crp", "seen")])
    assert np.array_equal(counted[0], counted[1])
    assert counted[0][0][MISSING:].sum() == 0, "all of the first column are numbers"


AMERICAN = {"dates": "%m/%d/%Y", "thousands": ","}


def american(folder: Path) -> tuple[Path, Path]:
    """The same rows twice: plain, and as American software writes dates and amounts."""
    plain, ours = folder / "plain.csv", folder / "american.csv"
    rows = [(f"p{row}", 900.5 + 7 * row, datetime.date(2019 + row % 4, 3, 1 + row % 28)) for row in range(500)]
    plain.write_text("who,cost,seen,back\n" + "".join(f"{who},{cost},{seen},no\n" for who, cost, seen in rows))
    with ours.open("w") as file:
        file.write("who,cost,seen,back\n")
        for who, cost, seen in rows:
            file.write(f'{who},"${cost:,.2f}",{seen:%m/%d/%Y},no\n')
    return plain, ours


def test_dates_and_amounts_are_read_as_the_schema_says_that_they_are_written(tmp_path: Path) -> None:
    plain, ours = american(tmp_path)
    schema = {
        "cost": {"type": "number", "low": 0, "high": 5000},
        "seen": {"type": "date", "first": "2019-01-01", "last": "2023-01-01"},
        "back": {"type": "category", "levels": ["no", "yes"]},
    }
    table = {"table": AMERICAN, "columns": schema}
    assert as_schema(as_schema(table, "back").to_json()) == as_schema(table, "back"), "a run keeps it"
    found = tables.features(ours, as_schema(table, "back"))
    assert np.array_equal(found, tables.features(plain, as_schema(schema, "back")))
    assert found[100, 0] == np.float32(1600.5 / 5000)


def test_a_schema_may_say_how_values_are_written_and_leave_all_else_to_the_estimate(tmp_path: Path) -> None:
    plain, ours = american(tmp_path)
    schema = tmp_path / "schema.toml"
    schema.write_text('[table]\ncolumns = "auto"\ndates = "%m/%d/%Y"\nthousands = ","\n')
    counted = []
    for path, said in ((plain, "auto"), (ours, schema)):
        draft = read_draft(path, said, "back", "who")
        assert set(draft.wanted) == {"cost", "seen", "back"}
        there = training_rows(path, draft, "who")
        counted.append([count_cells(there.table, name, there.weights, draft.reading) for name in ("cost", "seen")])
    assert np.array_equal(counted[0], counted[1])


@pytest.mark.parametrize("value", ["1,49", "1,4920", "12,34,567", "$", "--5", "1.5.2", "(5)", "5 $ 5"])
def test_what_no_writer_of_numbers_means_is_none(value: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read_number(value, thousands=",")


@pytest.mark.parametrize(
    ("value", "decimal", "thousands", "number"),
    [
        ("1,492.18", ".", ",", 1492.18),
        ("-$1,492", ".", ",", -1492),
        ("$ -0.5", ".", None, -0.5),
        ("1.234.567,5 €", ",", ".", 1234567.5),
        ("1\u202f234,5", ",", " ", 1234.5),
        ("1'234", ".", "'", 1234),
        ("2.5e3", ".", ",", 2500),
        ("999", ".", ",", 999),
    ],
)
def test_a_number_is_what_its_writer_means(value: str, decimal: str, thousands: str | None, number: float) -> None:
    assert read_number(value, decimal, thousands) == number


def test_rows_in_memory_are_those_of_the_file(tmp_path: Path) -> None:
    """A DataFrame, with whatever index, and dicts give the records of a CSV file; other things are named."""
    rows = [{"patient": f"p{i // 2}", "age": 20 + i, "ill": "yes" if i % 3 else "no"} for i in range(40)]
    frame = pandas.DataFrame(rows)
    frame.to_csv(tmp_path / "own.csv", index=False)
    schema = {
        "age": {"type": "number", "low": 0, "high": 100},
        "ill": {"type": "category", "levels": ["no", "yes"]},
    }
    found = [
        data.table(source, target="ill", schema=schema, unit="patient")
        for source in (tmp_path / "own.csv", frame, frame[frame.age > 0], frame.set_index("patient"), rows)
    ]
    for one in found[1:]:
        assert torch.equal(one.train_x, found[0].train_x)
        assert torch.equal(one.test_y, found[0].test_y)
    for bad, said in ((frame.to_numpy(), "a DataFrame"), (pandas.concat([frame, frame.age], axis=1), "Duplicate")):
        with pytest.raises(AssayError, match=said):
            data.table(bad, target="ill", schema=schema)


@pytest.mark.parametrize(("each", "unit", "told"), [(3, None, True), (3, "patient", False), (1, None, False)])
def test_an_id_that_is_skipped_though_it_repeats_is_named(each: int, unit: str | None, told: bool, caplog: Any) -> None:
    rows = [{"patient": f"p{i // each}", "age": i, "house": "A", "ill": i % 2} for i in range(90)]
    schema: dict[str, Any] = {name: {"type": "skip"} for name in ("patient", "house")}
    schema |= {"age": {"type": "number", "low": 0, "high": 90}, "ill": {"type": "flag"}}
    data.table(rows, target="ill", schema=schema, unit=unit)
    assert ("column 'patient', which is skipped" in caplog.text) is told
    assert "house" not in caplog.text


def test_a_template_tells_names_and_declared_types_and_no_value(tmp_path: Path) -> None:
    path = tmp_path / "patients.csv"
    path.write_text('"patient id",age,died\n4711,33,yes\n' * 5)
    with pytest.raises(ConfigError) as caught:
        data.load(path, target="died")
    assert '[columns."patient id"]\ntype = "?"' in str(caught.value)
    assert "4711" not in str(caught.value)
    pyarrow.parquet.write_table(
        pa.table({"age": [4711], "when": [datetime.date(1999, 3, 4)]}), tmp_path / "own.parquet"
    )
    template = tables.template(tmp_path / "own.parquet")
    assert 'type = "number"  # the file declares int64\nlow = "?"' in template
    assert "4711" not in template
    assert "1999" not in template
    (tmp_path / "own.toml").write_text(template)
    with pytest.raises(ConfigError, match="low"):
        tables.Schema.from_toml(tmp_path / "own.toml")


def test_a_public_sample_fills_the_schema_in_and_the_file_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("age,ward,when,extra,note\n")
    rows = [f"{20 + i},{'ab'[i % 2]},20{10 + i % 9}-02-03,{i} {i} some words here {i}" for i in range(70)]
    (tmp_path / "public.csv").write_text("\n".join(["age,ward,when,note", *rows]))
    found = tables.from_sample(tmp_path / "own.csv", tmp_path / "public.csv")
    assert '[columns.age]\ntype = "number"\nlow = 20\nhigh = 89' in found
    assert 'levels = ["a", "b"]' in found
    assert "first = 2010-01-01\nlast = 2018-12-31" in found
    assert '[columns.extra]\ntype = "?"' in found
    assert '[columns.note]\ntype = "text"' in found
    with pytest.raises(DataError, match="must be another"):
        tables.from_sample(tmp_path / "own.csv", tmp_path / "own.csv")


def test_a_schema_survives_json() -> None:
    schema = as_schema(SCHEMA, "died")
    assert tables.Schema.from_json(schema.to_json()) == schema


def test_a_schema_may_be_the_content_of_a_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("age,back\n" + "".join(f"{i},{i % 2}\n" for i in range(50)))
    columns = {"age": {"type": "number", "low": 0, "high": 50}, "back": {"type": "flag"}}
    by_sections = data.table(path, schema={"table": {"target": "back"}, "columns": columns})
    assert by_sections.schema == data.table(path, target="back", schema=columns).schema


def test_what_is_predicted_follows_from_the_type_of_the_target(tmp_path: Path) -> None:
    path = table_file(tmp_path / "patients.csv")
    schema = {"age": SCHEMA["age"], "died": {"type": "flag"}, "patient": {"type": "skip"}}
    died, age = (data.load(path, target=target, schema=schema) for target in ("died", "age"))
    assert died.what.kind == "binary"
    assert died.what.names == ("no", "yes")
    assert age.what.kind == "regression"
    assert float(age.train_y.min()) >= -1
    labels = pa.table({"x": ["1", "2", "3"] * 10, "a": ["yes", "no", "no"] * 10, "b": ["0", "1", "1"] * 10})
    both = data.table(
        labels,
        target="a,b",
        schema={"x": {"type": "number", "low": 0, "high": 3}, "a": {"type": "flag"}, "b": {"type": "flag"}},
        test=labels,
    )
    assert both.what.kind == "multilabel"
    assert both.train_y[:3].tolist() == [[1, 0], [0, 1], [0, 1]]


def test_an_npz_file_may_say_whose_records_are_whose_and_unused_arrays_are_named(tmp_path: Path, caplog: Any) -> None:
    x, y, whose = np.random.RandomState(0).rand(60, 3), np.arange(60) % 2, np.arange(60) // 3
    np.savez(tmp_path / "own.npz", x=x, y=y, patient=whose)
    by_person = data.load(tmp_path / "own.npz", unit="patient")
    assert by_person.train_units is not None
    assert torch.unique(by_person.train_units, return_counts=True)[1].tolist() == [3] * int(by_person.persons or 0)
    assert "patient" not in caplog.text
    by_row = data.load(tmp_path / "own.npz")
    assert "patient, which is not used" in by_row.notes
    assert "patient" in caplog.text
    np.savez(tmp_path / "float.npz", x=x, y=y, patient=whose / 2)
    with pytest.raises(DataError, match="whole numbers or texts"):
        data.load(tmp_path / "float.npz", unit="patient")


def test_nothing_private_is_needed_to_scale_a_date() -> None:
    assert prepared()["sine of seen in the year"][1] == pytest.approx(math.sin(2 * math.pi * 365 / 365.25), abs=1e-6)
