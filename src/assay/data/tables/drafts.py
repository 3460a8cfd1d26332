"""A schema of which something is still to be estimated from the private rows, at a cost (`estimates`).

`--schema auto` leaves every column to the estimate. A .toml file may leave some:

    [columns.age]
    type = "number"
    low = "auto"
    high = "auto"

    [columns.ward]
    type = "category"
    levels = "auto"

    [columns.pulse]
    type = "auto"

With `columns = "auto"` in its section [table], so are all columns that it does not name. Public are the names of the
columns, the types that a Parquet file declares, and what the file says. All else is released with noise that is
charged, the type of a column included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from assay._util import spec
from assay.data.split import TEST_SHARE, drawn_units, unit_keys
from assay.data.tables import encoding, preparing
from assay.data.tables.cells import Reading
from assay.data.tables.columns import Column, Flag, Skip
from assay.data.tables.estimates import CATEGORY, DATE, NUMBER
from assay.data.tables.names import PARQUET
from assay.data.tables.preparing import row_keys
from assay.data.tables.reading import Table, arrow, arrow_schema, delimiter_of, header, read_table
from assay.data.tables.schema import AUTO, Schema, column_of, is_auto, listed, others_are_auto, read, targets, toml_of
from assay.errors import ConfigError, nearest

_SHARE = 0.25
_LEFT_OUT = {NUMBER: ("low", "high"), CATEGORY: ("levels",), DATE: ("first", "last")}


@dataclass(frozen=True, kw_only=True)
class Share:
    """How much of ε the estimate may cost by itself.

    The cost of noise adds up in squares, so a quarter of ε leaves training with about 97 % of the signal that it would
    have without.
    """

    share: float = _SHARE

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share < 1:
            raise ConfigError("schema share", self.share, "a number between 0 and 1: the share of ε for the estimate")


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What is declared of the columns of a table, and what is to be estimated.

    Attributes:
        declared: The columns that need no estimate.
        wanted: The other columns, each with its type, or None where that is to be estimated too.
        order: The names of all columns.
        target: The columns to predict.
        table: Delimiter, decimal mark and marks of missing values, as a schema's section [table] has them. Numbers of
            a file with semicolons have a decimal comma, unless the section says otherwise: nobody would see that they
            are not read.
        share: Of ε, for the estimate.
    """

    declared: Mapping[str, Column]
    wanted: Mapping[str, str | None]
    order: tuple[str, ...]
    target: tuple[str, ...]
    table: Mapping[str, Any]
    share: float

    @property
    def reading(self) -> Reading:
        """How values are read."""
        known = self.schema({})
        return Reading(missing=known.missing, decimal=known.decimal, thousands=known.thousands, dates=known.dates)

    def schema(self, found: Mapping[str, Column]) -> Schema:
        """The schema, with what was found; columns that were not found are skipped."""
        columns = {name: self.declared.get(name) or found.get(name) or Skip() for name in self.order}
        if not found:
            return read(self.table, {name: one.to_json() for name, one in columns.items()}, (), "schema")
        said = {name: one.to_json() for name, one in columns.items()}
        return read({**self.table, "lenient": tuple(self.wanted)}, said, self.target, "schema")

    def to_json(self) -> dict[str, Any]:
        """What decides the estimate, for its digest."""
        return {
            "declared": {name: column.to_json() for name, column in self.declared.items()},
            "wanted": dict(self.wanted),
            "order": list(self.order),
            "target": list(self.target),
            "table": {key: list(one) if isinstance(one, tuple) else one for key, one in self.table.items()},
        }


def is_draft(schema: object) -> bool:
    """Whether a schema leaves something to an estimate. A file that cannot be read does not."""
    if is_auto(schema):
        return True
    if not isinstance(schema, str | Path):
        return False
    try:
        table, columns, _ = toml_of(schema)
    except ConfigError:
        return False
    return others_are_auto(table) or any(_leaves_something(said) for said in columns.values())


def _leaves_something(said: object) -> bool:
    return isinstance(said, Mapping) and AUTO in [value for value in said.values() if isinstance(value, str)]


def read_draft(path: Path, schema: Path | str, target: str | None, unit: str | None) -> Draft:
    """The draft for a table.

    Args:
        path: The table; only the names of its columns are read, and the types that a Parquet file declares.
        schema: `auto`, `auto:share=0.3` or a .toml file.
        target: The columns to predict.
        unit: The column that says whose a row is; nothing is estimated of it.

    Raises:
        ConfigError: The schema is not accepted, does not name every column, or there is no target.
    """
    table: dict[str, Any] = {}
    if is_auto(schema):
        share = spec.parse("schema", str(schema), {AUTO: Share}).share
        names = tuple(header(path))
        said: dict[str, Any] = {name: {"type": AUTO} for name in names}
        chosen = targets(target)
    else:
        table, said, own = toml_of(schema)
        share = Share(share=table.pop("share", _SHARE)).share
        names = tuple(header(path, delimiter=table.get("delimiter")))
        if others_are_auto(table):
            said = {**{name: {"type": AUTO} for name in names}, **said}
            del table["columns"]
        chosen = targets(target) or own
    if path.suffix.lower() not in PARQUET and delimiter_of(path, table.get("delimiter")) == ";":
        table = {"decimal": ",", **table}
    _check_names(path, names, said, chosen, unit)
    types = _declared_types(path)
    declared: dict[str, Column] = {}
    wanted: dict[str, str | None] = {}
    for name in names:
        if name == unit:
            continue
        column, kind = _of_column(said[name], f"{schema}: column {name!r}", types.get(name, ""))
        if column is None:
            wanted[name] = kind
        else:
            declared[name] = column
    return Draft(
        declared=declared,
        wanted=wanted,
        order=tuple(name for name in names if name != unit),
        target=chosen,
        table={key: tuple(value) if isinstance(value, list) else value for key, value in table.items()},
        share=share,
    )


def _check_names(
    path: Path, names: tuple[str, ...], said: Mapping[str, Any], chosen: tuple[str, ...], unit: str | None
) -> None:
    if unit is not None and unit not in names:
        raise ConfigError("unit", unit, f"{nearest(unit, names)}a column of {path.name}: {listed(names)}")
    if not chosen:
        raise ConfigError("target", None, f"the column to predict, one of {listed(names)}")
    for name in chosen:
        if name not in names or name == unit:
            raise ConfigError(
                "target", name, f"{nearest(name, names)}a column of the table, beside the unit: {listed(names)}"
            )
    for name in names:
        if name not in said and name != unit:
            raise ConfigError(
                "schema",
                f"no column {name!r}",
                f'every column of {path.name}; type = "auto" has one estimated, type = "skip" leaves one out',
            )


def _declared_types(path: Path) -> dict[str, str]:
    if path.suffix.lower() not in PARQUET:
        return {}
    return {one.name: str(one.type) for one in arrow_schema(path)}


def _of_column(said: Any, where: str, declared: str) -> tuple[Column | None, str | None]:
    """A column that is declared, or the type of one that is to be estimated (None where that is not known)."""
    if not _leaves_something(said):
        return column_of(said, where), None
    kind = said["type"]
    if kind == AUTO:
        if extra := sorted(said.keys() - {"type"}):
            raise ConfigError(f"{where}: {extra[0]}", said[extra[0]], 'nothing beside type = "auto"')
        if declared == "bool":
            return Flag(), None
        if declared.startswith(("list", "struct", "map", "binary", "large_", "fixed_size")):
            raise ConfigError(f"{where}: type", AUTO, f'type = "skip": the file declares {declared}')
        if declared.startswith(("int", "uint", "float", "double", "halffloat", "decimal")):
            return None, NUMBER
        return None, DATE if declared.startswith(("date", "timestamp")) else None
    if kind not in _LEFT_OUT:
        raise ConfigError(
            f"{where}: type", kind, f"a type whose values can be estimated ({', '.join(_LEFT_OUT)}), or declared values"
        )
    needed = _LEFT_OUT[kind]
    if any(said.get(name) != AUTO for name in needed) or said.keys() != {"type", *needed}:
        both = " and ".join(f'{name} = "auto"' for name in needed)
        raise ConfigError(where, dict(said), f"{both} and nothing else, or values for all of them")
    return None, kind


@dataclass(frozen=True, kw_only=True)
class Private:
    """The training rows of a table, and how much each counts. Sensitive.

    Attributes:
        table: The rows.
        weights: Of each row: 1, or one over the number of rows of its person. A person has weight 1 in all.
        units: How many records, or persons, there are. Public.
        owner: Whose each row is, as numbers.
        keys: By which records or persons are recognised.
    """

    table: Table
    weights: npt.NDArray[np.float64]
    units: int
    owner: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]


def _check_declared(table: Table, draft: Draft) -> None:
    """Refuse values that are not what a person declared, as for a schema without estimates: before ε is spent."""
    schema = draft.schema({})
    for name, column in draft.declared.items():
        if name in draft.target:
            preparing.targets(table, replace(schema, target=(name,)))
        elif not isinstance(column, Skip):
            encoding.encoded(table, name, column, schema)


def training_rows(path: Path, draft: Draft, unit: str | None) -> Private:
    """The rows that training will see: all but the fifth that is set aside for testing, whatever the schema.

    Raises:
        DataError: The table cannot be read, or a value is not what its column declares.
    """
    found = read_table(path, delimiter=draft.table.get("delimiter"))
    _check_declared(found, draft)
    marks = tuple(draft.table.get("missing", ()))
    keys = row_keys(found) if unit is None else unit_keys(encoding.ids(found, unit, marks))
    kept = ~drawn_units(keys, "test", TEST_SHARE)
    mine = keys[kept]
    there, owner, counts = np.unique(mine, return_inverse=True, return_counts=True)
    owner = owner.reshape(-1)
    return Private(
        table=replace(found, rows=found.rows.filter(arrow().array(kept))),
        weights=np.ones(len(mine)) if unit is None else 1.0 / counts[owner],
        units=len(mine) if unit is None else len(counts),
        owner=owner,
        keys=there,
    )
