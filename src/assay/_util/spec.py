"""Parts by name with their settings, as people type them: `laplacian:sigma=1,over=tensor`.

A part is a dataclass whose fields are its settings; the name it goes by is in the table it is looked up in. The first setting may be
given by its value alone: `flat:0.5` is `flat:bound=0.5`. A colon may stand for a comma before `key=`, as earlier versions wrote clipping
rules: `auto:1.0:gamma=0.01`. `parse` and `describe` are inverse to each other, so that a run's description says exactly what ran.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from assay.errors import ConfigError

T = TypeVar("T")

_BETWEEN = re.compile(r",|:(?=\w+=)")


def parse(field: str, text: str, kinds: Mapping[str, type[T]]) -> T:
    """The part that `text` names, with the settings it gives.

    Args:
        field: what the part is to its user, for errors.
        text: `name`, `name:value`, `name:key=value,key=value` or `name:value,key=value`.
        kinds: the parts there are.

    Raises:
        ConfigError: there is no such part, or a setting is missing its value, given twice, unknown or out of range.
    """
    name, colon, rest = text.partition(":")
    if name not in kinds:
        raise ConfigError(field, text, "one of " + ", ".join(usage(known, kind) for known, kind in kinds.items()))
    kind = kinds[name]
    given: dict[str, str] = {}
    for position, part in enumerate(_BETWEEN.split(rest) if colon else []):
        key, equals, value = part.partition("=")
        if not equals and position == 0 and settings(kind):
            key, value = _first(field, text, name, kind, part), part
        elif not equals or key in given:
            raise ConfigError(field, text, f"settings as key=value, each once: {usage(name, kind)}")
        given[key] = value
    return kind(**converted(f"{field} {name}", kind, given))


def _first(field: str, text: str, name: str, kind: type[Any], value: str) -> str:
    """The setting that is meant by a value alone."""
    key, asked = next(iter(settings(kind).items()))
    try:
        _read(key, value, asked)
    except ConfigError:
        raise ConfigError(field, text, f"settings as key=value, each once: {usage(name, kind)}") from None
    return key


def converted(field: str, kind: type[Any], given: Mapping[str, object]) -> dict[str, Any]:
    """Settings as the types that the fields of `kind` ask for; texts are read as numbers where a number is asked for."""
    asked = settings(kind)
    out = {}
    for key, value in given.items():
        if key not in asked:
            raise ConfigError(field, key, "one of its settings: " + (", ".join(asked) or "it has none"))
        out[key] = _read(f"{field} {key}", value, asked[key]) if isinstance(value, str) else value
    return out


def settings(kind: type[Any]) -> dict[str, Any]:
    """The settings of a part and their types: its fields, or those it names in `OPTIONS`."""
    hints = typing.get_type_hints(kind)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init}
    named = getattr(kind, "OPTIONS", None)
    return fields if named is None else {name: fields[name] for name in named}


def given(part: Any) -> dict[str, Any]:
    """The settings of a part that differ from the defaults of its kind."""
    defaults = {f.name: f.default for f in dataclasses.fields(part)}
    return {name: getattr(part, name) for name in settings(type(part)) if getattr(part, name) != defaults[name]}


def describe(part: T, kinds: Mapping[str, type[T]]) -> str:
    """The text that `parse` turns into `part`; settings left at their defaults are not written."""
    name = next(name for name, kind in kinds.items() if type(part) is kind)
    said = ",".join(
        f"{key}={value!r}" if isinstance(value, float) else f"{key}={value}" for key, value in given(part).items()
    )
    return f"{name}:{said}" if said else name


def written(part: T, kinds: Mapping[str, type[T]]) -> str:
    """Text that `parse` turns into `part`, with every setting that is set: what a default was when it ran does not matter later."""
    name = next(name for name, kind in kinds.items() if type(part) is kind)
    values = {key: getattr(part, key) for key in settings(type(part))}
    said = ",".join(f"{key}={_short(value)}" for key, value in values.items() if value is not None)
    return f"{name}:{said}" if said else name


def _short(value: object) -> str:
    """A number without digits that it does not need."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def usage(name: str, kind: type[Any]) -> str:
    """How a part is written, with its defaults."""
    defaults = {f.name: f.default for f in dataclasses.fields(kind)}
    said = ",".join(f"{key}={defaults[key]}" for key in settings(kind))
    return f"{name}:{said}" if said else name


def _read(field: str, text: str, kind: Any) -> Any:
    kinds = [k for k in typing.get_args(kind) if k is not type(None)] or [kind]
    for wanted in kinds:
        try:
            return wanted(text)
        except ValueError:
            continue
    names = {int: "a whole number", float: "a number"}
    raise ConfigError(field, text, " or ".join(names.get(k, str(k)) for k in kinds))
