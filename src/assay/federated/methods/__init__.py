"""Federated methods: one file a method. A file that defines `METHOD` is found by itself; nothing else needs an edit."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dp_accounting.dp_event import DpEvent

from assay._util import registry

if TYPE_CHECKING:
    from assay.federated.exchange import Exchange
    from assay.federated.layout import Layout
    from assay.federated.plan import FederatedPlan


class FederatedMethod(Protocol):
    """What passes between clients and server, and what its paper would claim for it. A frozen dataclass."""

    OPTIONS: ClassVar[tuple[str, ...]]
    """Which of its fields a user may set."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def summary(self) -> str:
        """One line: what it does, and whose it is."""
        ...

    @property
    def soundness(self) -> str:
        """One line: is the published form sound, and if not, why not."""
        ...

    @property
    def variant(self) -> str:
        """`sound`, or `published`: the paper's algorithm to the letter, and a target ε is a claimed one."""
        ...

    @property
    def units(self) -> tuple[str, ...]:
        """What it can protect: `client`, `record`."""
        ...

    @property
    def noises(self) -> tuple[str, ...]:
        """Where its noise may come from, for the unit `client`; the first is the default."""
        ...

    def exchange(self, plan: FederatedPlan, layout: Layout) -> Exchange:
        """The method at work."""
        ...

    def event(self, plan: FederatedPlan) -> DpEvent:
        """What one participation of a client costs (unit `client`), before amplification by drawing clients."""
        ...

    def claimed(self, plan: FederatedPlan) -> float:
        """ε by the paper's own formula or accountant, for the noise that the plan really adds."""
        ...


@functools.cache
def available() -> dict[str, FederatedMethod]:
    """Every federated method by name."""
    return registry.found(__name__, __path__)


def get(name: str, **options: Any) -> FederatedMethod:
    """The method of this name, with its options set; texts are read as the numbers that an option asks for."""
    return registry.chosen(available(), name, options)


def options(method: FederatedMethod) -> dict[str, Any]:
    """The options that differ from the method's own defaults: `get(method.name, **options(method)) == method`."""
    return registry.changed(available(), method, method.name)
