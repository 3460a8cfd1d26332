"""From scores of canaries to a lower bound on ε, for anybody's training loop.

    included, excluded = ...           # a score for each canary, higher for those that look trained on
    audit.from_scores(included, excluded, delta=1e-5)

Included and excluded canaries must be exchangeable but for the coin, and scored by one function on the same model.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.audit import bounds, one_run
from assay.audit.bounds import Errors
from assay.audit.one_run import Guesses
from assay.audit.result import Audit
from assay.errors import ConfigError

Scores: TypeAlias = NDArray[np.float64]
Assume = Literal["nothing", "gaussian"]
GAUSSIAN = "the trade-off function is that of Gaussian noise"
_SIZES = 8  # numbers of guesses tried when none was fixed: m, m/2, ..., m/128


def from_scores(
    included: ArrayLike,
    excluded: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    assume: Assume = "nothing",
    independent: bool = False,
    guesses: int | None = None,
    threshold: float | None = None,
) -> Audit:
    """The ε that the mechanism exceeds with this confidence, from the scores of included and excluded canaries.

    The usual case is one training run with many canaries, each included by a separate fair coin. Nothing is then
    assumed about how canaries influence one another.

    Args:
        included: A score for each included canary, on any scale; higher means more likely included.
        excluded: A score for each excluded canary.
        delta: δ.
        confidence: The probability that the bound holds.
        assume: `"gaussian"` bounds μ of Gaussian differential privacy and restates it as ε at δ. That is sharper, and
            wrong if the mechanism has another trade-off function.
        independent: Every score comes from a separate run or release, and the scores of a side from one distribution.
        guesses: For one run: the number of guesses, fixed before the scores were known (`one_run.most_guesses` proposes
            one). None tries eight numbers, each at an eighth of the significance.
        threshold: For independent scores: separates the two sides, fixed before the scores were known. None tries
            fixed ranks of either side as thresholds, and divides the significance among them.

    Returns:
        The lower bound.

    Raises:
        ConfigError: An argument is not accepted.
    """
    bounds.check_delta(delta)
    significance = 1 - confidence
    bounds.check_significance(significance)
    if assume not in ("nothing", "gaussian"):
        raise ConfigError("assume", assume, '"nothing" or "gaussian"')
    ins, outs = _scores("included", included), _scores("excluded", excluded)
    if independent:
        if guesses is not None:
            raise ConfigError("guesses", guesses, "nothing for independent scores: those take a threshold")
        return _independent(ins, outs, delta, significance, assume, threshold)
    if threshold is not None:
        raise ConfigError("threshold", threshold, "nothing for one run: that takes a number of guesses")
    return _one_run(ins, outs, delta, significance, assume, guesses)


def guessed(included: Scores, excluded: Scores, made: int) -> Guesses:
    """Guess "included" for the highest half of `made` scores and "excluded" for the lowest; ties count as wrong."""
    scores = np.concatenate([included, excluded])
    member = np.arange(len(scores)) < len(included)
    if not 1 <= made <= len(scores):
        raise ConfigError("guesses", made, f"a whole number from 1 to the number of canaries, {len(scores)}")
    top, bottom = made - made // 2, made // 2
    highest = np.lexsort((member, -scores))[:top]
    lowest = np.lexsort((~member, scores))[:bottom]
    right = int(member[highest].sum()) + int((~member[lowest]).sum())
    return Guesses(canaries=len(scores), made=made, right=right)


def errors_at(included: Scores, excluded: Scores, threshold: float) -> Errors:
    """The errors of saying "included" at or above the threshold."""
    return Errors(
        false_positives=int((excluded >= threshold).sum()),
        excluded=len(excluded),
        false_negatives=int((included < threshold).sum()),
        included=len(included),
    )


def errors_at_ranks(included: Scores, excluded: Scores) -> list[Errors]:
    """Errors of tests whose thresholds are scores at ranks n/2, n/4, ..., 1 of one side, n being that side's number.

    Each element may be bounded as if its threshold had been fixed beforehand, where the scores of a side are
    independent draws from one distribution. To take the best of the list, divide the significance by its length.

    Proof. Let T be the k-th highest excluded score, and let the test say "included" above T. Write the excluded scores
    as F⁻¹(U) with uniform U, and V for the k-th highest U. Then FPR = 1 - F(T) ≤ 1 - V, and 1 - V has the distribution
    Beta(k, n - k + 1). Its quantile is the Clopper-Pearson bound for k - 1 false positives of n, so that is what is
    counted, even where ties leave fewer. The included scores are independent of T. Given T, the false negatives are
    therefore binomial, and their Clopper-Pearson bound holds. The other half of the list exchanges the two sides.
    """
    made = []
    for rank in _ranks(len(excluded)):
        edge = np.sort(excluded)[-rank]
        missed = int((included <= edge).sum())
        made.append(_errors(rank - 1, len(excluded), missed, len(included)))
    for rank in _ranks(len(included)):
        edge = np.sort(included)[rank - 1]
        alarms = int((excluded >= edge).sum())
        made.append(_errors(alarms, len(excluded), rank - 1, len(included)))
    return made


def _ranks(count: int) -> list[int]:
    return sorted({max(1, count >> k) for k in range(1, max(2, count.bit_length()))})


def _errors(false_positives: int, excluded: int, false_negatives: int, included: int) -> Errors:
    return Errors(
        false_positives=false_positives, excluded=excluded, false_negatives=false_negatives, included=included
    )


def _one_run(ins: Scores, outs: Scores, delta: float, significance: float, assume: Assume, made: int | None) -> Audit:
    m = len(ins) + len(outs)
    sizes = [made] if made is not None else sorted({max(1, m >> k) for k in range(_SIZES)})
    lower = one_run.epsilon_lower if assume == "nothing" else one_run.epsilon_lower_gaussian
    each = significance / len(sizes)
    epsilon, best = max((lower(guessed(ins, outs, s), delta=delta, significance=each), s) for s in sizes)
    chosen = "fixed beforehand" if made is not None else f"best of {len(sizes)} fixed sizes, Bonferroni-corrected"
    right = guessed(ins, outs, best).right
    return Audit(
        epsilon=epsilon,
        delta=delta,
        confidence=1 - significance,
        estimator="one run (Steinke, Nasr and Jagielski 2023)"
        if assume == "nothing"
        else "one run, f-DP (Mahloujifar, Melis and Chaudhuri 2024)",
        canaries=m,
        how=f"{right} of {best} guesses right about {m} canaries ({len(ins)} included); number of guesses {chosen}",
        assumption="" if assume == "nothing" else GAUSSIAN,
    )


def _independent(
    ins: Scores, outs: Scores, delta: float, significance: float, assume: Assume, threshold: float | None
) -> Audit:
    tried = errors_at_ranks(ins, outs) if threshold is None else [errors_at(ins, outs, threshold)]
    each = significance / len(tried)

    def bound(errors: Errors) -> float:
        """ε, or for Gaussian noise the μ that it follows from."""
        if assume == "nothing":
            return bounds.epsilon_lower(errors, delta=delta, significance=each)
        return bounds.mu_lower(errors, significance=each)

    total = len(ins) + len(outs)
    chosen = "fixed beforehand" if threshold is not None else f"the best of {len(tried)} ranks, Bonferroni-corrected"
    errors = max(tried, key=bound)
    return Audit(
        epsilon=bound(errors) if assume == "nothing" else bounds.epsilon_of_mu(bound(errors), delta),
        delta=delta,
        confidence=1 - significance,
        estimator="Clopper-Pearson" if assume == "nothing" else "Clopper-Pearson, Gaussian family",
        canaries=total,
        how=f"{errors.false_positives} of {errors.excluded} excluded above and {errors.false_negatives} of"
        f" {errors.included} included below the threshold, which was {chosen}",
        assumption="scores are independent" + ("" if assume == "nothing" else f"; {GAUSSIAN}"),
    )


def _scores(name: str, scores: ArrayLike) -> Scores:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or np.isnan(values).any():
        accepted = "a score for each canary, at least one, none of them NaN"
        raise ConfigError(name, f"an array of shape {values.shape}", accepted)
    return values
