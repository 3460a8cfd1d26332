"""Models of the user's own, named on the command line as package.module:factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn

from assay._util.imports import current_directory_importable, import_module
from assay.errors import ConfigError
from assay.models import copies

FORM = "package.module:factory, where factory(input_shape=..., classes=...) or factory() returns an nn.Module"


def build_custom(name: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Import and call `package.module:factory`; the current directory is importable meanwhile.

    The factory is called as `factory(input_shape=..., classes=...)` if its signature takes these, otherwise
    as `factory()`. Whatever goes wrong inside the factory is the user's own exception and passes through.

    Guarantee: every call gives a model of its own, which training cannot change through another: a copy of what the factory returned, for
    it may keep that and return it again (trials of a choice and worlds of an audit must begin alike). A model that cannot be
    copied is refused if the factory's next one has a module or a tensor in common with it.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith(".") or not attribute:
        raise ConfigError("model", name, FORM)
    with current_directory_importable():
        module = import_module("model", name, module_name, FORM)
        factory = getattr(module, attribute, None)
        if factory is None:
            raise ConfigError("model", name, f"{FORM}; {module_name!r} has no {attribute!r}")
        # A built network is callable too, but calling it would run its forward pass.
        if isinstance(factory, nn.Module) or not callable(factory):
            raise ConfigError("model", name, f"{FORM}; {attribute!r} is a {type(factory).__name__}")
        arguments = _arguments(name, factory, {"input_shape": input_shape, "classes": classes})
        model = factory(**arguments)
        if not isinstance(model, nn.Module):
            raise ConfigError("model", name, f"{FORM}; it returned a {type(model).__name__}")
        copied = copies.of_model(model)
        if copied is not None:
            return copied
        with torch.random.fork_rng(devices=()):  # what comes after draws as if there had been no other
            other = factory(**arguments)
    if _parts(model) & _parts(other):
        raise ConfigError(
            "model",
            name,
            f"{FORM}: a new one each time where it cannot be copied; it returned the same one, or parts of it, again",
        )
    return model


def _parts(model: nn.Module) -> set[int]:
    return {id(part) for part in (*model.modules(), *model.parameters(), *model.buffers())}


def _arguments(name: str, factory: Callable[..., object], offered: dict[str, object]) -> dict[str, object]:
    try:
        signature = inspect.signature(factory)
    except ValueError:  # written in C, without a signature
        return {}
    for arguments in (offered, {}):
        try:
            signature.bind(**arguments)
        except TypeError:
            continue
        return arguments
    raise ConfigError("model", name, f"{FORM}; its arguments are {signature}")
