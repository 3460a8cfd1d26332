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
_GAUSSIAN = "the trade-off function is that of Gaussian noise"
_SIZES = 8  # numbers of guesses tried when none was fixed: m, m/2, ..., m/128
_THRESHOLDS = 256  # tried on the half that chooses


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
        independent: Every score comes from a separate run or release.
        guesses: For one run: the number of guesses, fixed before the scores were known (`one_run.most_guesses` proposes
            one). None tries eight numbers, each at an eighth of the significance.
        threshold: For independent scores: separates the two sides, fixed before the scores were known. None chooses it
            on a random half of the scores and counts the other half.

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


def best_threshold(included: Scores, excluded: Scores, bound: Callable[[Errors], float]) -> float:
    """The threshold with the largest bound on these scores, which must not be counted afterwards."""
    every = np.unique(np.concatenate([included, excluded]))
    some = every[np.linspace(0, len(every) - 1, min(len(every), _THRESHOLDS)).astype(int)]
    return float(max(some, key=lambda t: bound(errors_at(included, excluded, float(t)))))


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
        assumption="" if assume == "nothing" else _GAUSSIAN,
    )


def _independent(
    ins: Scores, outs: Scores, delta: float, significance: float, assume: Assume, threshold: float | None
) -> Audit:
    def bound(errors: Errors) -> float:
        """ε, or for Gaussian noise the μ that it follows from."""
        if assume == "nothing":
            return bounds.epsilon_lower(errors, delta=delta, significance=significance)
        return bounds.mu_lower(errors, significance=significance)

    total = len(ins) + len(outs)
    chosen = "fixed beforehand"
    if threshold is None:
        if min(len(ins), len(outs)) < 2:
            raise ConfigError("threshold", None, "a number: there are too few scores to choose one on a half of them")
        ins_a, ins = _halves(ins)
        outs_a, outs = _halves(outs)
        threshold = best_threshold(ins_a, outs_a, bound)
        chosen = "chosen on the other half of the scores"
    errors = errors_at(ins, outs, threshold)
    return Audit(
        epsilon=bound(errors) if assume == "nothing" else bounds.epsilon_of_mu(bound(errors), delta),
        delta=delta,
        confidence=1 - significance,
        estimator="Clopper-Pearson" if assume == "nothing" else "Clopper-Pearson, Gaussian family",
        canaries=total,
        how=f"{errors.false_positives} of {errors.excluded} excluded above and {errors.false_negatives} of"
        f" {errors.included} included below the threshold, which was {chosen}",
        assumption="scores are independent" + ("" if assume == "nothing" else f"; {_GAUSSIAN}"),
    )


def _halves(scores: Scores) -> tuple[Scores, Scores]:
    mixed = np.random.default_rng(0).permutation(scores)  # callers may have sorted them
    return mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]


def _scores(name: str, scores: ArrayLike) -> Scores:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or np.isnan(values).any():
        accepted = "a score for each canary, at least one, none of them NaN"
        raise ConfigError(name, f"an array of shape {values.shape}", accepted)
    return values
