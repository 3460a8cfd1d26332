"""Lower bounds on ε from one training run with many canaries.

A separate fair coin includes each of m canaries. One run is trained, and some of the coins are guessed. Nothing is
assumed about how canaries influence one another. The number of guesses must not depend on the outcome of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from assay.accounting.epsilon import gdp_mu
from assay.audit.bounds import check_delta, check_significance, epsilon_of_mu
from assay.errors import ConfigError

_CLOSE = 1e-6  # how closely bounds are placed, from below
_MOST_EPSILON, _MOST_MU = 200.0, 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    """How many of the guesses about `canaries` fair coins were right."""

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.canaries or self.canaries < 1:
            raise ConfigError(
                "guesses",
                f"{self.right} right of {self.made} about {self.canaries} canaries",
                "right ≤ made ≤ canaries, at least one canary",
            )


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """An upper bound on the probability that an (ε, δ)-private run allows this many right guesses or more.

    Theorem 5.2 of Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", 2023 (arXiv:2305.08846):
    with W ~ Bin(r, e^ε/(1 + e^ε)), P[right ≥ v] ≤ P[W ≥ v] + 2mδ · max_{1≤i≤v} P[v - i ≤ W < v]/i.
    """
    made, right = guesses.made, guesses.right
    if right == 0:
        return 1.0
    correct = special.expit(epsilon)
    beta = float(special.bdtrc(right - 1, made, correct))
    if delta == 0:
        return beta
    at_least = np.append(special.bdtrc(np.arange(right - 2, -1, -1), made, correct), 1.0)  # P[W ≥ right - i], i = 1 ...
    gain = float(np.max((at_least - beta) / np.arange(1, right + 1)))
    return min(1.0, beta + 2 * guesses.canaries * delta * gain)


def epsilon_lower(guesses: Guesses, *, delta: float, significance: float) -> float:
    """The ε that the run exceeds with confidence 1 - significance, whatever the mechanism is."""
    check_delta(delta)
    check_significance(significance)
    return _largest(lambda epsilon: p_value(guesses, epsilon, delta) <= significance, _MOST_EPSILON)


def mu_refuted(guesses: Guesses, mu: float, significance: float) -> bool:
    """Whether a μ-GDP run would allow this many right guesses with a probability of at most `significance`.

    Algorithm 3 of Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run", 2024
    (arXiv:2410.22235), for two worlds and the Gaussian trade-off function. The inverse of its blow-up function is
    x ↦ Φ(Φ⁻¹(x) - μ).
    """
    m, made, right = guesses.canaries, guesses.made, guesses.right
    r, h = significance * right / m, significance * (made - right) / m
    ndtr, ndtri = special.ndtr, special.ndtri
    for i in range(right - 1, -1, -1):
        raised = float(ndtr(ndtri(r) - mu))
        if raised <= h:  # neither moves again
            break
        r = min(1.0, r + i / (made - i) * (raised - h))
        h = raised
    return r + h > made / m


def mu_lower(guesses: Guesses, *, significance: float) -> float:
    """The μ that the run exceeds with confidence 1 - significance, if its trade-off function is Gaussian."""
    check_significance(significance)
    return _largest(lambda mu: mu_refuted(guesses, mu, significance), _MOST_MU)


def most_guesses(epsilon: float, delta: float, canaries: int, lower: Callable[[Guesses], float]) -> int:
    """The number of guesses, half of them "included", for which `lower` is expected to be largest.

    It is computed for Gaussian noise of this (ε, δ) and independent canaries before anything is run, so no correction
    is needed. A poor guess of ε makes the bound weaker, never wrong.
    """
    mu = gdp_mu(epsilon, delta)
    if not 0 < mu < math.inf:
        return canaries - canaries % 2
    sizes = sorted({2 * max(1, int(canaries * 2.0 ** (-k / 2)) // 2) for k in range(16)})
    fitting = [s for s in sizes if s <= canaries]
    # where none is expected to show anything, most guesses show most of what should not be there
    return max(fitting, key=lambda s: (lower(expected(mu, canaries, s)), s), default=canaries)


def expected(mu: float, canaries: int, made: int) -> Guesses:
    """The right guesses to expect for scores 0 and μ with noise N(0, 1): the made/2 highest and lowest are guessed."""
    if not 0 < made <= canaries:
        raise ConfigError("guesses", made, f"a number from 1 to {canaries}")
    share = made / canaries  # of all scores, half of this beyond t on either side
    low, high = -40.0, 40.0 + mu
    for _ in range(100):
        t = (low + high) / 2
        if special.ndtr(-t) + special.ndtr(mu - t) > share:
            low = t
        else:
            high = t
    right = special.ndtr(mu - high) / (special.ndtr(-high) + special.ndtr(mu - high))
    return Guesses(canaries=canaries, made=made, right=int(made * right))


def epsilon_lower_gaussian(guesses: Guesses, *, delta: float, significance: float) -> float:
    """`mu_lower` as an ε at δ."""
    return epsilon_of_mu(mu_lower(guesses, significance=significance), delta)


def _largest(refuted: Callable[[float], bool], most: float) -> float:
    """A value below which everything is refuted, at most `most`; 0 if nothing is refuted."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 0.25
    while refuted(high):
        low, high = high, 2 * high
        if low >= most:
            return most
    while high - low > _CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
