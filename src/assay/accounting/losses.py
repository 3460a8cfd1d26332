"""Privacy losses of single releases, which `assay.accounting.composition` composes.

A `Term` is one release described by its privacy profile: δ(ε) = sup_S P(S) - e^ε Q(S) for the two output distributions
P, Q that neighbouring data sets can give. `forward` is the profile of (P, Q), `backward` that of (Q, P), both for ε ≥
0. Together they determine everything, since for ε < 0

    δ_PQ(ε) = 1 - e^ε + e^ε δ_QP(-ε).

References, cited by author and year:
- Balle, Barthe and Gaboardi: "Privacy Amplification by Subsampling: Tight Analyses via Couplings and Divergences",
  NeurIPS 2018, arXiv:1807.01647.
- Balle and Wang: "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal
  Denoising", ICML 2018, arXiv:1805.06530.
- Bun and Steinke: "Concentrated Differential Privacy: Simplifications, Extensions, and Lower Bounds", TCC 2016,
  arXiv:1605.02065.
- Lebeda, Regehr, Kamath and Steinke: "Avoiding Pitfalls for Privacy Accounting of Subsampled Mechanisms under
  Composition", 2024, arXiv:2405.20769.
- Mironov: "Rényi Differential Privacy", IEEE CSF 2017, arXiv:1702.07476.
- Mironov, Talwar and Zhang: "Rényi Differential Privacy of the Sampled Gaussian Mechanism", 2019, arXiv:1908.10530.
- Papernot and Steinke: "Hyperparameter Tuning with Rényi Differential Privacy", ICLR 2022, arXiv:2110.03620.
- Wang, Balle and Kasiviswanathan: "Subsampled Rényi Differential Privacy and Analytical Moments Accountant", AISTATS
  2019, arXiv:1808.00087.
- Zhu, Dong and Wang: "Optimal Accounting of Differential Privacy via Characteristic Function", AISTATS 2022,
  arXiv:2106.08567.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from assay.accounting import subsets

Array = NDArray[np.float64]


class Term(ABC):
    """One release. Hashable, so that results can be cached."""

    __slots__ = ()

    profiled: ClassVar[bool] = True
    """Whether it has a profile; otherwise only its Rényi divergences are known."""
    tight: ClassVar[bool] = False
    """Whether its profile is exact, and not only an upper bound."""
    less_by_renyi: ClassVar[bool] = False
    """Whether composing its `sharper` divergences may give less than composing its profile."""
    replaces: ClassVar[bool] = False
    """Whether dp_accounting knows the event of `renyi` under replace-one adjacency only."""

    @property
    @abstractmethod
    def pure(self) -> float:
        """The largest possible loss: the ε at δ = 0."""

    @abstractmethod
    def forward(self, eps: Array) -> Array:
        """The profile of (P, Q) at ε ≥ 0."""

    @abstractmethod
    def backward(self, eps: Array) -> Array:
        """The profile of (Q, P) at ε ≥ 0."""

    def renyi(self) -> DpEvent | None:
        """The event with the Rényi divergences of the term; None where dp_accounting knows none."""
        return None

    def divergences(self, orders: Sequence[float]) -> Array | None:  # noqa: ARG002
        """Bounds on its Rényi divergences, where it has its own; None where `renyi` gives them."""
        return None

    def sharper(self, orders: Sequence[float]) -> Array | None:  # noqa: ARG002
        """Tighter ones than published accountants have, for the verified ε; what papers claim does not know them."""
        return None


@dataclass(frozen=True, slots=True)
class Gaussian(Term):
    """Gaussian noise of `multiplier` times the shift."""

    tight: ClassVar[bool] = True

    multiplier: float
    pure = math.inf

    def forward(self, eps: Array) -> Array:
        """Balle and Wang 2018, Theorem 8."""
        sigma = self.multiplier
        profile: Array = ndtr(0.5 / sigma - eps * sigma) - np.exp(eps + log_ndtr(-eps * sigma - 0.5 / sigma))
        return np.maximum(profile, 0.0)

    backward = forward

    def renyi(self) -> DpEvent:
        """Mironov 2017."""
        return dp_event.GaussianDpEvent(self.multiplier)


@dataclass(frozen=True, slots=True)
class Laplace(Term):
    """Laplace noise of scale `multiplier` times the shift."""

    tight: ClassVar[bool] = True

    multiplier: float

    @property
    def pure(self) -> float:
        """The shift in units of the scale."""
        return 1 / self.multiplier

    def forward(self, eps: Array) -> Array:
        """1 - e^((ε - pure)/2) up to the largest loss."""
        return -np.expm1(np.minimum(eps - self.pure, 0.0) / 2)

    backward = forward

    def renyi(self) -> DpEvent:
        """Mironov 2017."""
        return dp_event.LaplaceDpEvent(self.multiplier)


class Unprofiled(Term):
    """A release of which only Rényi divergences are known.

    It has no profile. What follows from divergences is an infimum over their orders, which is not the profile of any
    pair, so it must not be put on a grid. Divergences add up, and ε follows from their sum.
    """

    __slots__ = ()

    profiled: ClassVar[bool] = False
    pure = math.inf

    def forward(self, eps: Array) -> Array:
        """Refused."""
        raise NotImplementedError(f"{type(self).__name__} is composed by Rényi divergences")

    backward = forward


@dataclass(frozen=True, slots=True)
class Concentrated(Unprofiled):
    """A release of which only ρ is known: Rényi divergences of at most ρα (Bun and Steinke 2016, Definition 1.1)."""

    rho: float

    def renyi(self) -> DpEvent:
        """ρα at every order α."""
        return dp_event.ZCDpEvent(self.rho)


@dataclass(frozen=True, slots=True)
class Selected(Unprofiled):
    """The best of a Poisson number of repetitions, of which the mean alone is public (Papernot and Steinke 2022)."""

    inner: Terms
    mean: float

    def renyi(self) -> DpEvent | None:
        """Theorem 6."""
        inner = [(term.renyi(), count) for term, count in self.inner]
        if any(event is None for event, _ in inner):
            return None
        whole = dp_event.ComposedDpEvent([dp_event.SelfComposedDpEvent(event, count) for event, count in inner])
        return dp_event.RepeatAndSelectDpEvent(whole, self.mean, math.inf)


@dataclass(frozen=True, slots=True)
class RandomizedResponse(Term):
    """A uniform choice among `buckets` ≥ 2 answers with probability `noise`, otherwise the truth."""

    tight: ClassVar[bool] = True
    replaces: ClassVar[bool] = True

    noise: float
    buckets: int

    @property
    def pure(self) -> float:
        """The logarithm of how much likelier the truth is than another answer."""
        return math.log1p(self.buckets * (1 - self.noise) / self.noise)

    def forward(self, eps: Array) -> Array:
        """P(truth) - e^ε P(another given answer)."""
        truth = self.noise / self.buckets * math.exp(self.pure)
        return -truth * np.expm1(np.minimum(eps - self.pure, 0.0))

    backward = forward

    def renyi(self) -> DpEvent:
        """The same answers."""
        return dp_event.RandomizedResponseDpEvent(self.noise, self.buckets)


@dataclass(frozen=True, slots=True)
class Poisson(Term):
    """The noise `base` on a Poisson sample, where a record is added or removed (Zhu, Dong and Wang 2022)."""

    tight: ClassVar[bool] = True

    rate: float
    base: Gaussian | Laplace

    @property
    def pure(self) -> float:
        """The largest loss of `forward`; those of `backward` are smaller."""
        pure = self.base.pure
        return math.log1p(self.rate * math.expm1(pure)) if pure < 700 else pure

    def forward(self, eps: Array) -> Array:
        """(1-q)Q + qP - e^ε Q = q (P - e^ε' Q) with e^ε' = 1 + (e^ε - 1)/q."""
        return self.rate * self.base.forward(_amplified(eps, self.rate))

    def backward(self, eps: Array) -> Array:
        """Q - e^ε ((1-q)Q + qP) = r (Q - e^ε' P) with r = 1 - (1-q)e^ε and e^ε' = q e^ε/r, if r > 0."""
        q = self.rate
        eps = np.minimum(eps, -math.log1p(-q))
        r = np.maximum(q - (1 - q) * np.expm1(eps), 0.0)
        with np.errstate(divide="ignore"):
            inner = np.where(r > 0, eps - np.log(r / q), 0.0)
        return r * self.base.forward(inner)

    def renyi(self) -> DpEvent | None:
        """Mironov, Talwar and Zhang 2019, for Gaussian noise."""
        if not isinstance(self.base, Gaussian):
            return None
        return dp_event.PoissonSampledDpEvent(self.rate, dp_event.GaussianDpEvent(self.base.multiplier))


@dataclass(frozen=True, slots=True)
class PoissonReplaced(Term):
    """Gaussian noise on a Poisson sample, where a record is replaced.

    The pair is qN(1, σ²) + (1-q)N(0, σ²) against qN(-1, σ²) + (1-q)N(0, σ²), as for dp_accounting's `REPLACE_ONE`. Here
    σ = `multiplier` is relative to what one record contributes: the old and the new one lie on either side of 0.
    """

    tight: ClassVar[bool] = True

    rate: float
    multiplier: float
    pure = math.inf

    def forward(self, eps: Array) -> Array:
        """The likelihood ratio grows with x. It is e^ε where q sinh(x/σ² - ε/2) = (1-q) e^(1/2σ²) sinh(ε/2)."""
        q, sigma = self.rate, self.multiplier
        with np.errstate(divide="ignore"):
            log_sinh = eps / 2 + np.log(-np.expm1(-eps)) - math.log(2)
        log_ratio = log_sinh + 0.5 / sigma**2 + math.log1p(-q) - math.log(q)
        asinh = np.logaddexp(log_ratio, np.logaddexp(0.0, 2 * log_ratio) / 2)
        x = sigma**2 * (asinh + eps / 2)
        shifted: Array = ndtr((1 - x) / sigma) - np.exp(eps + log_ndtr(-(1 + x) / sigma))
        unshifted: Array = -np.expm1(-eps) * np.exp(eps + log_ndtr(-x / sigma))  # (e^ε - 1) Φ(-x/σ)
        return np.maximum(q * shifted - (1 - q) * unshifted, 0.0)

    backward = forward


@dataclass(frozen=True, slots=True)
class WithoutReplacement(Term):
    """The noise `base` on `size` of `source` records drawn without replacement, where a record is replaced.

    `base` is the release where a record of the sample is replaced, so its shift is 2C. Replacement is symmetric, so
    `forward` bounds both directions, which by the identity above gives the bound for ε < 0 too. It is convex in e^ε,
    hence the profile of a dominating pair, and such pairs compose (Zhu, Dong and Wang 2022). Composing ((1-q)Q + qP, Q)
    would be wrong: that is one direction only (Lebeda et al. 2024). Gradients that are chosen step by step exceed it:
    `benchmarks.oracles.adaptive` computes an example.

    No profile of a single step is tighter, but what is composed from it is not tight. Divergences are often less
    (`assay.accounting.subsets`).
    """

    less_by_renyi: ClassVar[bool] = True
    replaces: ClassVar[bool] = True

    size: int
    source: int
    base: Gaussian
    pure = math.inf

    def forward(self, eps: Array) -> Array:
        """At most q δ_base(ε') with e^ε' = 1 + (e^ε - 1)/q (Balle, Barthe and Gaboardi 2018, Theorem 9)."""
        rate = self.size / self.source
        return rate * self.base.forward(_amplified(eps, rate))

    backward = forward

    def sharper(self, orders: Sequence[float]) -> Array:
        """The claim of `assay.accounting.subsets`."""
        return subsets.divergences(self.size / self.source, self.base.multiplier, orders)

    def renyi(self) -> DpEvent:
        """Wang, Balle and Kasiviswanathan 2019."""
        noise = dp_event.GaussianDpEvent(self.base.multiplier)
        return dp_event.SampledWithoutReplacementDpEvent(self.source, self.size, noise)


def _amplified(eps: Array, rate: float) -> Array:
    """log(1 + (e^ε - 1)/q), without overflow at large ε or cancellation at small ε."""
    amplified: Array = eps + np.log1p(-(1 / rate - 1) * np.expm1(-eps))
    return amplified


Terms = tuple[tuple[Term, int], ...]  # each term with the number of times it happens
