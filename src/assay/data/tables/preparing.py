"""Rows by their schema: features, and targets for training. The same function prepares new rows and those of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.data.split import unit_keys
from assay.data.tables import encoding
from assay.data.tables.columns import Category, Flag, Labels, Number
from assay.data.tables.reading import Table, arrow, read_table
from assay.data.tables.schema import Schema, listed
from assay.data.task import BINARY, MULTICLASS, MULTILABEL, REGRESSION, Task
from assay.errors import ConfigError, DataError, nearest


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Prepared rows: features, targets as `Task` says, and two keys of each row: of its person and of its content."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[Any]
    keys: npt.NDArray[np.int64]
    persons: npt.NDArray[np.int64] | None


def features(table: Table | Path | str, schema: Schema, unit: str | None = None) -> npt.NDArray[np.float32]:
    """The features of each row, in the order of `schema.feature_names(unit)`.

    Guaranteed: a row's features depend on that row and the schema alone, are finite and lie in [-1, 1].

    Args:
        table: The rows, or the path of a file; columns that the schema does not know are not looked at.
        schema: How to prepare them.
        unit: The column that says whose a row is; it is not a feature.

    Returns:
        One line for each row.

    Raises:
        DataError: A column is missing, or a value is not what the schema declares.
    """
    if isinstance(table, str | Path):
        table = read_table(Path(table).expanduser(), delimiter=schema.delimiter)
    _check_there(table, list(schema.features(unit)))
    pieces: list[npt.NDArray[np.float32]] = []
    for name, column in schema.features(unit).items():
        values, missing = encoding.encoded(table, name, column, schema)
        pieces.append(values)
        if not column.required:
            pieces.append(missing[:, None].astype(np.float32))
    if not pieces:
        raise ConfigError("schema", listed(schema.columns), "at least one column beside the target and the unit")
    return np.concatenate(pieces, axis=1)


def task_of(schema: Schema) -> Task:
    """What is predicted, by the type of the target column.

    Raises:
        ConfigError: The target has a single level.
    """
    name, *others = schema.target
    column = schema.columns[name]
    if others:
        return Task(kind=MULTILABEL, names=schema.target)
    if isinstance(column, Labels):
        return Task(kind=MULTILABEL, names=column.levels)
    if isinstance(column, Flag):
        return Task(kind=BINARY, names=("no", "yes"))
    if isinstance(column, Number):
        return Task(kind=REGRESSION, low=column.low, high=column.high, loss=column.loss)
    assert isinstance(column, Category)
    if len(column.levels) < 2:
        raise ConfigError(f"target {name!r}: levels", list(column.levels), "at least two, the classes to tell apart")
    return Task(kind=BINARY if len(column.levels) == 2 else MULTICLASS, names=column.levels)


def targets(table: Table, schema: Schema) -> npt.NDArray[Any]:
    """The target of each row, as `task_of(schema)` says.

    Raises:
        DataError: A target is missing, or is not what the schema declares.
    """
    _check_there(table, list(schema.target))
    columns = [_target(table, schema, name) for name in schema.target]
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).astype(np.float32)


def _target(table: Table, schema: Schema, name: str) -> npt.NDArray[Any]:
    column = schema.columns[name]
    if isinstance(column, Category):
        found, missing = encoding.codes(table, name, column, schema)
        _check_all_there(table, name, missing, f"one of {listed(column.levels)}")
        if (error := encoding.unknown_level(table, name, column.levels, found, missing)) is not None:
            raise error
        return found
    values, missing = encoding.encoded(table, name, column, schema)
    _check_all_there(table, name, missing, f"a {column.type}")
    if isinstance(column, Number):
        return 2 * values[:, 0] - 1
    if isinstance(column, Labels):
        return values
    return values[:, 0].astype(np.int64)


def _check_all_there(table: Table, name: str, missing: npt.NDArray[np.bool_], accepted: str) -> None:
    if missing.any():
        at = int(missing.argmax())
        said = f"a target in every row, {accepted}; remove rows without one"
        raise table.wrong(name, at, encoding.texts(table, name)[at], said)


def _check_there(table: Table, names: list[str]) -> None:
    for name in names:
        if name not in table.columns:
            raise DataError(
                f"{table.name} has no column {name!r}; {nearest(name, table.columns)}it has {listed(table.columns)}"
            )


def prepare(table: Table, schema: Schema, unit: str | None) -> Rows:
    """Features, targets and keys of the rows.

    Args:
        table: The rows.
        schema: How to prepare them, with its target.
        unit: The column that says whose a row is.

    Returns:
        The prepared rows. A row's key follows from its raw values alone, and so does a person's from the id.

    Raises:
        DataError: The table is not what the schema declares.
        ConfigError: A column is not declared.
    """
    _check_there(table, encoding.columns_needed(schema, unit))
    if unknown := [name for name in table.columns if name not in schema.columns and name != unit]:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise ConfigError(
            "schema", f"no column {unknown[0]!r}{more}", f'every column of {table.name}; type = "skip" leaves one out'
        )
    if unit is not None and unit in schema.target:
        raise ConfigError("unit", unit, "another column than the target")
    persons = None if unit is None else unit_keys(encoding.ids(table, unit, schema.missing))
    if set(schema.target) & set(schema.lenient):
        usable = _usable(table, schema)
        table = replace(table, rows=table.rows.filter(arrow().array(usable)))
        persons = None if persons is None else persons[usable]
    x, y = features(table, schema, unit), targets(table, schema)
    _check_classes(table, schema, y)
    return Rows(x=x, y=y, keys=row_keys(table), persons=persons)


def _usable(table: Table, schema: Schema) -> npt.NDArray[np.bool_]:
    """Which rows have the targets that were estimated: a matter of each row alone.

    Raises:
        DataError: Too few rows have one.
    """
    usable = np.ones(len(table), np.bool_)
    for name in set(schema.target) & set(schema.lenient):
        column = schema.columns[name]
        if isinstance(column, Category):
            usable &= encoding.codes(table, name, column, schema)[0] >= 0
        else:
            usable &= ~encoding.encoded(table, name, column, schema)[1]
    if not usable.any():
        raise DataError(f"{table.name} has no row whose {listed(schema.target)} is what was estimated of it")
    return usable


def _check_classes(table: Table, schema: Schema, y: npt.NDArray[Any]) -> None:
    task = task_of(schema)
    if task.is_classification and len(np.unique(y)) == 1:
        raise DataError(
            f"{table.name}, column {schema.target[0]!r}: every row is {task.names[int(y[0])]!r}; at least two "
            "classes are required"
        )


def row_keys(table: Table) -> npt.NDArray[np.int64]:
    """A key of each row, by its raw values alone: rows that are equal have the same."""
    columns = [encoding.texts(table, name) for name in table.columns if _is_plain(table, name)]
    return unit_keys(["\x1f".join("\x1e" if v is None else v for v in row) for row in zip(*columns, strict=True)])


def _is_plain(table: Table, name: str) -> bool:
    kind = str(table.column(name).type)
    return not kind.startswith(("list", "struct", "map", "binary", "large_list", "large_binary", "fixed_size"))
