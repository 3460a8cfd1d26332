"""Lower bounds on ε from error counts of a test between two worlds.

A test looks at an output and says "included" or "excluded". Each trial is its own run of the mechanism, so that errors
are binomial; `false_positives` counts "included" where it was excluded. Whoever chooses the test must not look at the
outputs that are counted here: fix it beforehand, choose it on other outputs (a split), or divide the significance by
the number of tests that were tried (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

from assay.accounting.epsilon import gaussian_epsilon
from assay.errors import ConfigError

LEAST_RELEASES = (
    100  # one release has no spread, and few may lie close together: that would pass for a direction without noise
)


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
    """The upper end of the one-sided Clopper-Pearson interval (Clopper and Pearson 1934): exact, never too small."""
    check_significance(significance)
    return 1.0 if count >= trials else float(special.betaincinv(count + 1, trials - count, 1 - significance))


def epsilon_lower(errors: Errors, *, delta: float, significance: float) -> float:
    """ε that the mechanism exceeds with confidence 1 - significance, whatever it is (Nasr et al. 2021, eq. 3).

    An (ε, δ)-private mechanism has FPR·e^ε + δ ≥ 1 - FNR, and the same with the two exchanged (Kairouz et al. 2015).
    """
    check_delta(delta)
    positive, negative = errors.rates_below(significance)
    return max(0.0, _log_ratio(1 - negative - delta, positive), _log_ratio(1 - positive - delta, negative))


def mu_lower(errors: Errors, *, significance: float) -> float:
    """μ that the mechanism exceeds with confidence 1 - significance, if its trade-off function is that of Gaussian noise.

    A μ-GDP mechanism has Φ⁻¹(1 - FPR) - Φ⁻¹(FNR) ≤ μ for every test (Dong, Roth and Su 2022). Sharper than the bound
    without assumptions because counts in the middle of the distribution speak about its tails; false if the noise is of
    another family.
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
    """Refuse what is no error probability."""
    if not 0 < significance < 1:
        raise ConfigError("confidence", 1 - significance, "a number between 0 and 1, both excluded")


def check_releases(releases: int | None) -> None:
    """Refuse so few releases that chance decides; None leaves their number to the audit."""
    whole = isinstance(releases, int) and not isinstance(releases, bool)
    if releases is not None and not (whole and releases >= LEAST_RELEASES):
        raise ConfigError("releases", releases, f"a whole number, {LEAST_RELEASES} or above")


def check_delta(delta: float) -> None:
    """Refuse what is no δ."""
    if not 0 <= delta < 1:
        raise ConfigError("delta", delta, "a number from 0 to below 1")


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 else -math.inf
