"""The audit of one step: many releases by the real chain, with a canary and without.

Two data sets that differ in one record go through the chain's own clipping; its own mechanism releases both sums many
times. A pilot set of releases finds the canary and the linear test that separate the two best; fresh releases count its
errors. Whatever the pilot suggested, the bounds are valid: they rest on releases that the choice did not see.

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
from assay.audit.specimen import Specimen, flat, releases_of
from assay.mechanisms.types import Bounded
from assay.methods.chain import Chain
from assay.randomness.streams import Blocks, OsSeeded, Randomness

_LARGE = 1000.0  # gradients of canaries over the clipping bound: every rule clips them
BARE = 1e-4  # noise below this part of the canary's effect is rounding, not noise
_MOST_RELEASES, _LEAST_RELEASES = 60_000, 4_000
_PILOT = 2_000
BARE_RELEASES = 1_000  # to see that a direction is without noise, or noisy after all


@dataclass(frozen=True, kw_only=True)
class StepAudit:
    """What the releases of one step show.

    `mu` bounds the step's μ from below if its noise is Gaussian; `epsilon` is that at δ; `epsilon_any` holds whatever the
    noise is. `sensitivity` is how far the canary moved the clipped sum.
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
    """Two neighbouring data sets as clipped sums, and as the vectors that the noise is added to."""

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
    """Audit one step of this chain; `releases` of each data set are counted (as many as the noise asks for by default).

    Canaries: a single coordinate of each layer; all layers saturated at once; the direction with the least noise, found
    from pilot releases. With micro-batches the canary turns the clipped average of its micro-batch around.
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
    # a direction may be bare for one data set and noisy for the other
    std = max(math.sqrt(max(0.0, float(test @ covariance @ test))), BARE * (centre[1] - centre[0]))
    mu = bounds.mu_lower(errors_of(scores, (centre[0] + centre[1]) / 2), significance=significance)
    tail = centre[0] + std * tail_threshold((centre[1] - centre[0]) / std, fresh, delta, significance)
    return StepAudit(
        mu=mu,
        epsilon=bounds.epsilon_of_mu(mu, delta),
        epsilon_any=bounds.epsilon_lower(errors_of(scores, tail), delta=delta, significance=significance),
        delta=delta,
        confidence=confidence,
        canary=case.name,
        sensitivity=moved,
        releases=2 * fresh,
    )


def no_privacy(delta: float, confidence: float, canary: str, moved: float, fresh: int) -> StepAudit:
    """What is said where nothing covers the canary."""
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
    """Releases one after another, none with the randomness of another."""

    def __init__(self, chain: Chain, randomness: Randomness) -> None:
        self._chain, self._streams, self._next = chain, Blocks(randomness, "audit"), 0

    def draw(self, total: dict[str, Tensor], n: int) -> Tensor:
        first, self._next = self._next, self._next + n
        return releases_of(self._chain, total, [self._streams.at(i) for i in range(first, first + n)])


def _case(chain: Chain, specimen: Specimen, name: str, direction: Tensor, scale: float = _LARGE) -> _Case:
    """A companion in the canary's micro-batch, which the canary outweighs, and a bystander elsewhere."""
    bound = chain.clip.l2 if math.isfinite(chain.clip.l2) else 1.0
    unit = scale * bound * direction / direction.norm()
    bystander = scale * bound * torch.linspace(-1.0, 1.0, specimen.size)
    records = torch.stack([bystander, unit, -3 * unit]).to(torch.float32)
    slots = torch.tensor([0, 1, 1])
    cut = slots if chain.micro > 1 else None
    without = specimen.total(chain, records[:2], None if cut is None else cut[:2])
    with_canary = specimen.total(chain, records, cut)
    return _Case(name, without, with_canary, (_encoded(chain, without), _encoded(chain, with_canary)))


def _encoded(chain: Chain, total: dict[str, Tensor]) -> Tensor:
    grads = Bounded({name: value.clone() for name, value in total.items()}, chain.l2)
    for encode in chain.before:
        grads = encode(grads)
    return flat(grads.total).double()


def _plain(chain: Chain, specimen: Specimen) -> Iterator[_Case]:
    """Canaries that need no knowledge of the noise."""
    yield _case(chain, specimen, "all layers at once", torch.ones(specimen.size))
    for name, part in zip(specimen.names, specimen.slices(), strict=True):
        for place, j in (("first", part.start), ("last", part.stop - 1)):
            dirac = torch.zeros(specimen.size)
            dirac[j] = 1.0
            yield _case(chain, specimen, f"the {place} coordinate of {name}", dirac)


def _worst(chain: Chain, specimen: Specimen, covariance: Tensor) -> Iterator[_Case]:
    """Canaries along the direction with the least noise: over all layers, and in each layer of its own."""
    vectors = torch.linalg.eigh(covariance).eigenvectors
    yield _case(chain, specimen, "the direction with the least noise", vectors[:, 0].float())
    each = torch.zeros(specimen.size)
    for part in specimen.slices():
        each[part] = torch.linalg.eigh(covariance[part, part]).eigenvectors[:, 0].float()
    yield _case(chain, specimen, "the direction with the least noise in each layer", each)


def _unbounded(chain: Chain, specimen: Specimen) -> bool:
    """Whether a larger gradient moves the sum further, without end."""
    for j in (part.stop - 1 for part in specimen.slices()):
        dirac = torch.zeros(specimen.size)
        dirac[j] = 1.0
        small, large = (float(_case(chain, specimen, "", dirac, s).moved.norm()) for s in (_LARGE, 1000 * _LARGE))
        if large > 100 * small:
            return True
    return False


def discriminant(moved: Tensor, covariance: Tensor) -> tuple[Tensor, float]:
    """The linear test that separates best two worlds that lie `moved` apart, and the μ that the pilot says it will show.

    Fisher's discriminant Σ⁻¹Δ where it promises more than Δ itself; its Σ is an estimate, and the plain one is not. ∞ where
    some direction carries no noise.
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

    Both rates p = Φ(-μ/2) are known to √(p(1-p)/n), that is √(p(1-p)/n)/φ(μ/2) in units of the noise; their bounds lie
    1.96 of these away on either side, and scatter by √2 of them.
    """
    p, density = float(special.ndtr(-mu / 2)), math.exp(-(mu**2) / 8) / math.sqrt(2 * math.pi)
    if mu == 0 or density == 0:
        return _MOST_RELEASES
    needed = ((2 * 1.96 + 1.3 * math.sqrt(2)) * math.sqrt(p * (1 - p)) / (density * 0.05 * mu)) ** 2
    return round(min(_MOST_RELEASES, max(_LEAST_RELEASES, needed)))


def errors_of(scores: list[np.typing.NDArray[np.float64]], threshold: float) -> Errors:
    """Of saying "with the canary" at or above the threshold, scores without it first."""
    without, with_canary = scores
    return Errors(
        false_positives=int((without >= threshold).sum()),
        excluded=len(without),
        false_negatives=int((with_canary < threshold).sum()),
        included=len(with_canary),
    )


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
