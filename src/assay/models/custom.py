"""The user's models, named on the command line as package.module:factory."""

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
    """Import and call `package.module:factory`. The current directory is importable meanwhile.

    The factory is called as `factory(input_shape=..., classes=...)` if its signature takes these, otherwise
    as `factory()`. An exception inside the factory passes through.

    Guarantee: no two calls return models that share a tensor. A factory may keep its model and return it again, but
    tuning trials and audit worlds must begin alike, so this returns a copy. For a model that cannot be copied the
    factory is called twice, and refused if the two have a module or a tensor in common.

    Raises:
        ConfigError: the name has another form, the module cannot be imported, or the factory is missing, takes other
            arguments, returns no `nn.Module` or returns the same one again.
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
        with torch.random.fork_rng(devices=()):  # the second call must not change later draws
            other = factory(**arguments)
    if _identities(model) & _identities(other):
        raise ConfigError(
            "model",
            name,
            f"{FORM}: a new one each time, because it cannot be copied; it returned the same modules or tensors again",
        )
    return model


def _identities(model: nn.Module) -> set[int]:
    return {id(thing) for thing in (*model.modules(), *model.parameters(), *model.buffers())}


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
