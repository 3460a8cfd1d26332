"""Modules of a model that run in another way while gradients are recorded, and as they are at all other times.

A module's replacement is never run within itself, for a copy of the module, or without gradients; `restore` gives every module
back the `forward` that it had.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from assay.errors import UnsupportedModelError
from assay.models import compat, copies


class Forwards:
    """The forwards of a model that were replaced."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._compiled = model, compat.compiled(model)
        self._replaced: list[tuple[nn.Module, Any]] = []

    def replace(self, owner: nn.Module, run: Callable[..., Any]) -> None:
        """Let `run` take the place of the module's forward while gradients are recorded. A module has one such replacement: within
        another it would never be run.
        """
        _check_free(owner)
        plain = vars(owner).get("forward")
        self._replaced.append((owner, plain))
        if plain is None:
            plain = functools.partial(type(owner).forward, owner)
        inside = False

        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            # a copy of the model (weight averaging) carries this method along, and is not ours to record
            if module is not owner:
                return type(module).forward(module, *args, **kwargs)
            if inside or not torch.is_grad_enabled():
                return plain(*args, **kwargs)
            inside = True
            try:
                return run(*args, **kwargs)
            finally:
                inside = False

        # What runs here is recorded, outside a compiled graph; what is between such layers is compiled.
        made: Any = torch.compiler.disable(forward) if self._compiled else forward
        made.replaces = weakref.ref(owner)  # a copy of the model carries this along, too, and is not meant
        owner.forward = types.MethodType(made, owner)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """The modules as they were, for a while: what is copied then has nothing of this in it."""
        ours = [(module, module.forward) for module, _ in self._replaced]
        for module, plain in self._replaced:
            _put(module, plain)
        try:
            yield
        finally:
            for module, forward in ours:
                _put(module, forward)

    def copy(self) -> nn.Module | None:
        """The model as it is, with its own forwards and sharing its parameters; None if it cannot be copied."""
        with self.lifted():
            return copies.of_model(self._model, sharing=self._model.parameters())

    def restore(self) -> None:
        """Give the modules back as they were."""
        for module, plain in self._replaced:
            _put(module, plain)
        self._replaced = []


def check_free(model: nn.Module) -> None:
    """Refuse a model of which a part runs in another way already."""
    for module in model.modules():
        _check_free(module)


def _check_free(module: nn.Module) -> None:
    other = getattr(vars(module).get("forward"), "replaces", None)
    if other is not None and other() is module:
        raise UnsupportedModelError(
            f"{type(module).__name__} belongs to a PrivateStep that was not closed: call its close() first, or make the model anew"
        )


def _put(module: nn.Module, forward: Any) -> None:
    """This forward, or (None) the one of the module's class."""
    vars(module).pop("forward", None)
    if forward is not None:
        module.forward = forward
