"""Randomized response."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.accounting.events import LEAST_RATE, PROBABILITY, SIZE, Accountant, Adjacency, Parts, UnaccountableError
from assay.accounting.losses import RandomizedResponse


@dataclass(frozen=True, kw_only=True)
class Answers(Accountant):
    """The truth, or a uniform choice among the answers."""

    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:  # noqa: ARG002
        """One answer. It is defined only where a record is replaced."""
        if adjacency is not Adjacency.REPLACE_ONE:
            raise UnaccountableError(
                f"{event} has no finite ε under {adjacency}: the number of answers tells whether a record is "
                f"there. Use {Adjacency.REPLACE_ONE}."
            )
        if event.num_buckets > 1 and event.noise_parameter < 1:
            noise = event.noise_parameter
            yield RandomizedResponse(noise, event.num_buckets) if noise > LEAST_RATE else None, 1


ACCOUNTANTS = (
    Answers(
        name="randomized-response",
        event=dp_event.RandomizedResponseDpEvent,
        numbers={"noise_parameter": PROBABILITY, "num_buckets": SIZE},
    ),
)
