"""Methods by name, with options as a person types them."""

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
    """The method of this name with the given options.

    Args:
        name: a name that `assay.methods.available` lists.
        variant: "sound" or "published".
        noise_form: the form of the noise, for methods in the frequency domain.
        groups: the number of layers that are clipped separately.
        typed: further options as texts `key=value`.

    Raises:
        ConfigError: there is no such method, it does not take an option, or one is given twice.

    >>> method_of("lssgd", "published", None, None, ["sigma=2"]).sigma
    2.0
    """
    return methods.get(name, **given_once(typed, {"variant": variant, "noise_form": noise_form, "groups": groups}))


def given_once(typed: Sequence[str] | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options: texts `key=value`, together with those that have a flag of their own.

    Raises:
        ConfigError: an option is given twice, or is not `key=value`.

    >>> given_once(["sigma=2"], {"variant": "published", "groups": None})
    {'sigma': '2', 'variant': 'published'}
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
