"""From scores of canaries to a lower bound on ε, for anybody's training loop.

    included, excluded = ...           # a score for each canary, higher for those that look trained on
    audit.from_scores(included, excluded, delta=1e-5)

Included and excluded canaries must be exchangeable but for the coin, and scored by one function on the same model.
"""

from __future__ import annotations

from collections.abc import Callable
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
_LOWER = {"nothing": one_run.epsilon_lower, "gaussian": one_run.epsilon_lower_gaussian}


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
    split: bool = False,
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
        split: Choose the number of guesses, or the threshold, on a random half of the canaries, and bound ε by the
            other half. For one run with `assume="gaussian"` and a large ε that is sharper than dividing the
            significance (docs/auditing.md has a table).

    Returns:
        The lower bound.

    Raises:
        ConfigError: An argument is not accepted.
    """
    bounds.check_delta(delta)
    significance = 1 - confidence
    bounds.check_significance(significance)
    check_assume(assume)
    ins, outs = read_scores("included", included), read_scores("excluded", excluded)
    if independent and guesses is not None:
        raise ConfigError("guesses", guesses, "nothing for independent scores: those take a threshold")
    if not independent and threshold is not None:
        raise ConfigError("threshold", threshold, "nothing for one run: that takes a number of guesses")
    chosen = ""
    if split:
        first, (ins, outs) = _halves(ins, outs, guesses if threshold is None else threshold)
        chosen = "chosen on the other half of the canaries"
        if independent:
            threshold = _best_threshold(*first, delta, significance, assume)
        else:
            guesses = _best_guesses(*first, delta, significance, assume, len(ins) + len(outs))
    if independent:
        return _independent(ins, outs, delta, significance, assume, threshold, chosen)
    return _one_run(ins, outs, delta, significance, assume, guesses, chosen)


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


def _halves(ins: Scores, outs: Scores, fixed: float | None) -> tuple[tuple[Scores, Scores], tuple[Scores, Scores]]:
    """Two halves of the canaries, divided without a look at their scores.

    A bound from the second holds although the test was chosen in view of the first: coins are tossed for each canary
    by itself. Given those of the first half, the run is as private for the others as before.

    Raises:
        ConfigError: There is nothing to choose, or too little to choose by.
    """
    if fixed is not None:
        raise ConfigError("split", True, f"False where the test is fixed beforehand ({fixed:g})")
    if min(len(ins), len(outs)) < 4:
        raise ConfigError("split", True, "False with fewer than four canaries of a side")
    random = np.random.default_rng(0)  # places, not scores: any seed will do
    sides = [np.array_split(side[random.permutation(len(side))], 2) for side in (ins, outs)]
    (a, b), (c, d) = sides
    return (a, c), (b, d)


def _best_guesses(ins: Scores, outs: Scores, delta: float, significance: float, assume: Assume, canaries: int) -> int:
    """The number of guesses about `canaries` others that is best for these, as a share of them."""
    m, lower = len(ins) + len(outs), _LOWER[assume]
    sizes = sorted({max(1, round(m * 2 ** (-k / 4))) for k in range(4 * _SIZES)})
    best = max(sizes, key=lambda made: lower(guessed(ins, outs, made), delta=delta, significance=significance))
    return min(canaries, max(1, round(best * canaries / m)))


def _best_threshold(ins: Scores, outs: Scores, delta: float, significance: float, assume: Assume) -> float:
    bound = _bound(delta, significance, assume)
    edges = np.unique(np.quantile(np.concatenate([ins, outs]), np.linspace(0, 1, 257), method="nearest"))
    return float(max(edges, key=lambda edge: bound(errors_at(ins, outs, edge))))


def _one_run(
    ins: Scores, outs: Scores, delta: float, significance: float, assume: Assume, made: int | None, chosen: str
) -> Audit:
    m, lower = len(ins) + len(outs), _LOWER[assume]
    sizes = [made] if made is not None else sorted({max(1, m >> k) for k in range(_SIZES)})
    each = significance / len(sizes)
    epsilon, best = max((lower(guessed(ins, outs, s), delta=delta, significance=each), s) for s in sizes)
    if not chosen:
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


def _bound(delta: float, significance: float, assume: Assume) -> Callable[[Errors], float]:
    """ε, or for Gaussian noise the μ that it follows from."""
    if assume == "nothing":
        return lambda errors: bounds.epsilon_lower(errors, delta=delta, significance=significance)
    return lambda errors: bounds.mu_lower(errors, significance=significance)


def _independent(
    ins: Scores,
    outs: Scores,
    delta: float,
    significance: float,
    assume: Assume,
    threshold: float | None,
    chosen: str,
) -> Audit:
    tried = errors_at_ranks(ins, outs) if threshold is None else [errors_at(ins, outs, threshold)]
    bound = _bound(delta, significance / len(tried), assume)
    total = len(ins) + len(outs)
    if not chosen:
        fixed = threshold is not None
        chosen = "fixed beforehand" if fixed else f"the best of {len(tried)} ranks, Bonferroni-corrected"
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


def check_assume(assume: str) -> None:
    """Refuse an assumption that there is no bound for."""
    if assume not in ("nothing", "gaussian"):
        raise ConfigError("assume", assume, '"nothing" or "gaussian"')


def read_scores(name: str, scores: ArrayLike) -> Scores:
    """Scores as numbers.

    Raises:
        ConfigError: There is none, or one is NaN.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or np.isnan(values).any():
        accepted = "a score for each canary, at least one, none of them NaN"
        raise ConfigError(name, f"an array of shape {values.shape}", accepted)
    return values
