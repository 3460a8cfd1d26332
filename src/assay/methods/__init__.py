"""Methods: one file a paper's method. A file that defines `METHOD` is found by itself; nothing else needs an edit."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING, Protocol

from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.chain import Chain
    from assay.plan import Plan


class Method(Protocol):
    """How one step works, and what its paper would claim for a run of such steps."""

    name: str
    summary: str
    soundness: str
    """One line: is the published form sound, and if not, why not."""
    optimizer: str
    """The optimizer the paper uses; the default of the command line."""

    def chain(self, plan: Plan, noise_multiplier: float) -> Chain:
        """The step. `noise_multiplier` is what the gradient's own noise must have (a plan may give part of a step's
        privacy away).
        """
        ...

    def claimed(self, plan: Plan) -> float:
        """ε by the paper's own formula or accountant, at the plan's δ."""
        ...


@functools.cache
def available() -> dict[str, Method]:
    """Every method by name."""
    found: dict[str, Method] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        method: Method = importlib.import_module(f"{__name__}.{module}").METHOD
        found[method.name] = method
    return found


def get(name: str) -> Method:
    """The method of this name."""
    methods = available()
    if name not in methods:
        raise ConfigError("method", name, "one of " + ", ".join(methods))
    return methods[name]
