"""What is publicly known about a table's columns: types, ranges and levels. Nothing else decides how rows are prepared.

    [table]                       # optional
    delimiter = ","
    decimal = "."
    thousands = ","
    dates = "%m/%d/%Y"
    missing = ["", "NA", "?"]

    [columns.age]
    type = "number"
    low = 0
    high = 100

    [columns.ward]
    type = "category"
    levels = ["surgery", "medicine", "children"]

A schema must hold public facts only: what a codebook, a form or a standard says, or what another, public table shows. A
range or a list of levels that was read off the private rows is not covered by any ε.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from assay.data.tables.columns import THOUSANDS, TYPES, Column, Date, Flag, Number, Skip, Text
from assay.errors import ConfigError, nearest

MISSING_MARKS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")
"""What stands for a missing value where a schema does not say otherwise."""
AUTO = "auto"
"""In place of a schema, a type, bounds or levels: to be estimated privately (`assay.data.tables.drafts`)."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """How the rows of a table become features and a target. It holds public facts only (see the module).

    Args:
        columns: Every column that a table may have, in the order of the features.
        target: The columns to predict; `--target` names them.
        delimiter: Between values of a CSV file; None takes what its row of names shows.
        decimal: The decimal mark of numbers in a CSV file, "." or ",".
        thousands: What stands between groups of three digits of such numbers; None for nothing.
        dates: How dates are written, in the terms of Python's strptime, in columns that do not say it themselves; None
            for 2024-05-17 or 17.5.2024.
        missing: What stands for a missing value.
        lenient: Columns in which a value that is not what is declared counts as missing, and as targets leave a row
            out. They were estimated: nobody has looked at their values.

    Raises:
        ConfigError: A part is not accepted; the message names the column.
    """

    columns: Mapping[str, Column]
    target: tuple[str, ...] = ()
    delimiter: str | None = None
    decimal: str = "."
    thousands: str | None = None
    dates: str | None = None
    missing: tuple[str, ...] = field(default=MISSING_MARKS)
    lenient: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise ConfigError("schema", {}, "at least one column")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ConfigError("schema.table.delimiter", self.delimiter, 'one character, such as ","')
        if self.decimal not in (".", ","):
            raise ConfigError("schema.table.decimal", self.decimal, '"." or ","')
        if self.thousands is not None and (self.thousands not in THOUSANDS or self.thousands == self.decimal):
            accepted = ", ".join(f'"{one}"' for one in THOUSANDS if one != self.decimal)
            raise ConfigError("schema.table.thousands", self.thousands, f"one of {accepted}: not the decimal mark")
        if self.dates is not None and (not isinstance(self.dates, str) or "%" not in self.dates):
            raise ConfigError("schema.table.dates", self.dates, 'a format such as "%m/%d/%Y", which is 05/17/2024')
        for name in self.target:
            if name not in self.columns:
                raise ConfigError(
                    "target", name, f"{nearest(name, self.columns)}a column of the schema: {listed(self.columns)}"
                )
            if isinstance(self.columns[name], Date | Text | Skip):
                kinds = "number, category, labels or flag"
                raise ConfigError("target", name, f"a column of type {kinds}; it is of type {self.columns[name].type}")
        if len(self.target) > 1:
            for name in self.target:
                if not isinstance(self.columns[name], Flag):
                    said = f"columns of type flag where there are several; {name} is of type {self.columns[name].type}"
                    raise ConfigError("target", ",".join(self.target), said)

    @property
    def predicts_number(self) -> bool:
        """Whether the target is a number."""
        return bool(self.target) and isinstance(self.columns[self.target[0]], Number)

    def features(self, unit: str | None = None) -> dict[str, Column]:
        """The columns that become features: all but the target, those to skip and that of the unit."""
        return {
            name: column
            for name, column in self.columns.items()
            if name not in self.target and name != unit and not isinstance(column, Skip)
        }

    def feature_names(self, unit: str | None = None) -> list[str]:
        """What each feature is, in order."""
        return [
            one
            for name, column in self.features(unit).items()
            for one in (*column.names(name), *([] if column.required else [f"{name} is missing"]))
        ]

    def to_json(self) -> dict[str, Any]:
        """As a run holds it."""
        return {
            "table": {
                "delimiter": self.delimiter,
                "decimal": self.decimal,
                "missing": list(self.missing),
                # what earlier versions did not have is there only where it says something
                **{name: one for name in ("thousands", "dates") if (one := getattr(self, name)) is not None},
                **({"lenient": self._lenient} if self.lenient else {}),
            },
            "target": list(self.target),
            "columns": [{"name": name, **column.to_json()} for name, column in self.columns.items()],
        }

    @property
    def _lenient(self) -> bool | list[str]:
        """True for all columns, as earlier versions wrote it."""
        return True if set(self.lenient) == set(self.columns) else list(self.lenient)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """From what `to_json` wrote."""
        columns = {one["name"]: {k: v for k, v in one.items() if k != "name"} for one in data["columns"]}
        return read(data["table"], columns, tuple(data["target"]), "schema")

    @classmethod
    def from_toml(cls, path: Path | str) -> Schema:
        """From a file that a person wrote, or `assay data schema`.

        Raises:
            ConfigError: The file is not there, is not TOML, or says something that is not accepted.
        """
        table, columns, target = toml_of(path)
        return read(table, columns, target, str(path))


def toml_of(path: Path | str) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """The sections of a schema in TOML: that of the table, those of the columns, and the target.

    Raises:
        ConfigError: The file is not there, is not TOML, or has other sections.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError("schema", str(path), f"a readable file; {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("schema", str(path), "a file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("schema", str(path), f"a file in TOML: {error}") from None
    return _sections(data, str(path))


def _sections(data: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    columns = data.get("columns", {} if others_are_auto(data.get("table")) else None)
    if (extra := data.keys() - {"table", "columns"}) or not isinstance(columns, dict):
        wrong = f"not {min(extra)}" if extra else "there is no [columns.NAME]"
        said = f"the sections [table] and [columns.NAME]; {wrong}"
        raise ConfigError("schema", where, said)
    table = dict(data.get("table", {}))
    target = table.pop("target", [])
    return table, columns, (target,) if isinstance(target, str) else tuple(target)


def read(table: Mapping[str, Any], columns: Mapping[str, Any], target: tuple[str, ...], where: str) -> Schema:
    """A schema from its sections, as `toml_of` returns them; `where` is what to call it in an error."""
    known = ("delimiter", "decimal", "thousands", "dates", "missing")
    if extra := table.keys() - {*known, "lenient"}:
        hint = nearest(min(extra), known)
        raise ConfigError(f"{where}: table.{min(extra)}", table[min(extra)], f"{hint}{', '.join(known)} or target")
    settings: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    if isinstance(settings.get("lenient"), bool):  # as earlier versions wrote it
        settings["lenient"] = tuple(columns) if settings["lenient"] else ()
    read = {name: column_of(said, f"{where}: column {name!r}") for name, said in columns.items()}
    return Schema(columns=read, target=target, **settings)


def column_of(said: object, where: str = "column") -> Column:
    """A column from what TOML or JSON says of it.

    Args:
        said: `{"type": "number", "low": 0, "high": 1}`.
        where: What to call it in an error.

    Returns:
        The column.

    Raises:
        ConfigError: It is not accepted.
    """
    kinds = ", ".join(TYPES)
    if not isinstance(said, Mapping) or said.get("type") not in TYPES:
        shown = said.get("type", "nothing") if isinstance(said, Mapping) else said
        raise ConfigError(f"{where}: type", shown, f"{nearest(shown, TYPES)}one of {kinds}")
    kind = TYPES[said["type"]]
    known = {one.name: one for one in fields(kind)}
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in said.items() if key != "type"
    }
    if extra := given.keys() - known.keys():
        raise ConfigError(
            f"{where}: {min(extra)}", given[min(extra)], f"for type {kind.type} one of {', '.join(known)}"
        )
    for name, one in known.items():
        if name not in given and one.default is MISSING and one.default_factory is MISSING:
            raise ConfigError(f"{where}: {name}", "nothing", f"a value, which type {kind.type} needs")
        if name in ("required", "other") and name in given and not isinstance(given[name], bool):
            raise ConfigError(f"{where}: {name}", given[name], "true or false")
    try:
        return kind(**given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.field}", error.value, error.accepted) from None


def as_schema(schema: Schema | Mapping[str, Any] | Path | str, target: Sequence[str] | str | None = None) -> Schema:
    """A schema as a person may give it: itself, the JSON of a run, columns by name, or a .toml file's path or content.

    Args:
        schema: The schema.
        target: The columns to predict, in place of those that the schema names; several may be one text with commas.

    Returns:
        The schema with its target.

    Raises:
        ConfigError: It is not accepted, or there is no target.
    """
    if is_auto(schema):
        raise ConfigError(
            "schema",
            str(schema),
            "a .toml file or a mapping: an estimate from private rows costs ε, so only `assay train` makes one, and "
            "assay.train from Python",
        )
    if isinstance(schema, str | Path):
        found = Schema.from_toml(schema)
    elif isinstance(schema, Schema):
        found = schema
    elif isinstance(schema.get("columns"), list):
        found = Schema.from_json(schema)
    elif isinstance(columns := schema.get("columns"), Mapping) and "type" not in columns:  # a .toml file that was read
        found = read(*_sections(schema, "schema"), "schema")
    else:
        found = read({}, schema, (), "schema")
    names = targets(target) or found.target
    if not names:
        raise ConfigError("target", target, f"the column to predict, one of {listed(found.columns)}")
    return replace(found, target=names)


def others_are_auto(table: object) -> bool:
    """Whether a section [table] leaves columns that have no section of their own to an estimate: `columns = "auto"`."""
    return isinstance(table, Mapping) and table.get("columns") == AUTO


def is_auto(schema: object) -> bool:
    """Whether all columns are to be estimated: `auto`, or `auto:share=0.3`."""
    return isinstance(schema, str | Path) and (str(schema) == AUTO or str(schema).startswith(f"{AUTO}:"))


def targets(target: Sequence[str] | str | None) -> tuple[str, ...]:
    """The columns to predict, from a text with commas or a list."""
    if target is None:
        return ()
    return tuple(one.strip() for one in target.split(",")) if isinstance(target, str) else tuple(target)


def listed(names: Mapping[str, Any] | Sequence[str], most: int = 12) -> str:
    """Names with commas between them; of many, the first."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
