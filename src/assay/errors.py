"""Errors that a person can act on: each says what is wrong, and what would be accepted."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from numbers import Real


class AssayError(Exception):
    """The base of all errors that Assay raises on purpose.

    Attributes:
        exit_code: what the command line ends with.
    """

    exit_code = 1


class ConfigError(AssayError, ValueError):
    """A setting is not acceptable. It is raised before anything is trained or overwritten.

    Args:
        field: the name of the setting.
        value: its value.
        accepted: what would be accepted.

    >>> raise ConfigError("steps", 0, "a whole number, 1 or above")
    Traceback (most recent call last):
    assay.errors.ConfigError: steps = 0 is not accepted: a whole number, 1 or above
    """

    exit_code = 2

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field, self.value, self.accepted = field, value, accepted
        super().__init__(f"{field} = {value!r} is not accepted: {accepted}")


def nearest(given: object, known: Iterable[object]) -> str:
    """A question for whoever mistyped a name, with a space after it; nothing if no name is close.

    >>> nearest("Adam", ["sgd", "adam", "adamw"])
    "did you mean 'adam'? "
    """
    from difflib import get_close_matches  # only an error needs it

    def plain(name: object) -> str:
        return str(name).casefold().replace("_", "-")

    names = {plain(name): str(name) for name in known}
    return "".join(f"did you mean {names[close]!r}? " for close in get_close_matches(plain(given), names, n=1))


def one_of(given: object, known: Iterable[object]) -> str:
    """What is accepted where a name is chosen: first the nearest, then all of them.

    >>> one_of("poison", ["full", "poisson"])
    "did you mean 'poisson'? one of full, poisson"
    """
    names = list(map(str, known))
    return f"{nearest(given, names)}one of {', '.join(names)}"


def check_above_zero(field: str, value: float) -> None:
    """Refuse everything but a finite number above 0.

    Raises:
        ConfigError: names the field.
    """
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ConfigError(field, value, "a finite number above 0")


def check_number(field: str, value: object, accepted: str) -> None:
    """Refuse everything but a number; True and False are none.

    Raises:
        ConfigError: names the field and says what is accepted.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ConfigError(field, value, accepted)


def check_fields(field: str, data: object, known: Collection[str]) -> None:
    """Refuse JSON that is not an object of known fields: it is damaged, or of a later version.

    Raises:
        ConfigError: names the unknown field.
    """
    if not isinstance(data, dict):
        raise ConfigError(field, data, "an object")
    for name in data:
        if name not in known:
            raise ConfigError(f"{field}.{name}", data[name], f"one of the fields {', '.join(known)}")


class UnsupportedModelError(AssayError):
    """The model would mix records, or hides a parameter from the engine. The message names the module and the fix."""

    exit_code = 2


class BudgetSpentError(AssayError):
    """The privacy budget is spent: one more step would exceed the allowed ε."""

    exit_code = 3


class DataError(AssayError):
    """A data set is missing, truncated or corrupt. The message names the file and says how to supply it."""


class LeaderError(AssayError):
    """An error of the leading rank. The leader reports it, and the other ranks end with this error."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
