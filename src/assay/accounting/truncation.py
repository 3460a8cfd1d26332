"""Truncated Poisson sampling: batches that never exceed a public cap.

Every record draws a uniform number. Those below q form the batch; if they are more than `cap`, the `cap` smallest
numbers stay. Gaussian noise is added to the sum of the batch, to which a record contributes at most C.

**Claim.** Let τ = P(Binomial(N, q) ≥ cap), where N is the public number of records. Where a record is added or removed,

    δ(ε) ≤ (1 - τ) δ_1(ε) + τ δ_2(ε)   in each direction,                                                          (1)

with δ_1 the profile of Poisson sampling of rate q with noise σC, and δ_2 the same with noise σC/2.

**Proof.** Let x be the record that one of the data sets has in addition, and fix the numbers of all other records.

1. If fewer than `cap` of them are below q, nothing is cut with or without x. With probability q the sum has x in
   addition: that is the pair of δ_1.
2. Otherwise the batch of the others has `cap` records. If x is drawn and its number is small enough, it takes the place
   of one record y: the sum moves by x - y, at most 2C. The probability r of that is at most q. That is Poisson sampling
   of rate r with a shift of 2C. A pair of rate r < q is a mixture of the pair of rate q and of two equal
   distributions, so its profile is no larger (joint convexity), and δ_2 bounds it.
3. Which case holds depends on the other records only, at most N of them. Case 2 has probability at most τ, because
   Binomial(n, q) grows with n. So what is released is a mixture of such pairs with the same weights on both sides.
   Profiles are jointly convex, and δ_2 ≥ δ_1, which gives (1).
4. The right side of (1) is the profile of a pair, in which the case is seen too. So (1) is a dominating pair for each
   step, whatever was released before, and such pairs compose (Zhu, Dong and Wang 2022, arXiv:2106.08567). ∎

Where a record x is replaced by x', the same holds with the profiles of `PoissonReplaced`: in case 2 the sums with the
record are x - y and x' - y away from that without it, each at most 2C.

For k records or other noise than Gaussian nothing is claimed. N and q are public constants, as in every plan. Chua et
al., "Scalable DP-SGD: Shuffling vs. Poisson Subsampling", NeurIPS 2024, arXiv:2411.04205, charge τ as an addition to δ,
which (1) improves on: case 2 still has noise. dp_accounting's `TruncatedSubsampledGaussianDpEvent` is the same idea
with a wider pair in case 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from dp_accounting import rdp
from scipy.stats import binom

from assay.accounting.losses import Array, Gaussian, Poisson, PoissonReplaced, Term

_UP = 1 + 1e-9  # as much as rounding may have taken from a probability


def chance_of_truncation(records: int, rate: float, cap: int) -> float:
    """τ: the chance that at least `cap` of the records draw a number below the rate, rounded up in the ninth digit.

    >>> chance_of_truncation(2, 0.5, 2) >= 0.25
    True
    """
    return min(1.0, float(binom.sf(cap - 1, records, rate)) * _UP)


@dataclass(frozen=True, slots=True)
class Truncated(Term):
    """The mixture (1): `usual` where nothing is cut, `cut` with probability `chance`."""

    replaces: ClassVar[bool] = False

    chance: float
    usual: Poisson | PoissonReplaced
    cut: Poisson | PoissonReplaced
    pure = math.inf

    def forward(self, eps: Array) -> Array:
        """(1)."""
        return (1 - self.chance) * self.usual.forward(eps) + self.chance * self.cut.forward(eps)

    def backward(self, eps: Array) -> Array:
        """(1), the other way round."""
        return (1 - self.chance) * self.usual.backward(eps) + self.chance * self.cut.backward(eps)

    def divergences(self, orders: Sequence[float]) -> Array:
        """Moments of the two cases, averaged; ∞ where a record is replaced."""
        parts = [self._rdp(term, orders) for term in (self.usual, self.cut)]
        below = np.asarray(orders, dtype=np.float64) - 1
        with np.errstate(divide="ignore"):
            weights = np.log([1 - self.chance, self.chance])
        found: Array = np.logaddexp(weights[0] + below * parts[0], weights[1] + below * parts[1]) / below
        return found

    @staticmethod
    def _rdp(term: Poisson | PoissonReplaced, orders: Sequence[float]) -> Array:
        from assay.accounting.epsilon import quietly

        event = term.renyi()
        if event is None:
            return np.full(len(orders), math.inf)
        accountant = rdp.RdpAccountant(orders=list(orders))
        with quietly():
            accountant.compose(event)
        # dp_accounting ends its series for fractional orders e^-30 short of their sum
        found: Array = np.maximum(np.asarray(accountant.rdp), 0.0) + 1e-12 / (np.asarray(orders) - 1)
        return found


def truncated(rate: float, multiplier: float, chance: float, *, replaced: bool) -> Truncated:
    """The term of one step.

    Args:
        rate: q.
        multiplier: σ, relative to what one record contributes.
        chance: τ.
        replaced: Whether neighbours replace a record.
    """
    pair: list[Poisson | PoissonReplaced] = [
        PoissonReplaced(rate, sigma) if replaced else Poisson(rate, Gaussian(sigma))
        for sigma in (multiplier, multiplier / 2)
    ]
    return Truncated(chance, pair[0], pair[1])
