"""Compositions of events, and releases of nothing or of everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.accounting.events import COUNT, Accountant, Adjacency, Parts


@dataclass(frozen=True, kw_only=True)
class Structure(Accountant):
    """A release of nothing or of everything, or a composition of events."""

    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:  # noqa: ARG002
        """The terms of the inner events."""
        if isinstance(event, dp_event.NonPrivateDpEvent):
            yield None, 1
        elif isinstance(event, dp_event.SelfComposedDpEvent):
            yield from ((term, count * event.count) for term, count in parts(event.event))
        elif isinstance(event, dp_event.ComposedDpEvent):
            for inner in event.events:
                yield from parts(inner)


ACCOUNTANTS = (
    Structure(name="no-op", event=dp_event.NoOpDpEvent),
    Structure(name="non-private", event=dp_event.NonPrivateDpEvent),
    Structure(name="self-composed", event=dp_event.SelfComposedDpEvent, numbers={"count": COUNT}, inner="event"),
    Structure(name="composed", event=dp_event.ComposedDpEvent, inner="events"),
)
