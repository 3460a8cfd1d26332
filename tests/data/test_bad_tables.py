"""Malformed tables are refused with the file, the row, the column and what would be accepted."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from assay import data
from assay.errors import AssayError

SCHEMA: dict[str, Any] = {
    "age": {"type": "number", "low": 0, "high": 100},
    "ward": {"type": "category", "levels": ["surgery", "medicine"]},
    "died": {"type": "category", "levels": ["yes", "no"]},
}
HEADER = "patient,age,ward,died\n"
ROWS = [f"p{i},{20 + i},{'surgery' if i % 2 else 'medicine'},{'yes' if i % 3 else 'no'}\n" for i in range(40)]


def having(row: str, at: int = 3) -> str:
    """A sound table with one row, by its number in a spreadsheet, replaced."""
    rows = list(ROWS)
    rows[at - 2] = row + "\n"
    return HEADER + "".join(rows)


@dataclass(frozen=True)
class Bad:
    content: str | bytes
    said: tuple[str, ...]
    schema: Mapping[str, Any] = field(default_factory=dict)
    name: str = "patients.csv"
    target: str = "died"


def changed(**columns: Any) -> dict[str, Any]:
    return {**SCHEMA, **columns}


KINDS: dict[str, Bad] = {
    "empty file": Bad("", ("patients.csv is empty", "row of column names")),
    "header and no rows": Bad(HEADER, ("patients.csv", "no rows", "at least 5")),
    "blank header": Bad(",,\n1,2,3\n", ("row 1", "no column names")),
    "header missing": Bad("".join(ROWS), ("row 1", "column 2 is called '20'", "must name the columns")),
    "a column without a name": Bad("patient,age,,died\n" + "".join(ROWS), ("row 1", "column 3 has no name")),
    "duplicate column": Bad("patient,age,age,died\n" + "".join(ROWS), ("row 1", "'age'", "2 times", "differ")),
    "wrong delimiter": Bad(
        (HEADER + "".join(ROWS)).replace(",", ";"),
        ("patients.csv", "semicolon", 'delimiter = ";"', "[table]"),
        schema={"table": {"delimiter": ","}, "columns": SCHEMA},
    ),
    "ragged row, too many": Bad(having("p1,30,surgery,yes,extra"), ("row 3", "5 values", "4 are required")),
    "ragged row, too few": Bad(having("p1,30"), ("row 3", "2 values", "patient, age, ward, died")),
    "open quotation mark": Bad(having('p1,30,"surgery,yes'), ("row 3", "quotation mark")),
    "not UTF-8": Bad((HEADER + "".join(ROWS)).replace("p4", "Jörg").encode("latin-1"), ("row 6", "0xf6", "UTF-8")),
    "UTF-16": Bad((HEADER + "".join(ROWS)).encode("utf-16"), ("UTF-16", "save it as CSV in UTF-8")),
    "compressed": Bad(gzip.compress((HEADER + "".join(ROWS)).encode()), ("gzip", "save it as CSV in UTF-8")),
    "a sheet of Excel": Bad(b"PK\3\4 and more", ("Excel", "save it as CSV in UTF-8")),
    "no rows": Bad('{"age": 30}', ("one single line", "column names")),
    "zero bytes": Bad(having("p1,30\0,surgery,yes"), ("zero byte", "UTF-8")),
    "mixed types": Bad(having("p1,old,surgery,yes"), ("row 3", "'age'", "'old'", "a number")),
    "decimal comma": Bad(having('p1,"30,5",surgery,yes'), ("row 3", "'age'", "'30,5'", 'decimal = ","')),
    "thousands that may be decimals": Bad(
        having("p1;1.013;surgery;yes").replace(",", ";"),
        ("row 3", "'age'", "'1.013'", "1013 or 1,013"),
        {"table": {"decimal": ","}, "columns": SCHEMA},
    ),
    "commas that do not stand between thousands": Bad(
        having('p1,"1,49",surgery,yes'),
        ("row 3", "'age'", "'1,49'", 'thousands = ","'),
        {"table": {"thousands": ","}, "columns": SCHEMA},
    ),
    "thousands and decimals with one mark": Bad(
        HEADER + "".join(ROWS), ("thousands", "not the decimal mark"), {"table": {"thousands": "."}, "columns": SCHEMA}
    ),
    "dates without a format": Bad(
        HEADER + "".join(ROWS), ("dates", "%m/%d/%Y"), {"table": {"dates": "US"}, "columns": SCHEMA}
    ),
    "setting of the table mistyped": Bad(
        HEADER + "".join(ROWS), ("table.date", "mean 'dates'"), {"table": {"date": "%d"}, "columns": SCHEMA}
    ),
    "Excel's own first row": Bad("sep=,\n" + HEADER + "".join(ROWS), ("row 1", "'sep=,'", "remove this row")),
    "name of a column mistyped": Bad(HEADER.replace("age", "Age") + "".join(ROWS), ("no column 'age'", "mean 'Age'?")),
    "infinite number": Bad(having("p1,inf,surgery,yes"), ("row 3", "'age'", "finite number")),
    "missing target column": Bad(HEADER.replace("died", "outcome") + "".join(ROWS), ("no column 'died'", "outcome")),
    "target that the schema does not know": Bad(
        HEADER + "".join(ROWS), ("target", "dead", "age, ward, died"), target="dead"
    ),
    "missing target": Bad(having("p1,30,surgery,"), ("row 3", "'died'", "a target in every row")),
    "NaN target": Bad(having("p1,30,surgery,NaN"), ("row 3", "'died'", "a target in every row")),
    "NaN target of a regression": Bad(
        having("p1,nan,surgery,no"), ("row 3", "'age'", "target in every row"), target="age"
    ),
    "one class": Bad(
        (HEADER + "".join(ROWS)).replace(",no\n", ",yes\n"), ("'died'", "every row is 'yes'", "at least two classes")
    ),
    "unknown class": Bad(having("p1,30,surgery,perhaps"), ("row 3", "'died'", "'perhaps'", "yes, no")),
    "unknown level": Bad(
        having("p1,30,kitchen,yes"),
        ("row 3", "'ward'", "'kitchen'", "surgery, medicine"),
        changed(ward={"type": "category", "levels": ["surgery", "medicine"], "other": False}),
    ),
    "missing value that is required": Bad(
        having("p1,,surgery,yes"),
        ("row 3", "'age'", "required"),
        changed(age={"type": "number", "low": 0, "high": 100, "required": True}),
    ),
    "column that the schema does not know": Bad(
        "extra," + HEADER + "".join("1," + row for row in ROWS), ("'extra'", "every column", 'type = "skip"')
    ),
    "column that the table does not have": Bad(
        HEADER + "".join(ROWS), ("no column 'weight'", "age"), changed(weight={"type": "number", "low": 0, "high": 9})
    ),
    "missing id": Bad(having(",30,surgery,yes"), ("row 3", "'patient'", "every row must say whose it is")),
    "id that is a float": Bad(having("7.0,30,surgery,yes"), ("row 3", "'patient'", "'7.0'", "whole number or a text")),
    "too few persons": Bad(
        HEADER + "".join("p1" + row[row.index(",") :] for row in ROWS), ("1 persons", "'patient'", "too few")
    ),
    "date in another form": Bad(
        having("p1,30,17.5.2024,yes"),
        ("row 2", "'ward'", "a date such as 2024-05-17"),
        changed(ward={"type": "date", "first": "2000-01-01", "last": "2030-01-01"}),
    ),
    "flag that is none": Bad(
        having("p1,30,surgery,yes"),
        ("row 2", "'ward'", "'medicine'", "yes (1, true"),
        changed(ward={"type": "flag"}),
    ),
    "unknown label": Bad(
        having("p1,30,surgery;ICU,yes"),
        ("row 3", "'ward'", "'ICU'", "surgery, medicine"),
        changed(ward={"type": "labels", "levels": ["surgery", "medicine"]}),
    ),
    "bounds the wrong way round": Bad(
        HEADER, ("column 'age'", "high", "above low, 100"), changed(age={"type": "number", "low": 100, "high": 0})
    ),
    "template that is not filled in": Bad(HEADER, ("column 'age': type", "'?'", "number"), changed(age={"type": "?"})),
    "type without its facts": Bad(
        HEADER, ("column 'ward': levels", "category needs"), changed(ward={"type": "category"})
    ),
    "setting of another type": Bad(
        HEADER, ("column 'ward': low", "category"), changed(ward={"type": "category", "levels": ["a", "b"], "low": 3})
    ),
    "level twice": Bad(HEADER, ("'ward'", "each level once"), changed(ward={"type": "category", "levels": ["a", "a"]})),
    "text as a target": Bad(HEADER, ("target", "'ward'", "type text"), changed(ward={"type": "text"}), target="ward"),
    "no Parquet": Bad(b"PAR1 cut off", ("patients.parquet", "no Parquet file"), name="patients.parquet"),
    "file that is not there": Bad("", ("nowhere.csv", "existing file"), name="nowhere.csv"),
    "sheet": Bad("", ("patients.xlsx", "save the sheet as CSV"), name="patients.xlsx"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_table_is_refused_by_file_row_column_and_what_is_accepted(kind: str, tmp_path: Path) -> None:
    bad = KINDS[kind]
    path = tmp_path / bad.name
    if bad.name != "nowhere.csv":
        path.write_bytes(bad.content.encode() if isinstance(bad.content, str) else bad.content)
    with pytest.raises(AssayError) as caught:
        data.load(path, target=bad.target, schema=bad.schema or SCHEMA, unit="patient")
    for words in bad.said:
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_there_are_at_least_25_kinds() -> None:
    assert len(KINDS) >= 25


ACCEPTED = {
    "byte order mark": "\ufeff" + HEADER + "".join(ROWS),
    "carriage returns": (HEADER + "".join(ROWS)).replace("\n", "\r\n"),
    "blanks around values": (HEADER + "".join(ROWS)).replace(",", " , "),
    "quotation marks": having('"p1","21","surgery","yes"'),
    "blank lines": HEADER + "\n" + "\n".join(ROWS),
    "semicolons": (HEADER + "".join(ROWS)).replace(",", ";"),
    "no line end after the last row": (HEADER + "".join(ROWS)).rstrip(),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_what_spreadsheets_write_makes_no_difference(kind: str, tmp_path: Path) -> None:
    for name, content in (("plain.csv", HEADER + "".join(ROWS)), ("own.csv", ACCEPTED[kind])):
        (tmp_path / name).write_bytes(content.encode())
    plain, own = (
        data.load(tmp_path / name, target="died", schema=SCHEMA, unit="patient") for name in ("plain.csv", "own.csv")
    )
    assert plain.train_x.equal(own.train_x)
    assert plain.train_y.equal(own.train_y)
