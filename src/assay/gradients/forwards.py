"""Replacing the forward of modules while gradients are recorded.

A replacement does not run within itself, for a copy of the module, or without gradients. `restore` gives every module
the `forward` that it had.
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
        """Let `run` replace the module's forward while gradients are recorded.

        Raises:
            UnsupportedModelError: The module has such a replacement already: within another it would never run.
        """
        _check_free(owner)
        plain = vars(owner).get("forward")
        self._replaced.append((owner, plain))
        if plain is None:
            plain = functools.partial(type(owner).forward, owner)
        inside = False

        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            # a copy of the model (weight averaging) has this method as well, and is not recorded
            if module is not owner:
                return type(module).forward(module, *args, **kwargs)
            if inside or not torch.is_grad_enabled():
                return plain(*args, **kwargs)
            inside = True
            try:
                return run(*args, **kwargs)
            finally:
                inside = False

        # What is recorded runs outside the compiled graph; what is between such layers is compiled.
        made: Any = torch.compiler.disable(forward) if self._compiled else forward
        made.replaces = weakref.ref(owner)  # a copy of the model has this attribute as well, and is not meant
        owner.forward = types.MethodType(made, owner)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """A context in which the modules are as they were, so that copies have no replacements."""
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
        """Remove all replacements."""
        for module, plain in self._replaced:
            _put(module, plain)
        self._replaced = []


def check_free(model: nn.Module) -> None:
    """Refuse a model that has replaced forwards already.

    Raises:
        UnsupportedModelError: A module belongs to a `PrivateStep` that was not closed.
    """
    for module in model.modules():
        _check_free(module)


def _check_free(module: nn.Module) -> None:
    other = getattr(vars(module).get("forward"), "replaces", None)
    if other is not None and other() is module:
        raise UnsupportedModelError(
            f"{type(module).__name__} belongs to a PrivateStep that was not closed: call its close() first, or make a "
            "new model"
        )


def _put(module: nn.Module, forward: Any) -> None:
    """Set this forward, or that of the module's class if it is None."""
    vars(module).pop("forward", None)
    if forward is not None:
        module.forward = forward
