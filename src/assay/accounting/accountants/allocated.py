"""Releases of which every record takes part in one, drawn at random: shuffled epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.accounting import events
from assay.accounting.allocation import LEAST_NOISE, Allocation
from assay.accounting.events import SIZE, Accountant, Adjacency, Parts


@dataclass(frozen=True)
class RandomAllocationDpEvent(DpEvent):  # type: ignore[misc]  # dp_accounting has no types
    """One epoch: `batches` releases of `event`, each record in one of them, drawn uniformly and by itself."""

    batches: int
    event: DpEvent


@dataclass(frozen=True, kw_only=True)
class RandomAllocation(Accountant):
    """Amplified where a record is added or removed; else a record is in one release, which counts whole."""

    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:
        """`assay.accounting.allocation`; without amplification for other noise than Gaussian, or very little of it."""
        inner = events.joint([event.event])
        amplified = (
            event.batches > 1
            and adjacency is Adjacency.ADD_OR_REMOVE_ONE
            and isinstance(inner, dp_event.GaussianDpEvent)
            and inner.noise_multiplier >= LEAST_NOISE
        )
        if amplified:
            yield Allocation(event.batches, inner.noise_multiplier), 1
        else:
            yield from parts(inner)


ACCOUNTANTS = (
    RandomAllocation(name="random-allocation", event=RandomAllocationDpEvent, numbers={"batches": SIZE}, inner="event"),
)
