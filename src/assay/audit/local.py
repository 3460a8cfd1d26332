"""The audit of records that are released one by one, with noise of their own, before training (local privacy).

Two records are released many times by the stage's own noise, in the setting where its noise hides them least; a threshold that
was fixed beforehand tells the two apart, and its errors are counted. Holds whatever the noise is. All of training comes after
the release, so that this is an audit of the whole run.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from torch import Tensor

from assay.audit import bounds
from assay.audit.bounds import Errors
from assay.audit.single_step import StepAudit
from assay.randomness.streams import Randomness

_RELEASES = 60_000


@runtime_checkable
class ReleasesRecords(Protocol):
    """A stage whose noisy records are all that training sees."""

    def rivals(self, releases: int, randomness: Randomness) -> tuple[Tensor, Tensor, float]:
        """Scores of so many releases of one record and of another, and the threshold between them."""
        ...


def audit_records(
    stage: ReleasesRecords, *, delta: float, confidence: float, releases: int | None, randomness: Randomness
) -> StepAudit:
    """A lower bound on the ε of one record's features."""
    bounds.check_releases(releases)
    count = _RELEASES if releases is None else releases
    one, other, threshold = stage.rivals(count, randomness)
    errors = Errors(
        false_positives=int((one >= threshold).sum()),
        excluded=count,
        false_negatives=int((other < threshold).sum()),
        included=count,
    )
    found = bounds.epsilon_lower(errors, delta=delta, significance=1 - confidence)
    return StepAudit(
        mu=math.nan,
        epsilon=found,
        epsilon_any=found,
        delta=delta,
        confidence=confidence,
        canary="a record of ones against one of zeros, where one feature has all the relevance",
        sensitivity=1.0,
        releases=2 * count,
    )
