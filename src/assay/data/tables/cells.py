"""A public grid of cells for the values of a column, on which private rows are counted.

The grid is fixed: it depends on no row. Every value falls into exactly one cell: missing, a text of a few words, a text
of many, a date by its year, or a number by its sign, its power of two and the quarter of the way to the next one. Zero
and one have cells of their own, so that a column of yes and no can be told from a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.data.tables.columns import read_date, read_number
from assay.data.tables.encoding import is_missing, texts
from assay.data.tables.reading import Table

Floats = npt.NDArray[np.float64]

_LEAST, _MOST = -20, 40  # powers of two; smaller numbers count as 0, larger ones as the largest
_QUARTERS = 4
YEARS = range(1900, 2101)
_MANY_WORDS = 4
LONGEST_LEVEL = 64
"""Bytes of UTF-8. A longer text is not a level."""


def _axis() -> list[tuple[float, float]]:
    """The cells of numbers in order, each from its least to its largest number."""
    up = [
        (math.ldexp(1 + quarter / _QUARTERS, power), math.ldexp(1 + (quarter + 1) / _QUARTERS, power))
        for power in range(_LEAST, _MOST + 1)
        for quarter in range(_QUARTERS)
    ]
    at_one = -_LEAST * _QUARTERS
    down = [(-high, -low) for low, high in reversed(up)]
    return [*down, (0.0, 0.0), *up[:at_one], (1.0, 1.0), *up[at_one:]]


NUMBERS: Sequence[tuple[float, float]] = tuple(_axis())
_SIDE = (_MOST - _LEAST + 1) * _QUARTERS
ZERO = _SIDE
ONE = ZERO + 1 - _LEAST * _QUARTERS
MISSING, FEW_WORDS, MANY_WORDS = len(NUMBERS), len(NUMBERS) + 1, len(NUMBERS) + 2
_FIRST_YEAR = len(NUMBERS) + 3
CELLS = _FIRST_YEAR + len(YEARS)
"""How many cells there are."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a cell is found: what stands for a missing value, and how numbers and dates are written."""

    missing: tuple[str, ...]
    decimal: str = "."
    thousands: str | None = None
    dates: str | None = None


def cell_of(value: str | None, reading: Reading) -> int:
    """The cell of a value.

    Example:
        >>> how = Reading(missing=("", "NA"))
        >>> NUMBERS[cell_of("37", how)], cell_of("0", how) == ZERO, cell_of("NA", how) == MISSING
        ((32.0, 40.0), True, True)
    """
    if value is None or value in reading.missing:
        return MISSING
    if (number := _number(value, reading)) is not None:
        return _cell_of_number(number)
    if (year := _year(value, reading)) is not None:
        return _FIRST_YEAR + year - YEARS[0]
    return FEW_WORDS if len(value.split()) < _MANY_WORDS else MANY_WORDS


def _number(value: str, reading: Reading) -> float | None:
    try:
        number = read_number(value, reading.decimal, reading.thousands)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _year(value: str, reading: Reading) -> int | None:
    try:
        year = read_date(value, reading.dates).year
    except ValueError:
        return None
    return year if year in YEARS else None


def _cell_of_number(number: float) -> int:
    if number == 1:
        return ONE
    fraction, power = math.frexp(abs(number))  # number = fraction * 2^power, fraction from a half to below 1
    if number == 0 or power - 1 < _LEAST:
        return ZERO
    quarter = min(int((2 * fraction - 1) * _QUARTERS), _QUARTERS - 1)
    place = _SIDE - 1 if power - 1 > _MOST else (power - 1 - _LEAST) * _QUARTERS + quarter
    if number < 0:
        return ZERO - 1 - place
    return ZERO + 1 + place + (place >= -_LEAST * _QUARTERS)


def years_of(counts: Floats) -> Floats:
    """The counts of the years, in order."""
    return counts[_FIRST_YEAR:]


def count_cells(table: Table, name: str, weights: Floats, reading: Reading) -> Floats:
    """How much weight each cell has.

    Args:
        table: The rows.
        name: The column.
        weights: Of each row.
        reading: How values are read.

    Returns:
        A sum for each cell. It is a sum of unit vectors, one for each row, times the row's weight.
    """
    places = np.fromiter((cell_of(value, reading) for value in texts(table, name)), np.int64, len(table))
    return np.bincount(places, weights=weights, minlength=CELLS).astype(np.float64)


def count_levels(table: Table, name: str, weights: Floats, reading: Reading) -> dict[str, float]:
    """How much weight each text of at most `LONGEST_LEVEL` bytes has, in alphabetical order; without missing values."""
    raw = texts(table, name)
    gone = is_missing(raw, reading.missing)
    found: dict[str, float] = {}
    for value, missing, weight in zip(raw, gone, weights, strict=True):
        if value is not None and not missing and 0 < len(value.encode()) <= LONGEST_LEVEL:
            found[value] = found.get(value, 0.0) + float(weight)
    return dict(sorted(found.items()))
