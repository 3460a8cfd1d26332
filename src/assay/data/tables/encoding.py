"""Columns as numbers, by their declaration alone. A row's features depend on that row and on the schema only."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.data.ids import fault
from assay.data.tables.columns import Category, Column, Date, Flag, Labels, Number, Text, read_date, read_number
from assay.data.tables.reading import Table, arrow
from assay.data.tables.schema import Schema, listed
from assay.errors import DataError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
"""With a decimal comma this is a thousand and more in one country, and a number with three decimals in another."""
_YES, _NO = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


def encoded(table: Table, name: str, column: Column, schema: Schema) -> tuple[Floats, Mask]:
    """The features of one column, of `column.width` for each row, and which values are missing.

    Args:
        table: The rows.
        name: The column's name.
        column: What is declared of it.
        schema: Says what a missing value is, and the decimal mark.

    Returns:
        Features, zero where the value is missing, and the mask of missing values.

    Raises:
        DataError: A value is not what is declared; the message names file, row, column and what is accepted.
    """
    values, missing = _ENCODERS[type(column)](table, name, column, schema)
    if column.required and missing.any():
        raise table.wrong(name, int(missing.argmax()), None, f"a {column.type}; the schema says that it is required")
    return values.reshape(len(table), column.width), missing


def texts(table: Table, name: str) -> list[str | None]:
    """A column as texts without blanks around them; whole numbers without a fraction. None where there is no value."""
    pyarrow = arrow()
    values = table.column(name)
    kinds = pyarrow.types
    if kinds.is_dictionary(values.type):
        values = values.dictionary_decode()
    if kinds.is_string(values.type) or kinds.is_large_string(values.type):
        found: list[str | None] = pyarrow.compute.utf8_trim_whitespace(values).to_pylist()
        return found
    if kinds.is_nested(values.type) or kinds.is_binary(values.type):
        raise DataError(f"{table.name}, column {name!r} is of type {values.type}; single values are required: skip it")
    if kinds.is_floating(values.type):  # 3.0 is how software without missing integers writes 3
        plain = (None if v is None else float(v) for v in values.to_pylist())
        return [None if v is None or math.isnan(v) else str(int(v)) if v.is_integer() else repr(v) for v in plain]
    return [None if v is None else str(v) for v in values.to_pylist()]


def is_missing(values: list[str | None], marks: tuple[str, ...], levels: tuple[str, ...] = ()) -> Mask:
    """Which values stand for a missing one; a declared level never does."""
    standing = set(marks) - set(levels)
    return np.fromiter((v is None or v in standing for v in values), np.bool_, len(values))


def numbers(table: Table, name: str, schema: Schema) -> tuple[npt.NDArray[np.float64], Mask]:
    """A column as finite numbers, and which are missing (there they are 0).

    Raises:
        DataError: A value is not a number.
    """
    pyarrow = arrow()
    values = table.column(name)
    kinds = pyarrow.types
    if kinds.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not (kinds.is_string(values.type) or kinds.is_large_string(values.type)):
        if not (kinds.is_integer(values.type) or kinds.is_floating(values.type) or kinds.is_boolean(values.type)
                or kinds.is_decimal(values.type)):  # fmt: skip
            raise DataError(f"{table.name}, column {name!r} is of type {values.type}; the schema says number")
        found = np.asarray(values.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
        missing = np.isnan(found)
        raw: list[Any] = []
    else:
        raw = texts(table, name)
        missing = is_missing(raw, schema.missing)
        found = _parsed(table, name, raw, missing, schema)
    infinite = np.isinf(found)
    if name in schema.lenient:
        missing = missing | infinite
    elif infinite.any():
        at = int(infinite.argmax())
        raise table.wrong(name, at, raw[at] if raw else float(found[at]), "a finite number")
    return np.where(missing, 0.0, found), missing


def _parsed(table: Table, name: str, raw: list[str | None], missing: Mask, schema: Schema) -> npt.NDArray[np.float64]:
    decimal, thousands, marks = schema.decimal, schema.thousands, schema.missing
    found = np.zeros(len(raw))
    for at, value in enumerate(raw):
        if missing[at] or value is None:
            continue
        try:
            if decimal == "," and thousands is None and name not in schema.lenient and _THOUSANDS.fullmatch(value):
                two = f"{value.replace('.', '')} or {value.replace('.', ',', 1)}"
                accepted = f"a number without points: this may be {two}. In section [table] of the schema, "
                raise table.wrong(name, at, value, f'{accepted}thousands = "." says that it is the first')
            found[at] = read_number(value, decimal, thousands)
        except ValueError:
            if name in schema.lenient:
                missing[at] = True
                continue
            accepted = f"a number, or a mark of a missing value ({', '.join(mark or 'nothing' for mark in marks)})"
            if decimal == "." and "," in value:
                accepted += (
                    '; where commas stand between thousands say thousands = "," in the [table] section of the schema, '
                    'and for a decimal comma decimal = ","'
                )
            raise table.wrong(name, at, value, accepted) from None
    return found


def _number(table: Table, name: str, column: Number, schema: Schema) -> tuple[Floats, Mask]:
    found, missing = numbers(table, name, schema)
    scaled = (np.clip(found, column.low, column.high) - column.low) / (column.high - column.low)
    return np.where(missing, 0.0, scaled).astype(np.float32), missing


def codes(table: Table, name: str, column: Category, schema: Schema) -> tuple[Ints, Mask]:
    """The number of each value's level, -1 for one that is not declared or missing; and which are missing."""
    raw = texts(table, name)
    missing = is_missing(raw, schema.missing, column.levels)
    at = {level.strip(): number for number, level in enumerate(column.levels)}
    found = np.fromiter((-1 if v is None else at.get(v, -1) for v in raw), np.int64, len(raw))
    return np.where(missing, -1, found), missing


def unknown_level(table: Table, name: str, levels: tuple[str, ...], found: Ints, missing: Mask) -> DataError | None:
    """The error about the first value that is not a declared level, if there is one."""
    unknown = (found < 0) & ~missing
    if not unknown.any():
        return None
    at = int(unknown.argmax())
    return table.wrong(name, at, texts(table, name)[at], f"one of the levels of the schema: {listed(levels)}")


def _category(table: Table, name: str, column: Category, schema: Schema) -> tuple[Floats, Mask]:
    found, missing = codes(table, name, column, schema)
    if not column.other and (error := unknown_level(table, name, column.levels, found, missing)) is not None:
        raise error
    hot = np.zeros((len(found), column.width), np.float32)
    rows = np.flatnonzero(~missing)
    hot[rows, found[rows]] = 1.0  # -1, a level that is not declared, is the last feature
    return hot, missing


def _labels(table: Table, name: str, column: Labels, schema: Schema) -> tuple[Floats, Mask]:
    raw = texts(table, name)
    marks = tuple(mark for mark in schema.missing if mark)  # an empty value has no labels: it is not missing
    missing = is_missing(raw, marks, column.levels)
    at = {level.strip(): number for number, level in enumerate(column.levels)}
    hot = np.zeros((len(raw), column.width), np.float32)
    for row, value in enumerate(raw):
        if missing[row] or not value:
            continue
        for one in value.split(column.separator):
            if one.strip() not in at:
                raise table.wrong(
                    name,
                    row,
                    one.strip(),
                    f"levels of the schema ({listed(column.levels)}) separated by {column.separator!r}",
                )
            hot[row, at[one.strip()]] = 1.0
    return hot, missing


def _flag(table: Table, name: str, column: Flag, schema: Schema) -> tuple[Floats, Mask]:  # noqa: ARG001
    raw = texts(table, name)
    missing = is_missing(raw, schema.missing)
    found = np.zeros(len(raw), np.float32)
    for row, value in enumerate(raw):
        if missing[row] or value is None:
            continue
        if value.lower() not in _YES + _NO:
            if name in schema.lenient:
                missing[row] = True
                continue
            raise table.wrong(name, row, value, f"yes ({', '.join(_YES)}) or no ({', '.join(_NO)})")
        found[row] = value.lower() in _YES
    return found, missing


def _date(table: Table, name: str, column: Date, schema: Schema) -> tuple[Floats, Mask]:
    raw = texts(table, name)
    missing = is_missing(raw, schema.missing)
    written = schema.dates if column.format is None else column.format
    first, days = column.first.toordinal(), column.last.toordinal() - column.first.toordinal()
    found = np.zeros((len(raw), 3), np.float32)
    for row, value in enumerate(raw):
        if missing[row] or value is None:
            continue
        try:
            when = read_date(value, written)
        except ValueError:
            if name in schema.lenient:
                missing[row] = True
                continue
            like = "2024-05-17 or 17.5.2024" if written is None else datetime.datetime(2024, 5, 17).strftime(written)
            accepted = f'a date such as {like}, or as the schema says: format = "%m/%d/%Y" is 05/17/2024'
            raise table.wrong(name, row, value, accepted) from None
        season = 2 * math.pi * (when.timetuple().tm_yday - 1) / 365.25
        place = (when.toordinal() - first) / days
        found[row] = min(max(place, 0.0), 1.0), math.sin(season), math.cos(season)
    return found, missing


def _text(table: Table, name: str, column: Text, schema: Schema) -> tuple[Floats, Mask]:
    from sklearn.feature_extraction.text import HashingVectorizer

    raw = texts(table, name)
    missing = is_missing(raw, schema.missing)
    words = ["" if gone or value is None else value for value, gone in zip(raw, missing, strict=True)]
    counted = HashingVectorizer(n_features=column.size, norm="l2", alternate_sign=True).transform(words)
    return np.asarray(counted.toarray(), np.float32), missing


_ENCODERS: Mapping[type[Column], Callable[[Table, str, Any, Schema], tuple[Floats, Mask]]] = {
    Number: _number,
    Category: _category,
    Labels: _labels,
    Flag: _flag,
    Date: _date,
    Text: _text,
}


def ids(table: Table, name: str, marks: tuple[str, ...] = ()) -> list[str]:
    """A column of identifiers as texts, one for each row.

    Args:
        table: The rows.
        name: The column.
        marks: What stands for a missing value, beside what programs write.

    Raises:
        DataError: An id is missing or a fraction, or two ids are likely one person's (`assay.data.ids`).
    """
    pyarrow = arrow()
    kind = table.column(name).type
    if pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind):
        raise DataError(f"{table.name}, column {name!r} is of type {kind}; ids must be whole numbers or texts")
    raw = texts(table, name)
    found = [value or "" for value in raw]
    if (wrong := fault(found, marks)) is not None:
        row, accepted = wrong
        raise table.wrong(name, row, raw[row], accepted)
    return found


def columns_needed(schema: Schema, unit: str | None) -> list[str]:
    """The columns that a table must have for training."""
    return [*schema.features(unit), *schema.target, *([] if unit is None else [unit])]


__all__ = ["codes", "columns_needed", "encoded", "ids", "is_missing", "numbers", "texts", "unknown_level"]
