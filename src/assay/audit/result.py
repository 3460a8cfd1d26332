"""The result of an audit: a lower bound on ε, and the sentence that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from assay._util.figures import at_least


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A lower bound: with probability `confidence` over the audit's randomness, the true ε at `delta` is no less.

    Attributes:
        epsilon: The bound.
        delta: δ.
        confidence: The probability that the bound holds.
        estimator: How the bound follows from the counts.
        canaries: How many canaries there were.
        how: What was counted.
        assumption: What the bound assumes; empty where it holds for every mechanism.
    """

    epsilon: float
    delta: float
    confidence: float
    estimator: str
    canaries: int
    how: str
    assumption: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; infinity is the string "inf"."""
        data: Mapping[str, Any] = {field: getattr(self, field) for field in self.__dataclass_fields__}
        return {name: "inf" if value == math.inf else value for name, value in data.items()}


class Verdict(StrEnum):
    """What claimed, verified and audited ε say together.

    `suspect`: above the verified ε, by a bound whose assumption may be wrong.
    """

    CONSISTENT = "consistent"
    SUSPECT = "suspect"
    CLAIM_REFUTED = "claim-refuted"
    BUG = "bug"


_ROUNDING = 1e-9  # two ways to compute the same ε may differ by this much of it


def verdict(claimed: float, verified: float, audited: float) -> Verdict:
    """Compare the three ε.

    Args:
        claimed: The paper's ε.
        verified: The accountant's ε.
        audited: The lower bound of an attack.

    Returns:
        `bug` where audited exceeds verified: something runs that the accounting does not know of. `claim-refuted` where
        it exceeds the claim only.

    >>> str(verdict(claimed=1, verified=2, audited=1.5))
    'claim-refuted'
    """
    if audited > verified * (1 + _ROUNDING):
        return Verdict.BUG
    return Verdict.CLAIM_REFUTED if audited > claimed * (1 + _ROUNDING) else Verdict.CONSISTENT


def sentence(found: Verdict, audited: float, confidence: float) -> str:
    """The verdict in words."""
    least = "no finite ε holds" if audited == math.inf else f"at least ε = {at_least(audited)}"
    sure = f"with {100 * confidence:g} % confidence"
    if found is Verdict.BUG:
        err = f"{100 * (1 - confidence):.2g} %"
        return f"implementation bug, or chance ({err} of audits err): audited above verified, {least} {sure}; repeat it"
    if found is Verdict.SUSPECT:
        why = "above the verified ε if the trade-off function is Gaussian"
        return f"suspect: {why}, {least} {sure}; no proof of a bug, look into it"
    if found is Verdict.CLAIM_REFUTED:
        return f"claim refuted: {least} {sure}"
    return f"consistent: nothing above the claimed or the verified ε was seen (audited ε {at_least(audited)} {sure})"
