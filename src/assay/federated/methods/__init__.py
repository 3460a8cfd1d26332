"""Federated methods, one file each. The registry finds every file that defines `METHOD`.

`assay._util.registry` explains how to add a method from another package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import DpEvent

from assay._util.registry import MethodRegistry

if TYPE_CHECKING:
    from assay.federated.exchange import Exchange
    from assay.federated.layout import Layout
    from assay.federated.plan import FederatedPlan


@dataclass(frozen=True, kw_only=True)
class FederatedMethod(ABC):
    """What clients and server exchange, and what the paper would claim for it. A frozen dataclass."""

    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """Which of its fields a user may set."""

    name: str
    """Its name."""
    summary: str
    """One line: what it does, and whose it is."""
    soundness: str
    """One line: is the published form sound, and if not, why not."""
    variant: str = "sound"
    """`sound`, or `published`: the paper's algorithm to the letter, where a target ε is a claimed one."""

    @property
    def published(self) -> bool:
        """Whether a target ε is a claimed one."""
        return self.variant != "sound"

    @property
    def units(self) -> tuple[str, ...]:
        """What it can protect: `client`, `record`."""
        return ("client",)

    @property
    def noises(self) -> tuple[str, ...]:
        """Where its noise may come from, for the unit `client`; the first is the default."""
        return ("central", "local", "distributed")

    @abstractmethod
    def exchange(self, plan: FederatedPlan, layout: Layout) -> Exchange:
        """Both sides of a round."""

    @abstractmethod
    def event(self, plan: FederatedPlan) -> DpEvent:
        """What one participation of a client costs (unit `client`), before amplification by drawing clients."""

    @abstractmethod
    def claimed(self, plan: FederatedPlan) -> float:
        """ε by the paper's own formula or accountant, for the noise that the plan really adds."""


METHODS: MethodRegistry[FederatedMethod] = MethodRegistry("federated_method", FederatedMethod, __name__)  # type: ignore[type-abstract]
available = METHODS.available
"""Every federated method by name."""
get = METHODS.with_options
"""The federated method of a name with the given options: `get("NAME", option=value)`."""
options = METHODS.options
"""The options of a method that differ from their defaults: `get(method.name, **options(method)) == method`."""
