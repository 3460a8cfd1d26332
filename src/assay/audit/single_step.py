"""The audit of one step: many releases by the real chain, with a canary and without.

Two data sets that differ in one record go through the chain's clipping, and its mechanism releases both sums many
times. A pilot set of releases finds the canary and the linear test that separate the two best; fresh releases count the
test's errors. Whatever the pilot suggested, the bounds are valid: they rest on releases that the choice did not see.

Where some direction carries no noise and the canary moves it, no finite ε holds, and no counting is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special
from torch import Tensor

from assay.audit import bounds
from assay.audit.bounds import Errors
from assay.audit.scores import errors_at
from assay.audit.specimen import Specimen, flat, releases_of
from assay.mechanisms.types import Bounded
from assay.methods.chain import Chain
from assay.randomness.streams import Blocks, OsSeeded, Randomness

_LARGE = 1000.0  # gradients of canaries over the clipping bound: every rule clips them
BARE = 1e-4  # noise below this fraction of the canary's effect is rounding, not noise
_MOST_RELEASES, _LEAST_RELEASES = 60_000, 4_000
_PILOT = 2_000
BARE_RELEASES = 1_000  # enough to see whether a direction is without noise


@dataclass(frozen=True, kw_only=True)
class StepAudit:
    """What the releases of one step show.

    Attributes:
        mu: A lower bound on the step's μ if its noise is Gaussian.
        epsilon: `mu` as an ε at `delta`.
        epsilon_any: A lower bound on ε whatever the noise is.
        delta: δ.
        confidence: The probability that each bound holds.
        canary: Which canary showed most.
        sensitivity: How far the canary moved the clipped sum.
        releases: How many releases were counted.
    """

    mu: float
    epsilon: float
    epsilon_any: float
    delta: float
    confidence: float
    canary: str
    sensitivity: float
    releases: int


@dataclass(frozen=True)
class _Case:
    """Two neighbouring data sets as clipped sums, and as the vectors to which the noise is added."""

    name: str
    without: dict[str, Tensor]
    with_canary: dict[str, Tensor]
    centres: tuple[Tensor, Tensor]

    @property
    def moved(self) -> Tensor:
        return self.centres[1] - self.centres[0]


def audit_step(
    chain: Chain,
    specimen: Specimen,
    *,
    delta: float,
    confidence: float = 0.95,
    releases: int | None = None,
    randomness: Randomness | None = None,
) -> StepAudit:
    """Audit one step of this chain.

    Canaries are a single coordinate of each layer, all layers saturated at once, and the direction with the least noise
    in pilot releases. With micro-batches the canary reverses the clipped average of its micro-batch.

    Args:
        chain: The chain under audit.
        specimen: Layers whose records have any gradient.
        delta: δ.
        confidence: The probability that each bound holds.
        releases: Releases of each data set to count; None for enough.
        randomness: Where random numbers come from.

    Returns:
        The lower bounds.

    Raises:
        ConfigError: There are too few releases, or `confidence` is not a probability.
    """
    significance = 1 - confidence
    bounds.check_significance(significance)
    bounds.check_releases(releases)
    noise = _Noise(chain, randomness or OsSeeded())
    cases = list(_plain(chain, specimen))
    pilot = noise.draw(cases[0].without, max(_PILOT, 30 * specimen.size))
    covariance = torch.cov(pilot.T.double())
    cases += _worst(chain, specimen, covariance)
    tests = [(case, *discriminant(case.moved, covariance)) for case in cases]
    case, test, expected = max(tests, key=lambda found: found[2])
    if expected < math.inf and _unbounded(chain, specimen):
        return no_privacy(delta, confidence, "a gradient of any size: nothing bounds it", math.inf, 0)
    moved = float(case.moved.norm())
    enough = BARE_RELEASES if expected == math.inf else _enough(expected)
    fresh = enough if releases is None else releases
    scores = [(noise.draw(total, fresh).double() @ test).numpy() for total in (case.without, case.with_canary)]
    centre = [float(vector @ test) for vector in case.centres]
    if max(float(np.ptp(s)) for s in scores) < 2 * BARE * float(np.abs(np.mean(scores[1]) - np.mean(scores[0]))):
        return no_privacy(delta, confidence, f"{case.name}, in a direction without noise", moved, fresh)
    # a direction may be without noise for one data set and noisy for the other
    std = max(math.sqrt(max(0.0, float(test @ covariance @ test))), BARE * (centre[1] - centre[0]))
    middle = (centre[0] + centre[1]) / 2
    mu = bounds.mu_lower(errors_at(scores[1], scores[0], middle), significance=significance)
    tail = centre[0] + std * tail_threshold((centre[1] - centre[0]) / std, fresh, delta, significance)
    return StepAudit(
        mu=mu,
        epsilon=bounds.epsilon_of_mu(mu, delta),
        epsilon_any=bounds.epsilon_lower(errors_at(scores[1], scores[0], tail), delta=delta, significance=significance),
        delta=delta,
        confidence=confidence,
        canary=case.name,
        sensitivity=moved,
        releases=2 * fresh,
    )


def no_privacy(delta: float, confidence: float, canary: str, moved: float, fresh: int) -> StepAudit:
    """The result where nothing hides the canary."""
    return StepAudit(
        mu=math.inf,
        epsilon=math.inf,
        epsilon_any=math.inf,
        delta=delta,
        confidence=confidence,
        canary=canary,
        sensitivity=moved,
        releases=2 * fresh,
    )


class _Noise:
    """Releases one after another, each with fresh randomness."""

    def __init__(self, chain: Chain, randomness: Randomness) -> None:
        self._chain, self._streams, self._next = chain, Blocks(randomness, "audit"), 0

    def draw(self, total: dict[str, Tensor], n: int) -> Tensor:
        first, self._next = self._next, self._next + n
        return releases_of(self._chain, total, [self._streams.at(i) for i in range(first, first + n)])


def _case(
    chain: Chain, specimen: Specimen, name: str, direction: Tensor, scale: float = _LARGE, *, alone: bool = False
) -> _Case:
    """Two data sets: a bystander unless alone, a companion in the canary's micro-batch, in one of them the canary."""
    bound = chain.clip.l2 if math.isfinite(chain.clip.l2) else _of_sum(chain)
    unit = scale * bound * direction / direction.norm()
    bystander = (0.0 if alone else scale * bound) * torch.linspace(-1.0, 1.0, specimen.size)
    records = torch.stack([bystander, unit, -3 * unit]).to(torch.float32)
    slots = torch.tensor([0, 1, 1])
    cut = slots if chain.micro > 1 else None
    without = specimen.total(chain, records[:2], None if cut is None else cut[:2])
    with_canary = specimen.total(chain, records, cut)
    return _Case(name, without, with_canary, (_encoded(chain, without), _encoded(chain, with_canary)))


def _of_sum(chain: Chain) -> float:
    """What encoders of the sum leave of any record, at most; 1 if nothing bounds it."""
    grads = Bounded({}, chain.l2)
    for encode in chain.before:
        grads = encode(grads)
    return grads.l2 if math.isfinite(grads.l2) else 1.0


def _encoded(chain: Chain, total: dict[str, Tensor]) -> Tensor:
    grads = Bounded({name: value.clone() for name, value in total.items()}, chain.l2)
    for encode in chain.before:
        grads = encode(grads)
    return flat(grads.total).double()


def _plain(chain: Chain, specimen: Specimen) -> Iterator[_Case]:
    """Canaries that need no knowledge of the noise."""
    yield _case(chain, specimen, "all layers at once", torch.ones(specimen.size))
    if chain.before:  # where a sum is clipped as a whole, a bystander in it holds the canary back
        yield _case(chain, specimen, "all layers at once, alone", torch.ones(specimen.size), alone=True)
    for name, layer in zip(specimen.names, specimen.slices(), strict=True):
        for place, j in (("first", layer.start), ("last", layer.stop - 1)):
            dirac = torch.zeros(specimen.size)
            dirac[j] = 1.0
            yield _case(chain, specimen, f"the {place} coordinate of {name}", dirac)


def _worst(chain: Chain, specimen: Specimen, covariance: Tensor) -> Iterator[_Case]:
    """Canaries along the direction with the least noise: over all layers, and in each layer separately."""
    vectors = torch.linalg.eigh(covariance).eigenvectors
    yield _case(chain, specimen, "the direction with the least noise", vectors[:, 0].float())
    each = torch.zeros(specimen.size)
    for layer in specimen.slices():
        each[layer] = torch.linalg.eigh(covariance[layer, layer]).eigenvectors[:, 0].float()
    yield _case(chain, specimen, "the direction with the least noise in each layer", each)


def _unbounded(chain: Chain, specimen: Specimen) -> bool:
    """Whether a larger gradient moves the sum further, without limit."""
    for j in (layer.stop - 1 for layer in specimen.slices()):
        dirac = torch.zeros(specimen.size)
        dirac[j] = 1.0
        small, large = (float(_case(chain, specimen, "", dirac, s).moved.norm()) for s in (_LARGE, 1000 * _LARGE))
        if large > 100 * small:
            return True
    return False


def discriminant(moved: Tensor, covariance: Tensor) -> tuple[Tensor, float]:
    """The linear test that best separates two worlds that are `moved` apart, and the μ that the pilot promises.

    The test is Fisher's discriminant Σ⁻¹Δ where it promises clearly more than Δ itself, because Σ is only an estimate.
    μ is ∞ where some direction carries no noise.
    """
    scale = float(moved.norm())
    if scale == 0:
        return torch.ones_like(moved), 0.0
    values, vectors = torch.linalg.eigh(covariance)
    parts = vectors.T @ moved
    bare = values.clamp_min(0).sqrt() < BARE * scale
    if float(parts[bare].norm()) > 0.01 * scale:
        return vectors[:, bare] @ parts[bare], math.inf
    plain = scale**2 / math.sqrt(float(moved @ covariance @ moved))
    shaped = vectors[:, ~bare] @ (parts[~bare] / values[~bare])
    best = math.sqrt(float(shaped @ moved))
    return (shaped, best) if best > 1.1 * plain else (moved, plain)


def _enough(mu: float) -> int:
    """Releases of each data set for a μ within a twentieth of the true one, nine times out of ten.

    Both rates p = Φ(-μ/2) are known to √(p(1-p)/n), that is √(p(1-p)/n)/φ(μ/2) in units of the noise. Their bounds are
    1.96 of these away on either side, and scatter by √2 of them.
    """
    p, density = float(special.ndtr(-mu / 2)), math.exp(-(mu**2) / 8) / math.sqrt(2 * math.pi)
    if mu == 0 or density == 0:
        return _MOST_RELEASES
    needed = ((2 * 1.96 + 1.3 * math.sqrt(2)) * math.sqrt(p * (1 - p)) / (density * 0.05 * mu)) ** 2
    return round(min(_MOST_RELEASES, max(_LEAST_RELEASES, needed)))


def tail_threshold(mu: float, n: int, delta: float, significance: float) -> float:
    """The threshold, in standard deviations, whose expected errors give the best bound without assumptions."""

    def promised(t: float) -> float:
        errors = Errors(
            false_positives=round(n * float(special.ndtr(-t))),
            excluded=n,
            false_negatives=round(n * float(special.ndtr(t - mu))),
            included=n,
        )
        return bounds.epsilon_lower(errors, delta=delta, significance=significance)

    return float(max(np.linspace(-4.0, mu + 4.0, 65), key=promised))
