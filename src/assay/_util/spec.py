"""The grammar `name:key=value,...` for objects with settings, as people type them: `laplacian:sigma=1,over=tensor`.

Such an object is a dataclass whose fields are its settings. A table maps its name to its class. The first setting may
be given by its value alone: `flat:0.5` means `flat:bound=0.5`. A colon may replace a comma before `key=`, as earlier
versions wrote clipping rules: `auto:1.0:gamma=0.01`. `parse` inverts `describe`, so that the description of a run says
exactly what ran.

`Converted` is a field of a dataclass that takes such a text, or a number, and holds the object.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

from assay.errors import ConfigError, nearest

T = TypeVar("T")
Given = TypeVar("Given")
Held = TypeVar("Held")

_SEPARATOR = re.compile(r",|:(?=\w+=)")


def parse(field: str, text: str, kinds: Mapping[str, type[T]], *, bare: str | None = None) -> T:
    """The object that `text` describes.

    Args:
        field: the setting that the text belongs to, for errors.
        text: `name`, `name:value`, `name:key=value,key=value` or `name:value,key=value`.
        kinds: the classes by name.
        bare: the kind that a number alone stands for.

    Raises:
        ConfigError: the name is unknown, or a setting has no value, is given twice, unknown or out of range.
    """
    if bare is not None and _is_number(text):
        text = f"{bare}:{text}"
    name, colon, rest = text.partition(":")
    if name not in kinds:
        uses = ", ".join(usage(known, kind) for known, kind in kinds.items())
        raise ConfigError(field, text, f"{nearest(name, kinds)}one of {uses}")
    kind = kinds[name]
    given: dict[str, str] = {}
    for position, setting in enumerate(_SEPARATOR.split(rest) if colon else []):
        key, equals, value = setting.partition("=")
        if not equals and position == 0 and settings(kind):
            key, value = _first(field, text, name, kind, setting), setting
        elif not equals or key in given:
            raise ConfigError(field, text, f"settings as key=value, each once: {usage(name, kind)}")
        given[key] = value
    return kind(**converted(f"{field} {name}", kind, given))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first(field: str, text: str, name: str, kind: type[Any], value: str) -> str:
    """The name of the setting that a value alone belongs to."""
    key, asked = next(iter(settings(kind).items()))
    try:
        _read(key, value, asked)
    except ConfigError:
        raise ConfigError(field, text, f"settings as key=value, each once: {usage(name, kind)}") from None
    return key


def converted(field: str, kind: type[Any], given: Mapping[str, object]) -> dict[str, Any]:
    """Settings in the types of the fields of `kind`: texts are read as numbers where a field is a number.

    Raises:
        ConfigError: `kind` has no such setting, or a text is not a number.
    """
    asked = settings(kind)
    out = {}
    for key, value in given.items():
        if key not in asked:
            known = f"{nearest(key, asked)}one of its settings: {', '.join(asked) or 'it has none'}"
            raise ConfigError(field, key, known)
        out[key] = _read(f"{field} {key}", value, asked[key]) if isinstance(value, str) else value
    return out


def settings(kind: type[Any]) -> dict[str, Any]:
    """The settings of a class and their types: its fields, or those that it names in `OPTIONS`."""
    hints = typing.get_type_hints(kind)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init}
    named = getattr(kind, "OPTIONS", None)
    return fields if named is None else {name: fields[name] for name in named}


def given(thing: Any) -> dict[str, Any]:
    """The settings of an object that differ from the defaults of its class."""
    defaults = {f.name: f.default for f in dataclasses.fields(thing)}
    return {name: getattr(thing, name) for name in settings(type(thing)) if getattr(thing, name) != defaults[name]}


def describe(thing: T, kinds: Mapping[str, type[T]]) -> str:
    """The text that `parse` turns into `thing`, without settings that have their default value."""
    texts = [
        f"{key}={value!r}" if isinstance(value, float) else f"{key}={value}" for key, value in given(thing).items()
    ]
    return _with_settings(thing, kinds, texts)


def written(thing: T, kinds: Mapping[str, type[T]]) -> str:
    """As `describe`, with every setting, so that a later change of a default changes nothing."""
    values = {key: getattr(thing, key) for key in settings(type(thing))}
    return _with_settings(
        thing, kinds, [f"{key}={_short(value)}" for key, value in values.items() if value is not None]
    )


def _with_settings(thing: T, kinds: Mapping[str, type[T]], texts: list[str]) -> str:
    name = next(name for name, kind in kinds.items() if type(thing) is kind)
    return f"{name}:{','.join(texts)}" if texts else name


def _short(value: object) -> str:
    """A number without superfluous digits."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def usage(name: str, kind: type[Any]) -> str:
    """How an object of this class is written, with its defaults."""
    defaults = {f.name: f.default for f in dataclasses.fields(kind)}
    texts = ",".join(f"{key}={defaults[key]}" for key in settings(kind))
    return f"{name}:{texts}" if texts else name


def _read(field: str, text: str, kind: Any) -> Any:
    kinds = [k for k in typing.get_args(kind) if k is not type(None)] or [kind]
    for wanted in kinds:
        try:
            return wanted(text)
        except ValueError:
            continue
    names = {int: "a whole number", float: "a number"}
    raise ConfigError(field, text, " or ".join(names.get(k, str(k)) for k in kinds))


class Converted(Generic[Given, Held]):
    """A field of a frozen dataclass that takes several forms and holds one. Type checkers see both types.

        clip: Converted[ClipRule | float, ClipRule] = Converted(rule_of, default=1.0)

    A default of None is held as it is, until `__post_init__` replaces it.

    Args:
        convert: Makes what is held from what was given. It raises what the caller should see for a value that is not
            accepted. None converts nothing.
        default: What is converted if nothing is given.
    """

    def __init__(self, convert: Callable[[Given], Held] | None = None, *, default: Given) -> None:
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
        if self._convert is None or (value is None and self._default is None):
            instance.__dict__[self._name] = value
        else:
            instance.__dict__[self._name] = self._convert(value)
