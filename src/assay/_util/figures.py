"""Numbers rounded for people, so that they stay true: an upper bound up, a lower bound down."""

from __future__ import annotations

import decimal
import math


def at_most(value: float, digits: int = 4) -> str:
    """Round up to some significant digits, as text: for an ε that was spent.

    Args:
        value: An upper bound.
        digits: How many significant digits to keep.

    Returns:
        A number that is never below `value`.

    >>> at_most(0.99121)
    '0.9913'
    """
    return _rounded(value, digits, decimal.ROUND_CEILING)


def at_least(value: float, digits: int = 4) -> str:
    """Round down to some significant digits, as text: for an ε that an attack has shown.

    Args:
        value: A lower bound.
        digits: How many significant digits to keep.

    Returns:
        A number that is never above `value`.

    >>> at_least(0.49739)
    '0.4973'
    """
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def shown(value: float | str | None, *, lower_bound: bool = False) -> str:
    """An ε of a record as people read it: an upper bound is rounded up, a lower bound down.

    >>> shown("inf")
    '∞ (no privacy)'
    """
    if value is None:
        return "not measured"
    if value == "inf":
        return "∞ (no privacy)"
    return at_least(float(value)) if lower_bound else at_most(float(value))


def _rounded(value: float, digits: int, side: str) -> str:
    if not math.isfinite(value):
        return str(value)
    # The shortest decimal form decides, so that 0.1 stays 0.1 although the nearest double lies above it.
    return f"{float(decimal.Context(prec=digits, rounding=side).create_decimal(repr(float(value)))):.{digits}g}"
