"""Parts by name with their settings, as people type them: `laplacian:sigma=1,over=tensor`.

A part is a dataclass whose fields are its settings; the name it goes by is in the table it is looked up in. `parse` and
`describe` are inverse to each other, so that a run's description says exactly what ran.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from assay.errors import ConfigError

T = TypeVar("T")


def parse(field: str, text: str, kinds: Mapping[str, type[T]]) -> T:
    """The part that `text` names, with the settings it gives."""
    name, _, rest = text.partition(":")
    if name not in kinds:
        raise ConfigError(field, text, "one of " + ", ".join(usage(known, kind) for known, kind in kinds.items()))
    given: dict[str, str] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if not equals or key in given:
            raise ConfigError(field, text, f"settings as key=value, each once: {usage(name, kinds[name])}")
        given[key] = value
    return kinds[name](**converted(f"{field} {name}", kinds[name], given))


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
