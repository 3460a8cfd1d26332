"""Releases from Poisson samples that are cut to a public cap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.accounting import events
from assay.accounting.accountants.sampled import noise
from assay.accounting.events import (
    LEAST_RATE,
    PROBABILITY,
    SIZE,
    Accountant,
    Adjacency,
    Parts,
    UnaccountableError,
)
from assay.accounting.truncation import chance_of_truncation, truncated


@dataclass(frozen=True)
class TruncatedPoissonDpEvent(DpEvent):  # type: ignore[misc]  # dp_accounting has no types
    """`event` on a Poisson sample of `records` records, of which at most `cap` stay."""

    records: int
    sampling_probability: float
    cap: int
    event: DpEvent


@dataclass(frozen=True, kw_only=True)
class TruncatedPoisson(Accountant):
    """Poisson sampling, and twice the shift with the probability that something is cut."""

    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:
        """`assay.accounting.truncation`, for Gaussian noise."""
        inner = events.joint([event.event])
        if event.sampling_probability == 0 or isinstance(inner, dp_event.NoOpDpEvent):
            return
        if isinstance(inner, dp_event.NonPrivateDpEvent):
            yield None, 1
            return
        if not isinstance(inner, dp_event.GaussianDpEvent):
            raise UnaccountableError(f"{event} has no bound: truncated samples are accounted for with Gaussian noise.")
        base = noise(inner, 1)
        if base is None:
            yield None, 1
            return
        # a rate of 1 would leave no digits of 1 - q; twice the shift without amplification costs more
        rate = min(max(event.sampling_probability, LEAST_RATE), 1 - 1e-12)
        if rate < event.sampling_probability:
            yield from parts(dp_event.GaussianDpEvent(inner.noise_multiplier / 2))
            return
        chance = chance_of_truncation(event.records, rate, event.cap)
        replaced = adjacency is Adjacency.REPLACE_ONE
        yield truncated(rate, base.multiplier, chance, replaced=replaced), 1


ACCOUNTANTS = (
    TruncatedPoisson(
        name="truncated-poisson",
        event=TruncatedPoissonDpEvent,
        numbers={"records": SIZE, "sampling_probability": PROBABILITY, "cap": SIZE},
        inner="event",
    ),
)
