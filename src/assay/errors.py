"""Errors that a person can act on: each names what is wrong, the value met, and what would be accepted."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Real


class AssayError(Exception):
    """Base of everything Assay raises on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1


class ConfigError(AssayError, ValueError):
    """A setting is not acceptable. Raised before anything is trained or overwritten."""

    exit_code = 2

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field, self.value, self.accepted = field, value, accepted
        super().__init__(f"{field} = {value!r} is not accepted: {accepted}")


def check_above_zero(field: str, value: float) -> None:
    """Refuse what is no finite number above 0."""
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ConfigError(field, value, "a finite number above 0")


def check_number(field: str, value: object, accepted: str) -> None:
    """Refuse what is no number (a text, True)."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ConfigError(field, value, accepted)


def check_fields(field: str, data: object, known: Collection[str]) -> None:
    """Refuse JSON that is no object, or has a field that is not known: of a later version, or damaged."""
    if not isinstance(data, dict):
        raise ConfigError(field, data, "an object")
    for name in data:
        if name not in known:
            raise ConfigError(f"{field}.{name}", data[name], f"one of the fields {', '.join(known)}")


class UnsupportedModelError(AssayError):
    """The model would mix records, or hides a parameter from the engine. Names the module and the fix."""

    exit_code = 2


class BudgetSpentError(AssayError):
    """The privacy budget is spent: taking one more step would exceed the ε that was allowed."""

    exit_code = 3


class DataError(AssayError):
    """A data set is missing, truncated or corrupt. Names the file and how to supply it."""


class LeaderError(AssayError):
    """An error of the leader, which reports it; the other ranks end with it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
