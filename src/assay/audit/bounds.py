"""Lower bounds on ε from error counts of a test between two worlds.

A test looks at an output and says "included" or "excluded". Each trial is a separate run of the mechanism, so errors
are binomial; `false_positives` counts "included" where the record was excluded. Whoever chooses the test must not look
at the outputs that are counted here. Fix it beforehand, choose it on other outputs (a split), or divide the
significance by the number of tests that were tried (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

from assay.accounting.epsilon import gaussian_epsilon
from assay.errors import ConfigError

# One release has no spread, and a few may lie close together: that would look like a direction without noise.
LEAST_RELEASES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How often a test was wrong in each world."""

    false_positives: int
    excluded: int
    false_negatives: int
    included: int

    def __post_init__(self) -> None:
        for name, count, trials in (
            ("false_positives", self.false_positives, self.excluded),
            ("false_negatives", self.false_negatives, self.included),
        ):
            if not 0 <= count <= trials or trials < 1:
                raise ConfigError(name, f"{count} of {trials}", "a count from 0 to the number of trials, at least one")

    def rates_below(self, significance: float) -> tuple[float, float]:
        """Bounds on (false positive rate, false negative rate) that hold together with probability 1 - significance."""
        return (
            rate_below(self.false_positives, self.excluded, significance / 2),
            rate_below(self.false_negatives, self.included, significance / 2),
        )


def rate_below(count: int, trials: int, significance: float) -> float:
    """The upper end of the one-sided Clopper-Pearson interval: exact, never too small.

    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", 1934
    (doi:10.1093/biomet/26.4.404).
    """
    check_significance(significance)
    return 1.0 if count >= trials else float(special.betaincinv(count + 1, trials - count, 1 - significance))


def epsilon_lower(errors: Errors, *, delta: float, significance: float) -> float:
    """The ε that any mechanism with these errors exceeds, with confidence 1 - significance.

    Eq. 3 of Nasr et al., "Adversary instantiation: lower bounds for differentially private machine learning", 2021
    (arXiv:2101.04535). An (ε, δ)-private mechanism has FPR·e^ε + δ ≥ 1 - FNR, and the same with the two exchanged
    (Kairouz, Oh and Viswanath, "The composition theorem for differential privacy", 2015, arXiv:1311.0776).
    """
    check_delta(delta)
    positive, negative = errors.rates_below(significance)
    return max(0.0, _log_ratio(1 - negative - delta, positive), _log_ratio(1 - positive - delta, negative))


def mu_lower(errors: Errors, *, significance: float) -> float:
    """The μ that a mechanism with a Gaussian trade-off function exceeds, with confidence 1 - significance.

    A μ-GDP mechanism has Φ⁻¹(1 - FPR) - Φ⁻¹(FNR) ≤ μ for every test (Dong, Roth and Su, "Gaussian differential
    privacy", 2022, arXiv:1905.02383). The bound is sharper than the one without assumptions, because counts in the
    middle of the distribution inform about its tails. It is wrong if the noise is of another family.
    """
    positive, negative = errors.rates_below(significance)
    return max(0.0, -float(special.ndtri(positive)) - float(special.ndtri(negative)))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """ε of μ-GDP at δ: solves δ = Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2)."""
    if not 0 < delta < 1:
        raise ConfigError(
            "delta", delta, "a number between 0 and 1, both excluded: no Gaussian noise is private at δ = 0"
        )
    if mu == 0:
        return 0.0
    return math.inf if mu == math.inf else gaussian_epsilon(1 / mu, delta)


def check_significance(significance: float) -> None:
    """Refuse a significance that is not a probability."""
    if not 0 < significance < 1:
        raise ConfigError("confidence", 1 - significance, "a number between 0 and 1, both excluded")


def check_releases(releases: int | None) -> None:
    """Refuse too few releases; None leaves their number to the audit."""
    whole = isinstance(releases, int) and not isinstance(releases, bool)
    if releases is not None and not (whole and releases >= LEAST_RELEASES):
        raise ConfigError("releases", releases, f"a whole number, {LEAST_RELEASES} or above")


def check_delta(delta: float) -> None:
    """Refuse a δ outside [0, 1)."""
    if not 0 <= delta < 1:
        raise ConfigError("delta", delta, "a number from 0 to below 1")


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 else -math.inf
