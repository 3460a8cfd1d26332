"""Methods with the options that a person gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay import methods
from assay.errors import ConfigError


def method_of(
    name: str,
    variant: str | None,
    noise_form: str | None,
    groups: int | None,
    typed: Sequence[str] | None,
) -> methods.Method:
    """The method with the options that were given.

    Raises:
        ConfigError: There is no such method, or it does not take an option.
    """
    return methods.get(name, **given_once(typed, {"variant": variant, "noise_form": noise_form, "groups": groups}))


def given_once(typed: Sequence[str] | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options: those given as key=value, and those that have names of their own.

    Raises:
        ConfigError: One is given twice, or is not key=value.
    """
    given: dict[str, str] = {}
    for text in typed or []:
        key, equals, value = text.partition("=")
        if not equals or key in given:
            raise ConfigError("option", text, "key=value, each key once")
        given[key] = value
    named = {key: value for key, value in flags.items() if value is not None}
    for key in given.keys() & named.keys():
        raise ConfigError("option", f"{key}={given[key]}", "an option given once: its own flag was used too")
    return given | named
