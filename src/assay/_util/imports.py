"""Things of the user's own, named on the command line as package.module:factory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from assay.errors import ConfigError


@contextmanager
def current_directory_importable() -> Iterator[None]:
    """Let modules of the current directory be imported meanwhile, as `python -m` does for a whole process."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's module may have taken it out itself
            sys.path.remove(here)


def import_module(field: str, name: str, module: str, form: str) -> ModuleType:
    """The module of a name.

    Args:
        field: The setting that names it.
        name: What was given.
        module: The module's part of it.
        form: What is accepted.

    Raises:
        ConfigError: It cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:  # what a module does while it is imported may fail in any way
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(field, name, f"{form}; importing {module!r} from {Path.cwd()} failed: {said}") from error
