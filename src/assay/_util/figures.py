"""Numbers as people read them, rounded to the side that is true: an upper bound up, a lower bound down."""

from __future__ import annotations

import decimal
import math


def at_most(value: float, digits: int = 4) -> str:
    """So many significant digits, never below `value`: for an ε that was spent."""
    return _rounded(value, digits, decimal.ROUND_CEILING)


def at_least(value: float, digits: int = 4) -> str:
    """So many significant digits, never above `value`: for an ε that an attack has shown."""
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def _rounded(value: float, digits: int, side: str) -> str:
    if not math.isfinite(value):
        return str(value)
    # by its shortest decimal form, so that 0.1 stays 0.1 although the nearest double lies above it
    return f"{float(decimal.Context(prec=digits, rounding=side).create_decimal(repr(float(value)))):.{digits}g}"
