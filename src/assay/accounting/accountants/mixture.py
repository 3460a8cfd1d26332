"""Mixtures of Gaussians: the privacy loss of several records that belong together, each sampled by its own coin.

A step adds N(0, σ²) to a sum. On one data set the sum is f; on its neighbour it is f + c, where c is random: which of a
person's records were sampled decides it. If ‖c‖ is at most s_i with probability p_i, then

    P' = Σ_i p_i N(s_i, σ²)   and   Q' = N(0, σ²),   both on the real line,

dominate what is really released, in both directions.

Proof. Fix f, and let c take the value c_i with probability p_i, ‖c_i‖ ≤ s_i. Write P = Σ_i p_i N(c_i, σ²I), Q = N(0,
σ²I) and Φ for the normal distribution function. Take any set S, and let a = Q(S).

1. By the Neyman-Pearson lemma, no set of that size under Q has more of N(c_i, σ²I) than a half-space across c_i:
   N(c_i, σ²I)(S) ≤ Φ(Φ⁻¹(a) + ‖c_i‖/σ) ≤ Φ(Φ⁻¹(a) + s_i/σ). On the line, S' = [t, ∞) with Q'(S') = a reaches the last
   value for every i at once. So P(S) - e^ε Q(S) ≤ P'(S') - e^ε Q'(S').
2. Likewise N(c_i, σ²I)(S) ≥ Φ(Φ⁻¹(a) - s_i/σ), which S' = (-∞, t] with Q'(S') = a reaches for every i at once. So
   Q(S) - e^ε P(S) ≤ Q'(S') - e^ε P'(S').
3. Both right-hand sides grow with every s_i. So a number of sampled records that is stochastically smaller costs no
   more: somebody with m < k records, of whom Binomial(m, q) are sampled, is covered by Binomial(k, q).
4. f depends on the coins of the other records. They are independent of the person's own, so what is released is a
   mixture of such pairs with the same weights on both sides, and hockey-stick divergences are jointly convex.
5. f and c may depend on earlier releases: the bound holds for all of them, and dominating pairs compose adaptively
   (Zhu, Dong and Wang, "Optimal accounting of differential privacy via characteristic function", 2022,
   arXiv:2106.08567, theorem 10). ∎

The bound is tight: records whose gradients all point the same way, with norm C each, release exactly this pair. It is
that of Choquette-Choo et al., "Privacy amplification for matrix mechanisms" (2024, arXiv:2310.15526), as Charles et
al., "Fine-tuning large language models with user-level differential privacy" (2024, arXiv:2407.07737), use it for
sampled examples of one user.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent, MixtureOfGaussiansDpEvent
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

from assay.accounting.events import NOISE, Accountant, Adjacency, Numbers, Parts, UnaccountableError
from assay.accounting.losses import Array, Term
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


_POINTS = 2048  # of the table that the search for a likelihood ratio starts from
_NEWTON = 60  # steps at the most; it takes three or four
_CLOSE, _ALIKE = 1e-12, 1e-15  # when it ends: how near a point is, or how alike what is compared there is
_LEAST_SHIFT = 1e-9  # of the noise; a smaller one is taken for this
_LEAST_MASS = 1e-30  # what is rarer is moved to the largest shift, which costs more
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Mixture(Term):
    """Σ_i p_i N(s_i, σ²) against N(0, σ²): `shifts` are s_i ≥ 0, rising, `masses` p_i, the first shift is 0."""

    tight: ClassVar[bool] = True

    sigma: float
    shifts: tuple[float, ...]
    masses: tuple[float, ...]
    pure = math.inf

    def forward(self, eps: Array) -> Array:
        """Profile of (P, Q).

        The likelihood ratio grows with x, so P(X ≥ x) - e^ε Q(X ≥ x) is largest where it is e^ε. An x beside that point
        gives less, by the square of its distance.
        """
        out = np.empty_like(eps)
        for start in range(0, len(eps), _CHUNK):
            part = eps[start : start + _CHUNK]
            x = self._where(part)
            log_above = log_ndtr(-x / self.sigma)
            # (e^ε - 1) Q(X ≥ x), where e^ε alone may be beyond all numbers
            unshifted = np.where(part < 1, np.expm1(np.minimum(part, 1.0)) * np.exp(log_above), 0.0)
            unshifted = np.where(part < 1, unshifted, np.exp(part + log_above) - np.exp(log_above))
            out[start : start + _CHUNK] = self._gain(x, -1.0) - unshifted
        return np.maximum(out, 0.0)

    def backward(self, eps: Array) -> Array:
        """The profile of (Q, P): Q(X ≤ x) - e^ε P(X ≤ x) where the likelihood ratio is e^-ε ≥ P(shift = 0)."""
        out = np.zeros_like(eps)
        inside = np.flatnonzero(eps < (-math.log(self.masses[0]) if self.masses[0] > 0 else math.inf))
        for start in range(0, len(inside), _CHUNK):
            chosen = inside[start : start + _CHUNK]
            part = eps[chosen]
            x = self._where(-part)
            small = np.minimum(part, 1.0)
            near = np.exp(small) * self._gain(x, 1.0) - np.expm1(small) * ndtr(x / self.sigma)
            out[chosen] = np.where(part < 1, near, ndtr(x / self.sigma) - self._grown(part, x))
        return np.maximum(out, 0.0)

    def _grown(self, eps: Array, x: Array) -> Array:
        """e^ε P(X ≤ x), where e^ε alone may be beyond all numbers."""
        total = np.zeros_like(x)
        for shift, mass in zip(self.shifts, self.masses, strict=True):
            total += mass * np.exp(eps + log_ndtr((x - shift) / self.sigma))
        return total

    def _gain(self, x: Array, side: float) -> Array:
        """Σ_i p_i |P_i(half-line) - Q(half-line)|: the line above x (side -1) or below it (side 1)."""
        base = ndtr(side * x / self.sigma)
        total = np.zeros_like(x)
        for shift, mass in zip(self.shifts[1:], self.masses[1:], strict=True):
            total += mass * np.abs(ndtr(side * (x - shift) / self.sigma) - base)
        return total

    def _log_ratio(self, x: Array) -> tuple[Array, Array]:
        """log P(x)/Q(x), which is convex and grows with x, and its slope."""
        shifts, masses = np.array(self.shifts), np.array(self.masses)
        with np.errstate(divide="ignore"):
            logs = np.log(masses)
        exponents = logs + shifts / self.sigma**2 * (x[:, None] - shifts / 2)
        top = exponents.max(1)
        parts = np.exp(exponents - top[:, None])
        total = parts.sum(1)
        return top + np.log(total), (parts @ shifts) / (total * self.sigma**2)

    def _where(self, log_ratio: Array) -> Array:
        """The x with this log likelihood ratio, by Newton's method from above, which never passes x."""
        x = self._above(log_ratio)
        for _ in range(_NEWTON + len(self.shifts)):
            value, slope = self._log_ratio(x)
            beyond = value - log_ratio
            with np.errstate(divide="ignore", invalid="ignore"):
                step = np.where(slope > 0, beyond / slope, 0.0)
            # A point between which and x the densities P and e^ε Q differ by 1e-15 of themselves is as good as x: what
            # a profile loses there is 1e-15 of a probability, which the accountant takes off δ several times over.
            done = (np.abs(step) <= _CLOSE * (np.abs(x) + self.sigma)) | (
                np.abs(beyond) <= _ALIKE * (1 + np.abs(log_ratio))
            )
            if bool(done.all()):
                return x
            # rounding may take a point to just below x, from where convexity takes the next one above it
            x = np.where(done, x, x - step)
        raise ArithmeticError(f"no likelihood ratio found for {self}: a point beside it would give too small a profile")

    def _above(self, log_ratio: Array) -> Array:
        """Points at which the log likelihood ratio is at least so much, near the first such points."""
        # one shift alone bounds the ratio from below, so a point where it is reached for that one is above x
        shifts, masses = np.array(self.shifts[1:]), np.array(self.masses[1:])
        high = np.min(
            (np.array([float(log_ratio.max())])[:, None] - np.log(masses)) * self.sigma**2 / shifts + shifts / 2
        )
        low = min(float(high), 0.0)
        while float(self._log_ratio(np.array([low]))[0][0]) > float(log_ratio.min()):
            low = low - max(1.0, abs(low)) * 2 - 8 * self.sigma
            if low < -1e9 * self.sigma:
                break
        table = np.linspace(low, float(high), _POINTS)
        values = np.maximum.accumulate(self._log_ratio(table)[0])
        place = np.clip(np.searchsorted(values, log_ratio, side="left"), 0, _POINTS - 1)
        found: Array = table[place]
        return found


def mixture(sigma: float, shifts: Sequence[float], masses: Sequence[float]) -> Mixture | None:
    """The term of a mixture with these shifts and masses; None where nothing moves.

    Masses that do not add up to 1 by rounding, and those that are too rare to be computed with, go to the largest
    shift: that costs more, never less.
    """
    by_shift: dict[float, float] = {}
    for given, mass in zip(shifts, masses, strict=True):
        shift = max(float(given), _LEAST_SHIFT * sigma) if given > 0 else 0.0
        by_shift[shift] = by_shift.get(shift, 0.0) + float(mass)
    moving = {shift: mass for shift, mass in by_shift.items() if shift > 0 and mass > 0}
    if not moving:
        return None
    largest = max(moving)
    common = {shift: mass for shift, mass in moving.items() if mass >= _LEAST_MASS or shift == largest}
    rare = math.fsum(mass for shift, mass in moving.items() if shift not in common)
    still = by_shift.get(0.0, 0.0)
    missing = max(0.0, 1.0 - math.fsum([still, *moving.values()]))
    common[largest] = max(common[largest] + rare + missing, _LEAST_MASS)
    rising = sorted(common)
    return Mixture(sigma, (0.0, *rising), (still, *(common[shift] for shift in rising)))


def sampled_together(rows: int, rate: float, noise_multiplier: float) -> dp_event.DpEvent:
    """What one step costs a person with at most `rows` records, each of which is sampled by its own coin.

    Args:
        rows: The most records that a person has, k.
        rate: The chance q of each record.
        noise_multiplier: σ, over what one record moves the sum by.

    Returns:
        The mixture with shifts 0, 1, …, k and the masses of Binomial(k, q).

    Example:
        >>> [round(p, 9) for p in sampled_together(2, 0.5, 1.0).sampling_probs]
        [0.25, 0.5, 0.25]
    """
    if rate == 0 or rows == 0:
        return dp_event.NoOpDpEvent()
    if rate == 1:
        return dp_event.GaussianDpEvent(noise_multiplier / rows)
    masses = [float(binom.pmf(i, rows, rate)) for i in range(rows + 1)]
    masses[0] = max(0.0, 1.0 - math.fsum(masses[1:]))
    return MixtureOfGaussiansDpEvent(noise_multiplier, tuple(float(i) for i in range(rows + 1)), tuple(masses))
