"""Gaussian and Laplace noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.accounting.accountants import NOISE, Accountant, Adjacency, Parts
from assay.accounting.losses import Gaussian, Laplace

_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e9  # noise outside counts as the nearest that costs more


def noise(event: DpEvent, shift: int) -> Gaussian | Laplace | None:
    """The noise of one release relative to `shift` times the bound of one record; None if there is none."""
    if event.noise_multiplier < _LEAST_NOISE:
        return None
    multiplier = min(event.noise_multiplier, _MOST_NOISE) / shift
    return Gaussian(multiplier) if isinstance(event, dp_event.GaussianDpEvent) else Laplace(multiplier)


@dataclass(frozen=True, kw_only=True)
class Noise(Accountant):
    """Noise added once, relative to what one record contributes."""

    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:  # noqa: ARG002
        """The noise. Where a record is replaced, the sum moves by twice as much."""
        yield noise(event, 2 if adjacency is Adjacency.REPLACE_ONE else 1), 1


ACCOUNTANTS = (
    Noise(name="gaussian", event=dp_event.GaussianDpEvent, numbers={"noise_multiplier": NOISE}),
    Noise(name="laplace", event=dp_event.LaplaceDpEvent, numbers={"noise_multiplier": NOISE}),
)
