"""The audit of records that are released one by one, each with separate noise, before training (local privacy).

The stage releases two records many times, in the setting where its noise hides them least. A threshold fixed beforehand
tells the two apart, and its errors are counted. The bound holds whatever the noise is. All of training comes after the
release, so this is an audit of the whole run.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from torch import Tensor

from assay.audit import bounds
from assay.audit.scores import errors_at
from assay.audit.single_step import StepAudit
from assay.randomness.streams import Randomness

_RELEASES = 60_000


@runtime_checkable
class ReleasesRecords(Protocol):
    """A stage whose noisy records are all that training sees."""

    def rivals(self, releases: int, randomness: Randomness) -> tuple[Tensor, Tensor, float]:
        """Scores of `releases` releases of one record and of another, and the threshold between them."""
        ...


def audit_records(
    stage: ReleasesRecords, *, delta: float, confidence: float, releases: int | None, randomness: Randomness
) -> StepAudit:
    """A lower bound on the ε of one record's features."""
    bounds.check_releases(releases)
    count = _RELEASES if releases is None else releases
    one, other, threshold = stage.rivals(count, randomness)
    errors = errors_at(other.numpy(), one.numpy(), threshold)
    epsilon = bounds.epsilon_lower(errors, delta=delta, significance=1 - confidence)
    return StepAudit(
        mu=math.nan,
        epsilon=epsilon,
        epsilon_any=epsilon,
        delta=delta,
        confidence=confidence,
        canary="a record of ones against one of zeros, where one feature has all the relevance",
        sensitivity=1.0,
        releases=2 * count,
    )
