"""Bounds on the ε of DPSUR's accepted updates: `python experiments/dpsur/bound.py`.

DPSUR (Fu et al. 2023, arXiv:2311.14056, Algorithm 2) draws a batch, takes a DP-SGD step, and accepts the new model if a
noisy, clipped difference of losses on a second batch is below β·C_v. Otherwise it draws again. Theorem 5.6 charges each
accepted update as one subsampled Gaussian of multiplier σ_t and one of σ_v, and rejected ones nothing.

The pair of data sets here differs in one record x. All gradients are 0, except x's: it has norm C_t. Let u be the
coordinate of the noisy sum in that direction, in units of C_t. An update is accepted with a probability between
low = Φ((β - 1)/(2σ_v)) and high = Φ((β + 1)/(2σ_v)), depending on the loss difference at the new model. Losses may be
any functions of the model. The other records' losses fall (high) where u is above a threshold and rise (low) elsewhere.
A validation batch with x in it may have another threshold, because x's loss is unbounded. An accepted u has the density

    without x:  φ(u/σ_t)/σ_t · a₀(u)                                             over its integral,
    with x:     [(1 - q)φ(u/σ_t) + qφ((u - 1)/σ_t)]/σ_t · [(1 - q_v)a₀(u) + q_v a₁(u)]  over its integral.

One update suffices for a counterexample: the losses above are functions of the model, flat at the model before. For
many updates we let the losses differ from update to update, as theorems of composition do.

Acceptance makes it more likely that x was in the training batch: the amplification of the rate q does not survive it.
Counts of u in fine bins are post-processing, so ε of the binned densities is at most that of u. The losses are composed
numerically with all rounding downwards (dp_accounting, optimistic estimates). So "ε at least" is a lower bound on the
ε of the accepted updates, at δ = 1e-5. It is a worst case over records and losses, as ε is. It is not an attack on a
model that somebody trained.

"ε at most" is an upper bound on the same, however often it redraws. A trial is accepted with probability low or more,
whatever the records and the model are. So T updates need more than N trials with probability at most
P(Bin(N, low) < T), which is δ/10 here. What N trials show is the composition of N pairs of subsampled Gaussians, each
as adaptive as it likes. Accepted updates are post-processing of that. Hence the ε of N trials at 0.9 δ holds at δ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from scipy.special import binom, logsumexp
from scipy.stats import binom as binomial
from scipy.stats import norm

from assay.accounting.epsilon import Adjacency, epsilon
from assay.audit.accepted import accepted, at_least

DELTA = 1e-5
ORDERS = range(2, 65)
Density = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """Settings of the authors' public code (github.com/JeffffffFu/DPSUR, README); σ_v by Table 1 of the paper."""

    data: str
    records: int
    batch: int
    sigma: float
    validation: int
    sigma_validation: float
    epsilon: float
    beta: float = -1.0

    @property
    def rates(self) -> tuple[float, float]:
        """q and q_v."""
        return self.batch / self.records, self.validation / self.records

    def divergence_claimed(self, order: int) -> float:
        """R_train + R_valid of one accepted update (Eq. 20 and 25)."""
        pairs = zip(self.rates, (self.sigma, self.sigma_validation), strict=True)
        return sum(_sampled_gaussian(order, rate, sigma) for rate, sigma in pairs)

    def claimed(self, updates: int) -> float:
        """ε by Theorem 5.6, with the orders 2 to 64 of Section 2.3."""
        return min(
            updates * self.divergence_claimed(order)
            + math.log((order - 1) / order)
            - (math.log(DELTA) + math.log(order)) / (order - 1)
            for order in ORDERS
        )

    def updates(self) -> int:
        """The most accepted updates for which the claimed ε stays within the target."""
        least, most = 1, 2
        while self.claimed(most) <= self.epsilon:
            least, most = most, 2 * most
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if self.claimed(middle) <= self.epsilon else (least, middle)
        return least

    @property
    def acceptance(self) -> tuple[float, float]:
        """The least and the largest probability that a trial is accepted."""
        low, high = (float(norm.cdf((self.beta + side) / (2 * self.sigma_validation))) for side in (-1, 1))
        return low, high

    def trials(self, updates: int) -> int:
        """N: more trials are needed with probability at most δ/10."""
        low, _ = self.acceptance
        least, most = updates, math.ceil(2 * updates / low) + 1000
        while most - least > 1:
            middle = (least + most) // 2
            enough = binomial.cdf(updates - 1, middle, low) <= DELTA / 10
            least, most = (least, middle) if enough else (middle, most)
        return most

    def epsilon_at_most(self, updates: int) -> float:
        """An upper bound on the ε of this many accepted updates."""
        pairs = zip(self.rates, (self.sigma, self.sigma_validation), strict=True)
        steps = [
            SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), self.trials(updates))
            for rate, sigma in pairs
        ]
        return epsilon(ComposedDpEvent(steps), 0.9 * DELTA, Adjacency.ADD_OR_REMOVE_ONE)

    def accepted(self, without: float, including: float) -> tuple[Density, Density]:
        """The densities of an accepted u with and without x, in bins.

        Args:
            without: the threshold of u, in σ_t, where validation batches without x are in favour.
            including: that of validation batches with x.
        """
        sides = accepted(self.sigma, self.rates, self.acceptance, (without, including))
        return sides[0][1], sides[1][1]


@functools.lru_cache(maxsize=1024)
def _sampled_gaussian(order: int, rate: float, sigma: float) -> float:
    """The Rényi divergence of a subsampled Gaussian (Eq. 24)."""
    k = np.arange(order + 1)
    terms = np.log(binom(order, k)) + (order - k) * math.log(1 - rate) + k * math.log(rate) + (k * k - k) / 2 / sigma**2
    return float(logsumexp(terms)) / (order - 1)


def excess(setting: Setting, present: Density, absent: Density) -> tuple[float, int]:
    """How often the Rényi divergence of one accepted update is the claimed one, at the order where that is most."""
    ratio = np.log(present) - np.log(absent)
    found = []
    for order in ORDERS:
        divergence = np.log(np.sum(present * np.exp((order - 1) * ratio))) / (order - 1)
        found.append((float(divergence / setting.divergence_claimed(order)), order))
    return max(found)


def epsilon_at_least(present: Density, absent: Density, updates: int) -> float:
    """A lower bound on ε for adding or removing x, after this many accepted updates."""
    return at_least(present, absent, updates, DELTA)


SETTINGS: Sequence[Setting] = (
    Setting("MNIST", 60_000, 1024, 2.0, 256, 1.3, 1.0),
    Setting("MNIST", 60_000, 1024, 1.35, 256, 0.9, 3.0),
    Setting("Fashion-MNIST", 60_000, 2048, 4.0, 256, 1.3, 1.0),
    Setting("Fashion-MNIST", 60_000, 2048, 2.15, 256, 0.8, 3.0),
    Setting("CIFAR-10", 50_000, 8192, 11.0, 256, 1.3, 1.0),
    Setting("CIFAR-10", 50_000, 8192, 5.67, 256, 1.1, 3.0),
)
THRESHOLDS = ((1.5, 1.5), (9.0, 0.5))
"""In σ_t. Above 9 no batch without x is ever in favour."""


def main() -> None:
    """Print the table."""
    print(
        "| data | σ_t | σ_v | one update: Rényi divergence over claimed | updates | ε claimed | ε at least |"
        " trials at most | ε at most |"
    )
    print("|" + "---|" * 9)
    for setting in SETTINGS:
        updates = setting.updates()
        pairs = [setting.accepted(*limits) for limits in THRESHOLDS]
        times, order = max(excess(setting, *pair) for pair in pairs)
        least = max(epsilon_at_least(*pair, updates) for pair in pairs)
        print(
            f"| {setting.data} | {setting.sigma:g} | {setting.sigma_validation:g} | {times:.3f} at order {order} | "
            f"{updates} | {setting.claimed(updates):.4f} | {least:.4f} | {setting.trials(updates)} | "
            f"{setting.epsilon_at_most(updates):.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
