"""Threshold attacks: a number for each record, and a threshold for each class.

A record is called a member if its confidence p_y is at least τ_y, or its entropy or modified entropy at most τ_y. Here
y is its true label, and τ_y maximises the balanced accuracy on the calibration records of that class (Song, Shokri and
Mittal, "Privacy risks of securing machine learning models against adversarial examples", 2019, arXiv:1905.10291; Song
and Mittal, "Systematic evaluation of privacy risks of machine learning models", 2021, arXiv:2003.10595). The loss
attack is confidence on the logarithmic scale: it decides alike, and ranks records of different classes differently
(Yeom et al., "Privacy risk in machine learning: analyzing the connection to overfitting", 2018, arXiv:1709.01604).

The reported score is the distance to the threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from assay.attacks.evaluation import Scores, best_threshold
from assay.attacks.outputs import Array, Labels, log_odds, log_posteriors
from assay.attacks.setting import Setting

Evidence = Callable[[Array, Labels], Array]
"""From the logarithms of posteriors and the true labels to a value for each record."""


def confidence(log_p: Array, labels: Labels) -> Array:
    """p_y, the posterior of the true label."""
    return np.exp(log_p[np.arange(len(labels)), labels])


def loss(log_p: Array, labels: Labels) -> Array:
    """Cross-entropy, -ln p_y, as ln(1 + (1 - p_y)/p_y), which stays above 0 where p_y rounds to 1."""
    return np.logaddexp(0.0, -log_odds(log_p, labels))


def entropy(log_p: Array, labels: Labels) -> Array:  # noqa: ARG001 - the one score that needs no label
    """-Σ p_i ln p_i."""
    result: Array = -(np.exp(log_p) * log_p).sum(1)
    return result


def modified_entropy(log_p: Array, labels: Labels) -> Array:
    """-(1 - p_y) ln p_y - Σ_{i≠y} p_i ln(1 - p_i) (Song and Mittal, equation 8).

    It is zero for certainty of the true label and unbounded for certainty of a wrong one. Plain entropy does not
    distinguish the two.
    """
    rows = np.arange(len(labels))
    log_rest = _log_complement(log_p)
    terms = np.exp(log_p) * log_rest
    terms[rows, labels] = np.exp(log_rest[rows, labels]) * log_p[rows, labels]
    result: Array = -terms.sum(1)
    return result


def _log_complement(log_p: Array) -> Array:
    """ln(1 - p_i). Only the largest p of a record can be near 1; there 1 - p is the sum of the others."""
    rows, top = np.arange(len(log_p)), log_p.argmax(1)
    others = log_p.copy()
    others[rows, top] = -np.inf
    p = np.exp(log_p)
    p[rows, top] = 0.0
    result: Array = np.log1p(-p)
    result[rows, top] = np.logaddexp.reduce(others, axis=1)
    return result


def class_thresholds(
    members: Array, member_labels: Labels, nonmembers: Array, nonmember_labels: Labels, classes: int
) -> Array:
    """The best threshold of each class; where a class lacks members or non-members, the best over all classes."""
    overall = best_threshold(members, nonmembers)
    thresholds = np.full(classes, overall)
    for y in range(classes):
        inside, outside = members[member_labels == y], nonmembers[nonmember_labels == y]
        if len(inside) and len(outside):
            thresholds[y] = best_threshold(inside, outside)
    return thresholds


@dataclass(frozen=True, kw_only=True)
class ThresholdAttack:
    """A threshold for each class on `evidence`, which is larger for likelier members."""

    name: str
    summary: str
    evidence: Evidence
    needs: tuple[str, ...] = ()

    def score(self, setting: Setting) -> Scores:
        """The distance to the class's threshold, which follows from the calibration records."""
        known, asked = setting.calibration, setting.evaluated
        inside, outside = (log_posteriors(known.model, records) for records in (known.members, known.nonmembers))
        classes = inside[0].shape[1]
        thresholds = class_thresholds(self.evidence(*inside), inside[1], self.evidence(*outside), outside[1], classes)
        scores = []
        for records in (asked.members, asked.nonmembers):
            log_p, labels = log_posteriors(asked.model, records)
            scores.append(self.evidence(log_p, labels) - thresholds[labels])
        return Scores(members=scores[0], nonmembers=scores[1], calibration=setting.calibrated_on)


def _negative(value: Evidence) -> Evidence:
    """Evidence from a value that is smaller for members."""
    return lambda log_p, labels: -value(log_p, labels)


ATTACKS = (
    ThresholdAttack(
        name="confidence", summary="posterior of the true label, a threshold for each class", evidence=confidence
    ),
    ThresholdAttack(
        name="loss", summary="cross-entropy of the record, a threshold for each class", evidence=_negative(loss)
    ),
    ThresholdAttack(
        name="entropy", summary="entropy of the posteriors, a threshold for each class", evidence=_negative(entropy)
    ),
    ThresholdAttack(
        name="modified-entropy",
        summary="entropy that takes the true label into account, a threshold for each class",
        evidence=_negative(modified_entropy),
    ),
)
