"""The types of a table's columns, and what is publicly known of each."""

from __future__ import annotations

import contextlib
import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from assay.errors import ConfigError

_MOST_LEVELS = 10_000
_MOST_SIZE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column. With `required`, a missing value is an error, and no feature says that one is missing."""

    type: ClassVar[str]
    required: bool = False

    @property
    def width(self) -> int:
        """How many features it becomes, without the one for missing values: one, unless its type says otherwise."""
        return 1

    def names(self, column: str) -> list[str]:
        """What each of these features is."""
        return [column]

    def to_json(self) -> dict[str, Any]:
        """As TOML and JSON hold it; a date as text."""
        held = {
            key: value.isoformat() if isinstance(value, datetime.date) else value for key, value in asdict(self).items()
        }
        return {"type": self.type, **{k: list(v) if isinstance(v, tuple) else v for k, v in held.items()}}


@dataclass(frozen=True, kw_only=True)
class Number(Column):
    """A number between declared bounds, scaled to [0, 1]. What lies outside is moved to the nearer bound."""

    type: ClassVar[str] = "number"
    low: float
    high: float
    loss: str = "squared"
    """As a target: `squared` or `huber`."""

    def __post_init__(self) -> None:
        for name, value in (("low", self.low), ("high", self.high)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigError(name, value, "a finite number")
        if not self.low < self.high:
            raise ConfigError("high", self.high, f"a number above low, {self.low:g}")


@dataclass(frozen=True, kw_only=True)
class Category(Column):
    """One of the declared levels, one feature for each. With `other`, one more stands for all other values."""

    type: ClassVar[str] = "category"
    levels: tuple[str, ...]
    other: bool = True

    def __post_init__(self) -> None:
        _check_levels(self.levels)

    @property
    def width(self) -> int:
        """The levels, and the other one."""
        return len(self.levels) + self.other

    def names(self, column: str) -> list[str]:
        """`column=level`."""
        return [f"{column}={level}" for level in self.levels] + ([f"{column} is another"] if self.other else [])


@dataclass(frozen=True, kw_only=True)
class Labels(Column):
    """Any of the declared levels at once, separated by `separator`: a feature each. An empty value has none of them."""

    type: ClassVar[str] = "labels"
    levels: tuple[str, ...]
    separator: str = ";"

    def __post_init__(self) -> None:
        _check_levels(self.levels, least=1)
        if not isinstance(self.separator, str) or not self.separator:
            raise ConfigError("separator", self.separator, "a text of at least one character")

    @property
    def width(self) -> int:
        """The levels."""
        return len(self.levels)

    def names(self, column: str) -> list[str]:
        """`column has level`."""
        return [f"{column} has {level}" for level in self.levels]


@dataclass(frozen=True, kw_only=True)
class Flag(Column):
    """Yes or no: 1, true, t, yes, y or 0, false, f, no, n, in capitals or not."""

    type: ClassVar[str] = "flag"


_MONEY = re.compile(r"([+-]?) ?[$€£¥]? ?(.*?) ?[$€£¥]?")
THOUSANDS = (",", ".", "'", " ")
"""What may stand between groups of three digits."""
_BLANKS = str.maketrans("\u00a0\u202f\u2009", "   ")


def read_number(value: str, decimal: str = ".", thousands: str | None = None) -> float:
    """A number as people write it, with or without a sign of a currency; it may be infinite or not a number.

    Args:
        value: The text.
        decimal: The decimal mark.
        thousands: Between groups of three digits; None where nothing stands there.

    Raises:
        ValueError: It is no number.

    Example:
        >>> read_number("$1,492.18", thousands=","), read_number("-3,5 €", decimal=",")
        (1492.18, -3.5)
    """
    if "_" in value:  # float() takes 1_000, and nobody means it
        raise ValueError(value)
    if thousands is None:
        with contextlib.suppress(ValueError):  # most numbers need no more
            return float(value.replace(decimal, "."))
    found = _MONEY.fullmatch(value.translate(_BLANKS).strip())
    if found is None:
        raise ValueError(value)
    sign, plain = found.groups()
    whole, mark, rest = plain.partition(decimal)
    if thousands is not None and thousands in whole:
        first, *groups = whole.split(thousands)
        if not 1 <= len(first.lstrip("+-")) <= 3 or any(len(group) != 3 or not group.isdigit() for group in groups):
            raise ValueError(value)
        whole = first + "".join(groups)
    return float(sign + whole + ("." if mark else "") + rest)


_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(?: +(.+))?")


def read_date(value: str, format: str | None = None) -> datetime.datetime:
    """A date in ISO 8601, or the day, the month and the year with full stops between them; a time may follow.

    Dates with slashes are read only with a format: some countries write the day first, others the month.

    Args:
        value: The text.
        format: How it is written otherwise, in the terms of `datetime.strptime`.

    Raises:
        ValueError: It is none of these.

    Example:
        >>> read_date("2024-05-17") == read_date("17.5.2024"), read_date("17.05.2024 08:30").hour
        (True, 8)
    """
    if format is not None:
        return datetime.datetime.strptime(value, format)
    if (dotted := _DOTTED.fullmatch(value)) is None:
        return datetime.datetime.fromisoformat(value)
    day, month, year, time = dotted.groups()
    clock = datetime.time() if time is None else datetime.time.fromisoformat(time)
    return datetime.datetime.combine(datetime.date(int(year), int(month), int(day)), clock)


@dataclass(frozen=True, kw_only=True)
class Date(Column):
    """A day, or a day with a time, in a declared range: its place in the range, and its season as sine and cosine.

    `format` is that of Python's strptime, for example "%m/%d/%Y". Without one it is that of the schema's section
    [table], and without that 2024-05-17 (ISO 8601) or 17.5.2024.
    """

    type: ClassVar[str] = "date"
    first: datetime.date
    last: datetime.date
    format: str | None = None

    def __post_init__(self) -> None:
        for name in ("first", "last"):
            value = getattr(self, name)
            if isinstance(value, str):
                try:
                    object.__setattr__(self, name, datetime.date.fromisoformat(value))
                except ValueError:
                    raise ConfigError(name, value, "a date such as 2024-05-17") from None
            elif isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
                raise ConfigError(name, value, "a date such as 2024-05-17")
        if not self.first < self.last:
            raise ConfigError("last", self.last.isoformat(), f"a date after first, {self.first.isoformat()}")

    @property
    def width(self) -> int:
        """Three."""
        return 3

    def names(self, column: str) -> list[str]:
        """Its place in the range, and its season."""
        return [column, f"sine of {column} in the year", f"cosine of {column} in the year"]


@dataclass(frozen=True, kw_only=True)
class Text(Column):
    """Words, counted in `size` cells by a hash of each (no list of words is made), scaled to length 1."""

    type: ClassVar[str] = "text"
    size: int = 256

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= _MOST_SIZE:
            raise ConfigError("size", self.size, f"a whole number from 1 to {_MOST_SIZE}")

    @property
    def width(self) -> int:
        """The number of cells."""
        return self.size

    def names(self, column: str) -> list[str]:
        """The cells by number."""
        return [f"words of {column}, cell {i}" for i in range(self.size)]


@dataclass(frozen=True, kw_only=True)
class Skip(Column):
    """A column that is not used, an identifier for example."""

    type: ClassVar[str] = "skip"

    @property
    def width(self) -> int:
        """None."""
        return 0

    def names(self, column: str) -> list[str]:  # noqa: ARG002
        """None."""
        return []


TYPES: Mapping[str, type[Column]] = {
    kind.type: kind for kind in (Number, Category, Labels, Flag, Date, Text, Skip)
}  # fmt: skip


def _check_levels(levels: object, least: int = 1) -> None:
    if not isinstance(levels, tuple) or not all(isinstance(one, str) for one in levels):
        raise ConfigError("levels", levels, 'a list of texts, such as ["yes", "no"]')
    if not least <= len(levels) <= _MOST_LEVELS:
        raise ConfigError(
            "levels", f"{len(levels)} levels", f"from {least} to {_MOST_LEVELS}; a text column takes more"
        )
    if len(set(levels)) < len(levels):
        twice = next(one for at, one in enumerate(levels) if one in levels[:at])
        raise ConfigError("levels", twice, "each level once")
