"""Names and modules that are imported when they are first used, so that a process loads only what it needs.

Importing torch takes longer than computing ε. So modules that describe a run (plans, methods, samplers, clipping rules)
do not import it. Where they compute with tensors they write

    from assay._util.lazy import torch

and use `torch` as usual. Modules that only compute with tensors import it in the ordinary way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch


class _Later:
    """Stands for a module, and imports it when one of its names is used."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        module = self._module
        if module is None:
            module = self._module = import_module(self._name)
        return getattr(module, name)


if not TYPE_CHECKING:
    torch = _Later("torch")


def exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package; `dir` of the package then gives its `__all__`.

    Args:
        package: its name.
        homes: the module of each name, within the package.

    Returns:
        A function that returns the object of a name, or raises AttributeError.
    """

    def find(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    module = sys.modules[package]
    vars(module)["__dir__"] = lambda: [*module.__all__]  # what a notebook completes, imported or not
    return find
