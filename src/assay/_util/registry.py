"""Methods that are found by themselves: every module of a package that defines `METHOD`, by its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from assay._util import spec
from assay.errors import ConfigError

M = TypeVar("M")


def found(package: str, path: Iterable[str]) -> dict[str, Any]:
    """The methods of a package by name."""
    modules = sorted(info.name for info in pkgutil.iter_modules(path))
    imported = (importlib.import_module(f"{package}.{module}") for module in modules)
    methods = [module.METHOD for module in imported if hasattr(module, "METHOD")]
    return {method.name: method for method in methods}


def chosen(known: Mapping[str, M], name: str, options: Mapping[str, Any]) -> M:
    """The method of this name, with its options set; texts are read as the numbers that an option asks for."""
    if name not in known:
        raise ConfigError("method", name, "one of " + ", ".join(known))
    method = known[name]
    settable = options_of(method)
    if options.get("variant", "sound") != "sound" and "variant" not in settable:
        raise ConfigError(
            "variant", options["variant"], f"sound for {name}: its published form is sound, so there is only one"
        )
    given = {key: value for key, value in options.items() if key != "variant" or "variant" in settable}
    made: M = replace(method, **spec.converted(f"{name} option", type(method), given))  # type: ignore[type-var]
    return made


def changed(known: Mapping[str, M], method: M, name: str) -> dict[str, Any]:
    """The options in which the method differs from the one of this name as it stands."""
    plain = known[name]
    return {o: getattr(method, o) for o in options_of(method) if getattr(method, o) != getattr(plain, o)}


def options_of(method: object) -> tuple[str, ...]:
    """Which of its fields a user may set."""
    found: tuple[str, ...] = type(method).OPTIONS  # type: ignore[attr-defined]
    return found
