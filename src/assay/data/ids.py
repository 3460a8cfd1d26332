"""Checks ids of persons: finds missing ids, and pairs of ids that are probably one person's.

One person under two ids counts as two, so that ε is that of a part of their rows. Nobody can see that from the ids
alone, but most cases have a sign: they differ in case, blanks, Unicode form, dashes or leading zeros. Such ids are
refused, and not made one: whoever holds the records knows whether they are two persons.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_ZEROS = re.compile("(?<![0-9])0+(?=[0-9])")
_FRACTION = re.compile("[0-9+.,-][0-9.,eE+-]*")
_MISSING = {"", "na", "n/a", "#n/a", "nan", "nat", "null", "none", "<na>", ".", "-", "--", "?", "-1", str(-(2**63))}
"""Marks of a missing value in any case; -1 and -2^63 are what numpy and pandas make of one in whole numbers."""


def form(one: str) -> str:
    """An id without what people and programs write in several ways.

    Example:
        >>> form(" P-007"), form("p\u20117") == form("P-07"), form("7") == form("\uff17\u200b")
        ('p-7', True, True)
    """
    text = one.casefold()
    if "0" not in text and text.isascii() and text.isalnum():  # most ids: this is quick
        return text
    if not text.isascii():
        text = "".join(map(_plain, unicodedata.normalize("NFKC", text))).casefold()
    text = " ".join(text.split()).strip("\"'")
    return _ZEROS.sub("", text)


def _plain(c: str) -> str:
    """A character of an id: digits of all scripts and dashes of all kinds are one, and format characters are none."""
    match unicodedata.category(c):
        case "Nd":
            return str(unicodedata.decimal(c))
        case "Pd":
            return "-"
        case "Cf":
            return ""
    return "-" if c == "\u2212" else c


def is_missing(one: str, marks: Iterable[str] = ()) -> bool:
    """Whether a text stands for a missing id: it is one of these marks, or of those that programs write."""
    return one in marks or one.strip().casefold() in _MISSING


def is_fraction(one: str) -> bool:
    """Whether a text is a number in another form than digits alone."""
    text = one.strip()
    if text.isdigit() or not _FRACTION.fullmatch(text):
        return False
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return not text.lstrip("-").isdigit()


def fault(ids: Sequence[str], marks: Iterable[str] = ()) -> tuple[int, str] | None:
    """The first row whose id is not accepted, and what would be.

    Args:
        ids: One for each row.
        marks: More marks of a missing value.

    Example:
        >>> fault(["7", "8", "08"])[0]
        2
    """
    written: dict[str, str] = {}
    for one in dict.fromkeys(ids):
        if is_missing(one, marks):
            accepted = "an id: every row must say whose it is"
        elif is_fraction(one):
            accepted = "an id that is a whole number or a text, not a fraction: 7 and 7.0 would be two"
        elif (known := written.setdefault(form(one), one)) != one:
            accepted = (
                f"each person's id written in one way: there is {known!r}, too, and one person would count as two. If "
                "they are two persons, number the persons"
            )
        else:
            continue
        return ids.index(one), accepted
    return None


def texts_of(ids: np.ndarray[Any, Any]) -> list[str]:
    """Whole numbers or texts as texts."""
    return [one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in ids.tolist()]
