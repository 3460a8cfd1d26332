"""Fields of frozen dataclasses that take several forms and hold one: `clip=1.0` becomes `Flat(1.0)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Given = TypeVar("Given")
Held = TypeVar("Held")


class Converted(Generic[Given, Held]):
    """A field that is converted when the object is made. Editors and type checkers see both types.

        bound: Converted[str | float, float] = Converted(lambda _, value: float(value), default=1.0)

    Args:
        convert: Makes the value that is held, from the object, whose earlier fields are set, and from what was given.
            It raises what the caller should see for a value that is not accepted.
        default: What is converted if nothing is given.
    """

    def __init__(self, convert: Callable[[Any, Given], Held], *, default: Given) -> None:
        self._convert, self._default = convert, default

    def __set_name__(self, owner: type, name: str) -> None:
        """Keep the name under which values are held."""
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Given: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Held: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        """The value; of the class, the default, which `dataclass` asks for."""
        return self._default if instance is None else instance.__dict__[self._name]

    def __set__(self, instance: object, value: Given) -> None:
        """Convert. A frozen dataclass lets nobody else come here."""
        instance.__dict__[self._name] = self._convert(instance, value)
