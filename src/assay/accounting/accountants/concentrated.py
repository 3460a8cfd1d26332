"""Releases of which only ρ is known: zero-concentrated privacy (Bun and Steinke 2016, arXiv:1605.02065)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.accounting.events import DIVERGENCE, ZERO, Accountant, Adjacency, Parts
from assay.accounting.losses import Concentrated


@dataclass(frozen=True, kw_only=True)
class ZeroConcentrated(Accountant):
    """ρ-zero-concentrated differential privacy."""

    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:  # noqa: ARG002
        """Doubling the shift makes the divergences at most four times as large."""
        if event.rho:
            yield Concentrated(event.rho * (4 if adjacency is Adjacency.REPLACE_ONE else 1)), 1


ACCOUNTANTS = (ZeroConcentrated(name="zcdp", event=dp_event.ZCDpEvent, numbers={"rho": DIVERGENCE, "xi": ZERO}),)
