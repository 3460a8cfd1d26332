"""Schemas to begin with: an empty one from a file's column names, or one that is filled in from a public sample.

What is written follows from no value of the file to be trained on. Its rows are only compared with those of a sample,
which must be others. The names of columns are taken as public. So are the types
that a Parquet file declares: they are a fact about how the file was written. Types inferred from the values of a CSV
file would not be.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.data.tables import encoding
from assay.data.tables.columns import Category, Column, Date, Flag, Number, Skip, Text, read_date
from assay.data.tables.names import PARQUET
from assay.data.tables.preparing import row_keys
from assay.data.tables.reading import Table, arrow_schema, header, read_table
from assay.data.tables.schema import MISSING_MARKS
from assay.errors import DataError

_MOST_LEVELS = 50  # of a category found in a sample; more are text, or identifiers
_WORDS = 3  # a text that is not an identifier has more on average
_BARE = re.compile(r"^[A-Za-z0-9_-]+$")
_HEAD = """\
# What is publicly known of {name}. Fill in every "?" from a codebook, a form or a standard:
# never from the private rows themselves, which no ε would cover.
#   number: low and high      category: levels      labels: levels, separator      flag: yes or no
#   date: first and last      text: size            skip: not used
# How the file is written is said once, above all columns, where it is not as usual:
#   [table]
#   decimal = ","         # 3,5
#   thousands = "."       # 1.492
#   dates = "%d/%m/%Y"    # 17/05/2024
#   missing = ["", "NA", "unknown"]
"""


def template(path: Path, *, delimiter: str | None = None) -> str:
    """A schema to fill in: the names of the columns and, of a Parquet file, the types that it declares.

    Args:
        path: The file; no value of a row is looked at.
        delimiter: Between the names in a CSV file.

    Returns:
        TOML with a "?" where a person must say something.
    """
    if path.suffix.lower() in PARQUET:
        declared = {field.name: str(field.type) for field in arrow_schema(path)}
    else:
        declared = dict.fromkeys(header(path, delimiter=delimiter), "")
    return blank(path.name, declared)


def blank(name: str, declared: Mapping[str, str]) -> str:
    """A schema to fill in for columns of these names and declared types.

    Args:
        name: What the table is called.
        declared: Type by column as pyarrow writes it; an empty text where none is declared.
    """
    return _HEAD.format(name=name) + "".join(
        f"\n[columns.{_key(column)}]\n{_suggested(kind)}" for column, kind in declared.items()
    )


def _suggested(kind: str) -> str:
    if kind.startswith(("int", "uint", "float", "double", "halffloat", "decimal")):
        return f'type = "number"  # the file declares {kind}\nlow = "?"\nhigh = "?"\n'
    if kind == "bool":
        return 'type = "flag"  # the file declares bool\n'
    if kind.startswith(("date", "timestamp")):
        return f'type = "date"  # the file declares {kind}\nfirst = "?"\nlast = "?"\n'
    if kind.startswith("dictionary"):
        return 'type = "category"  # the file declares a dictionary\nlevels = ["?"]\n'
    return 'type = "?"\n'


def from_sample(path: Path, sample: Path, *, delimiter: str | None = None) -> str:
    """A schema for `path` with types, ranges and levels of a public sample.

    Args:
        path: The file to be trained on. Only its column names are used.
        sample: Another file, whose rows are public.
        delimiter: Between values of CSV files.

    Returns:
        TOML. Columns that the sample does not have are left to be filled in.

    Raises:
        DataError: A file cannot be read, or most rows of the sample are rows of the file to be trained on.
    """
    if path.resolve() == sample.resolve():
        raise DataError(f"{sample} is the file to be trained on: a public sample must be another one")
    names, table = header(path, delimiter=delimiter), read_table(sample, delimiter=delimiter)
    _check_others(path, delimiter, table, sample)
    found = {name: guess(table, name) for name in names if name in table.columns}
    head = _HEAD.format(name=path.name) + f"# Types, ranges and levels are those of {sample.name}, taken as public.\n"
    said = "" if delimiter is None else f"\n[table]\ndelimiter = {json.dumps(delimiter)}\n"
    return head + said + "".join(_written(name, found.get(name)) for name in names)


def _check_others(path: Path, delimiter: str | None, public: Table, sample: Path) -> None:
    """Refuse a copy or an extract of the private rows: its ranges and levels would be theirs."""
    try:
        private = read_table(path, delimiter=delimiter)
    except DataError:  # it has no rows yet, or training will say what is wrong with them
        return
    shared = [name for name in private.columns if name in public.columns]
    ours, theirs = (set(row_keys(replace(one, rows=one.rows.select(shared))).tolist()) for one in (private, public))
    if shared and 2 * len(ours & theirs) > len(theirs):
        raise DataError(
            f"{sample} has {len(ours & theirs)} different rows that the file to be trained on has, too, of "
            f"{len(theirs)}: what is taken from private rows is covered by no ε. A public sample must have other rows; "
            "or fill the schema in by hand, or have it estimated for a part of ε (--schema auto)"
        )


def guess(table: Table, name: str) -> Column:
    """What a column of a public table seems to be."""
    raw = encoding.texts(table, name)
    gone = encoding.is_missing(raw, MISSING_MARKS)
    values = [value for value, missing in zip(raw, gone, strict=True) if value is not None and not missing]
    distinct = sorted(set(values))
    if not values:
        return Skip()
    if {value.lower() for value in distinct} <= {"0", "1", "true", "false", "yes", "no", "y", "n", "t", "f"}:
        return Flag()
    if (numbers := _all(values, float)) is not None and all(map(math.isfinite, numbers)):
        return Number(low=_outward(min(numbers), -1), high=_outward(max(numbers), 1, above=min(numbers)))
    if (dates := _all(values, read_date)) is not None:
        return Date(first=datetime.date(min(dates).year, 1, 1), last=datetime.date(max(dates).year, 12, 31))
    if len(distinct) <= _MOST_LEVELS:
        return Category(levels=tuple(distinct))
    return Text() if sum(len(value.split()) for value in values) > _WORDS * len(values) else Skip()


def _all(values: list[str], read: Any) -> list[Any] | None:
    try:
        return [read(value) for value in values]
    except ValueError:
        return None


def _outward(value: float, direction: int, above: float = -math.inf) -> float:
    """A rounder number on that side: two digits are kept."""
    if value == 0:
        return 1.0 if value <= above else 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    found = (math.ceil(value / unit) if direction > 0 else math.floor(value / unit)) * unit
    found = float(f"{found:.12g}")
    return found if found > above else found + unit


def _written(name: str, column: Column | None) -> str:
    if column is None:
        return f'\n[columns.{_key(name)}]\ntype = "?"\n'
    said = {key: value for key, value in column.to_json().items() if value is not None and not _is_default(column, key)}
    lines = [f"{key} = {value if _is_date(column, key) else _value(value)}\n" for key, value in said.items()]
    return f"\n[columns.{_key(name)}]\n" + "".join(lines)


def _is_default(column: Column, key: str) -> bool:
    return key in ("required", "other", "loss", "separator", "size") and getattr(type(column), key, None) == getattr(
        column, key
    )


def _is_date(column: Column, key: str) -> bool:
    return isinstance(column, Date) and key in ("first", "last")


def _value(value: Any) -> str:
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        value = int(value)
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if _BARE.match(name) else json.dumps(name, ensure_ascii=False)
