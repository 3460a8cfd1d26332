"""Models of the user's own, named on the command line as package.module:factory."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from torch import nn

from assay.errors import ConfigError

FORM = "package.module:factory, where factory(input_shape=..., classes=...) or factory() returns an nn.Module"


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    # What `python -m` does for a whole process; an installed console script does not.
    here = str(Path.cwd())
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's module may have taken it out itself
            sys.path.remove(here)


def _import(name: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:  # what a module does while it is imported may fail in any way
        said = f"{type(error).__name__}: {error}"
        raise ConfigError("model", name, f"{FORM}; importing {module!r} from {Path.cwd()} failed: {said}") from error


def build_custom(name: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Import and call `package.module:factory`; the current directory is importable meanwhile.

    The factory is called as `factory(input_shape=..., classes=...)` if its signature takes these, otherwise
    as `factory()`. Whatever goes wrong inside the factory is the user's own exception and passes through.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith(".") or not attribute:
        raise ConfigError("model", name, FORM)
    with _current_directory_importable():
        module = _import(name, module_name)
        factory = getattr(module, attribute, None)
        if factory is None:
            raise ConfigError("model", name, f"{FORM}; {module_name!r} has no {attribute!r}")
        # A built network is callable too, but calling it would run its forward pass.
        if isinstance(factory, nn.Module) or not callable(factory):
            raise ConfigError("model", name, f"{FORM}; {attribute!r} is a {type(factory).__name__}")
        model = factory(**_arguments(name, factory, {"input_shape": input_shape, "classes": classes}))
    if not isinstance(model, nn.Module):
        raise ConfigError("model", name, f"{FORM}; it returned a {type(model).__name__}")
    return model


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
