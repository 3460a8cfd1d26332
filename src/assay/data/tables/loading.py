"""A table as a `DataBundle`: read, prepared by its schema, and divided into a training and a test part."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from assay.data.apart import check_parts
from assay.data.bundle import DataBundle
from assay.data.ids import fault
from assay.data.split import TEST_SHARE, drawn_units
from assay.data.tables import encoding
from assay.data.tables.columns import Skip
from assay.data.tables.preparing import Rows, prepare, task_of
from assay.data.tables.reading import Table, arrow, header, in_memory, read_table
from assay.data.tables.schema import Schema, as_schema, listed, targets
from assay.data.tables.templates import blank, template
from assay.errors import ConfigError, DataError, nearest

_LOG = logging.getLogger("assay")
_LEAST = 5  # rows, or persons, of which a fifth can be set aside
NOTES = (
    "Rows were prepared one by one by the schema in the record, which is taken as public: declared bounds and levels, "
    "a mark of missing values, words by a hash. No statistic of the rows is used."
)
ESTIMATED_NOTES = (
    "Rows were prepared one by one by the schema in the record. What was not declared was estimated from the training "
    "rows with noise, which is part of ε; names of columns are taken as public. A row without a usable target is left "
    "out, and counts in all rates as if it were there."
)


def table(
    source: Path | str | Any,
    *,
    target: str | Sequence[str] | None = None,
    schema: Schema | Mapping[str, Any] | Path | str | None = None,
    unit: str | None = None,
    test: Path | str | Any | None = None,
) -> DataBundle:
    """A CSV or Parquet file, or a table in memory, as a data set to train on.

    Nothing is computed from the rows but what the schema declares, row by row, so preparing them costs no privacy.
    Without a test part, about a fifth of the rows is set aside for testing by a keyed hash of each row's values; with a
    unit, about a fifth of the persons, by a keyed hash of the id, so that nobody has rows in both parts.

    Args:
        source: The path of a file (.csv, .tsv, .parquet, .pq), a pandas or other DataFrame, a pyarrow table, a
            `datasets.Dataset`, a list of dicts, or a dict of columns.
        target: The column to predict; several columns of type flag for a multi-label task. None takes what the schema
            names.
        schema: What is publicly known of the columns: the path of a .toml file, a `Schema`, or a mapping such as
            `{"age": {"type": "number", "low": 0, "high": 100}}`.
        unit: The column that says whose a row is.
        test: Another table, to test on in place of a fifth.

    Returns:
        The data set, with its task, its schema and, with a unit, whose each row is.

    Raises:
        ConfigError: There is no schema; the message holds one to fill in. Or the schema does not fit the table, or
            `test` holds rows of `source`.
        DataError: The table cannot be read; the message names file, row, column and what is accepted.
    """
    if schema is None:
        raise ConfigError("schema", None, _asks_for_one(source, target))
    declared = as_schema(schema, target)
    found = read(source, declared.delimiter)
    rows = prepare(found, declared, unit)
    if unit is None:
        _note_repeated(found, declared)
    task = task_of(declared)
    if test is None:
        first, second = _divided(found.name, rows, unit)
    else:
        other = read(test, declared.delimiter)
        first, second = rows, prepare(other, declared, unit)
        _check_apart(first, second, unit)
        if unit is not None:
            _check_ids(unit, encoding.ids(found, unit), encoding.ids(other, unit))
    whose, test_whose = (None if rows.persons is None else numbered(rows.persons) for rows in (first, second))
    bundle = DataBundle(
        name=Path(found.name).name,
        train_x=torch.from_numpy(first.x),
        train_y=torch.from_numpy(first.y),
        test_x=torch.from_numpy(second.x),
        test_y=torch.from_numpy(second.y),
        classes=task.outputs,
        unit="one row of the table" if unit is None else f"one {unit} with all of their rows",
        notes=NOTES + ("" if test is not None else _divided_words(unit)),
        source="own file",
        train_units=None if whose is None else torch.from_numpy(whose.numbers),
        test_units=None if test_whose is None else torch.from_numpy(test_whose.numbers),
        train_keys=None if whose is None else torch.from_numpy(whose.keys),
        unit_column=unit,
        row_keys=torch.from_numpy(first.keys),
        task=task,
        schema=declared.to_json(),
    )
    return bundle if test is None else check_parts(bundle)


def _note_repeated(table: Table, schema: Schema) -> None:
    """Name skipped columns that look like ids of whoever has several rows: ε of a row says little of such a person."""
    pyarrow = arrow()
    for name in (one for one, column in schema.columns.items() if isinstance(column, Skip) and one in table.columns):
        values = table.column(name)
        if not (pyarrow.types.is_string(values.type) or pyarrow.types.is_integer(values.type)):
            continue
        different = pyarrow.compute.count_distinct(values).as_py()
        if max(10, len(table) / 100) < different < 0.95 * len(table):
            _LOG.warning(
                "column %r, which is skipped, has the same value in several rows. If it says whose a row is, name it as"
                " the unit: then ε protects all rows of a person",
                name,
            )


def read(source: Path | str | Any, delimiter: str | None = None) -> Table:
    """The rows of a file or of a table in memory."""
    if isinstance(source, str | Path):
        return read_table(Path(source).expanduser(), delimiter=delimiter)
    return in_memory(source, "source")


def _asks_for_one(source: Path | str | Any, target: str | Sequence[str] | None) -> str:
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        names, empty, called = header(path), template(path), f"{path.stem}.toml"
    else:
        found = read(source)
        names = found.columns
        empty = blank(found.name, {field.name: str(field.type) for field in found.rows.schema})
        called = "schema.toml"
    for name in targets(target):
        if name not in names:
            raise ConfigError("target", name, f"{nearest(name, names)}a column of the table: {listed(names)}")
    return (
        f"what is publicly known of the columns. Save this as {called}, fill it in, and say --schema {called} (from "
        f'Python schema="{called}"); `assay data schema` writes it, and fills it in from a public sample. Or have it '
        f"estimated for a part of ε: --schema auto\n\n{empty}"
    )


@dataclass(frozen=True, kw_only=True)
class Numbered:
    """Whose each row is, by number, and the stable key of each person."""

    numbers: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]


def numbered(persons: npt.NDArray[np.int64]) -> Numbered:
    """Persons numbered from 0, in the order of their keys, which says nothing about them."""
    keys, numbers = np.unique(persons, return_inverse=True)
    return Numbered(numbers=numbers.reshape(-1).astype(np.int64), keys=keys)


def _divided(name: str, rows: Rows, unit: str | None) -> tuple[Rows, Rows]:
    keys = rows.keys if rows.persons is None else rows.persons
    testing = drawn_units(keys, "test", TEST_SHARE)
    if testing.all() or not testing.any():
        there = f"{len(keys)} rows" if unit is None else f"{len(np.unique(keys))} persons (column {unit!r})"
        raise DataError(
            f"{name} has {there}: too few to set a fifth aside for testing, drawn by a hash. Give more (at least "
            f"{_LEAST}, better "
            "100), or from Python a table of its own: test=..."
        )
    return _only(rows, ~testing), _only(rows, testing)


def _only(rows: Rows, kept: npt.NDArray[np.bool_]) -> Rows:
    persons = None if rows.persons is None else rows.persons[kept]
    return Rows(x=rows.x[kept], y=rows.y[kept], keys=rows.keys[kept], persons=persons)


def _check_apart(first: Rows, second: Rows, unit: str | None) -> None:
    if first.persons is None or second.persons is None:
        return
    if common := len(np.intersect1d(first.persons, second.persons)):
        raise ConfigError("test", f"{common} persons of the training part", f"rows of others: {unit!r} must differ")


def _check_ids(unit: str, ours: list[str], theirs: list[str]) -> None:
    """Refuse persons of the test part whose id is one of the training part's in another spelling."""
    both = [*ours, *theirs]
    if (wrong := fault(both)) is not None:
        raise ConfigError("test", f"a {unit} {both[wrong[0]]!r}", wrong[1])


def _divided_words(unit: str | None) -> str:
    whole, by, one = ("rows", "each row", "row") if unit is None else ("persons", unit, "person")
    return f" About a fifth of the {whole} are set aside for testing, by a hash of {by}. One {one} more moves no other."
