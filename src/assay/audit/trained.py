"""What a whole run that was trained again shows: the scores of its canaries, and every bound that they allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.audit import one_run
from assay.audit.bounds import epsilon_of_mu
from assay.audit.independent import right_lower, shift_lower
from assay.audit.result import Audit
from assay.audit.scores import GAUSSIAN, Assume, from_scores
from assay.errors import ConfigError
from assay.methods.plan import Plan

if TYPE_CHECKING:
    from assay.federated.plan import FederatedPlan


@dataclass(frozen=True, kw_only=True)
class TrainingAudit:
    """Scores of the canaries, and the bounds that follow.

    Each bound has a confidence of its own. All of them hold together with `confidence`, so whoever takes the largest
    may state that one: `best` does.

    Attributes:
        plain: The bound without assumptions.
        gaussian: The bound for a Gaussian trade-off function.
        included: The scores of included canaries.
        excluded: The scores of excluded canaries.
        more: Bounds that assume more, if there are any.
    """

    plain: Audit
    gaussian: Audit
    included: NDArray[np.float64]
    excluded: NDArray[np.float64]
    more: tuple[Audit, ...] = ()

    @property
    def bounds(self) -> tuple[Audit, ...]:
        """All bounds, that without assumptions first."""
        return (self.plain, self.gaussian, *self.more)

    @property
    def confidence(self) -> float:
        """The probability that all bounds hold together: their chances of being wrong add up."""
        return max(0.0, round(1 - sum(1 - bound.confidence for bound in self.bounds), 12))

    @property
    def best(self) -> Audit:
        """The largest bound, with the confidence that covers the choice."""
        return self.together(max(self.bounds, key=lambda bound: bound.epsilon))

    def together(self, bound: Audit) -> Audit:
        """One of the bounds with the confidence of all."""
        how = f"one of {len(self.bounds)} bounds with {100 * bound.confidence:g} % confidence each"
        return replace(bound, confidence=self.confidence, how=f"{bound.how}; {how}")


def fair_coins(canaries: int, seed: int) -> Tensor:
    """Whether each canary is included."""
    if canaries < 1:
        raise ConfigError("canaries", canaries, "a whole number, 1 or above")
    return torch.rand(canaries, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1)) < 0.5


@dataclass(frozen=True)
class Apart:
    """For canaries whose scores are independent of each other."""

    family: Callable[[float], float] | None
    """From a share of right guesses to the least ε of the run (`own_family`); None where that is not known."""


def bound_all(
    scores: NDArray[np.float64],
    coins: Tensor,
    plan: Plan | FederatedPlan,
    confidence: float,
    *,
    verified: float | None = None,
    apart: Apart | None = None,
) -> TrainingAudit:
    """Every one-run bound that the scores allow. All of them hold together with this confidence.

    The numbers of guesses follow from `verified` (None: the plan's ε), not from the scores.
    """
    member = coins.numpy()
    included, excluded = scores[member], scores[~member]
    count = 2 if apart is None else 3 if apart.family is None else 4
    alpha = (1 - confidence) / count
    spent = plan.epsilon() if verified is None else verified

    def bound(assume: Assume, lower: Callable[..., float]) -> Audit:
        fixed = partial(lower, delta=plan.delta, significance=alpha)
        made = one_run.most_guesses(spent, plan.delta, len(scores), fixed)
        return from_scores(included, excluded, delta=plan.delta, confidence=1 - alpha, assume=assume, guesses=made)

    plain, gaussian = bound("nothing", one_run.epsilon_lower), bound("gaussian", one_run.epsilon_lower_gaussian)
    more = () if apart is None else _bounds_apart(included, excluded, plan.delta, alpha, apart.family)
    return TrainingAudit(plain=plain, gaussian=gaussian, included=included, excluded=excluded, more=more)


def _bounds_apart(
    included: NDArray[np.float64],
    excluded: NDArray[np.float64],
    delta: float,
    alpha: float,
    family: Callable[[float], float] | None,
) -> tuple[Audit, ...]:
    """The bounds of `assay.audit.independent`."""
    total = len(included) + len(excluded)
    canaries = f"{total} canaries ({len(included)} included)"
    mu = shift_lower(included, excluded, significance=alpha)
    sums = Audit(
        epsilon=epsilon_of_mu(mu, delta),
        delta=delta,
        confidence=1 - alpha,
        estimator="one run, sums of scores (Agrawal et al. 2026)",
        canaries=total,
        how=f"scores of {canaries}: shifted by at least μ = {mu:.4g} standard deviations",
        assumption=f"scores of canaries are independent and normal, and {GAUSSIAN}",
    )
    if family is None:
        return (sums,)
    share = right_lower(included, excluded, significance=alpha)
    own = Audit(
        epsilon=family(share),
        delta=delta,
        confidence=1 - alpha,
        estimator="one run, independent canaries, the run's own trade-off function (Xiang et al. 2025)",
        canaries=total,
        how=f"guesses about {canaries}, in at least {100 * share:.4g} % of cases right",
        assumption="scores of canaries are independent, and steps are as planned but for the size of their noise",
    )
    return sums, own
