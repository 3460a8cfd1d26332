"""Mixtures of Gaussians: several records of one person, each sampled by its own coin (`assay.accounting.mixtures`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.accounting.accountants import NOISE, Accountant, Adjacency, Numbers, Parts, UnaccountableError
from assay.accounting.mixtures import mixture
from assay.errors import ConfigError

_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e9  # as for Gaussian noise
_MOST_SHIFT = 1e6
_SHIFTS = Numbers("a list of finite numbers ≥ 0", 0, _MOST_SHIFT)
_MASSES = Numbers("a list of numbers from 0 to 1", 0, 1)
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class MixtureOfGaussians(Accountant):
    """N(0, σ²) against a mixture of N(s_i, σ²), where the unit is added or removed."""

    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:  # noqa: ARG002
        """The mixture in both directions; where a person is replaced, no pair is proven here."""
        if adjacency is Adjacency.REPLACE_ONE:
            raise UnaccountableError(
                f"{event} has no bound under {adjacency}: records that are sampled one by one and replaced together "
                f"are not accounted for. Use {Adjacency.ADD_OR_REMOVE_ONE}, or sample persons."
            )
        sigma = event.standard_deviation
        largest = max(event.sensitivities)
        if sigma < _LEAST_NOISE * largest:
            yield None, 1
            return
        term = mixture(min(sigma, _MOST_NOISE * max(largest, 1.0)), event.sensitivities, event.sampling_probs)
        if term is not None:
            yield term, 1

    def check(self, data: Mapping[str, object], path: str) -> None:
        """As many probabilities as shifts, and their sum is 1."""
        shifts, masses = data["sensitivities"], data["sampling_probs"]
        assert isinstance(shifts, tuple | list)
        assert isinstance(masses, tuple | list)
        if len(shifts) != len(masses) or not shifts:
            raise ConfigError(
                f"{path}.sampling_probs", f"{len(masses)} numbers", f"{len(shifts)}, one for each sensitivity"
            )
        if abs(math.fsum(masses) - 1) > _ROUNDING:
            raise ConfigError(f"{path}.sampling_probs", math.fsum(masses), "probabilities that add up to 1")


ACCOUNTANTS = (
    MixtureOfGaussians(
        name="mixture-of-gaussians",
        event=dp_event.MixtureOfGaussiansDpEvent,
        numbers={"standard_deviation": NOISE, "sensitivities": _SHIFTS, "sampling_probs": _MASSES},
    ),
)
