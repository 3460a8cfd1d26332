"""LiRA, the likelihood ratio attack: every record is compared with itself.

Carlini et al., "Membership inference attacks from first principles", 2022 (arXiv:2112.03570). φ = ln(p_y / (1 - p_y))
of a record is close to Gaussian over random trainings. Shadow models give its mean and deviation when the record is in
the training set and when it is not.

Online: every shadow trains on a random half of the evaluated records, and each record is in exactly half of the
shadows. Their membership in the target plays no role in that draw. The score is ln N(φ; in) - ln N(φ; out). Offline:
shadows train on halves of the pool, which contains no evaluated record. The score is how many deviations φ is above the
mean of the shadows.

The threshold of the decision comes from a rehearsal: one shadow, whose members the attacker chose, takes the target's
place against the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from assay.attacks.evaluation import Scores, best_threshold
from assay.attacks.outputs import Array, log_odds, log_posteriors
from assay.attacks.setting import Setting, Trained, rounds_of, stacked, subset

Mask = NDArray[np.bool_]

_MANY_SHADOWS = 64  # from here on each record's deviation is better than the common one (Carlini et al., VI.A)
_LEAST_DEVIATION = 1e-6  # shadows that agree to the last digit must not make a score infinite


def halves(shadows: int, records: int, generator: np.random.Generator) -> Mask:
    """Which record is in which shadow's training set, [shadows, records]: random halves and their complements.

    Every record is in exactly half of the shadows, and every shadow has half of the records.
    """
    inside = np.zeros((shadows, records), dtype=bool)
    for first in range(0, shadows, 2):
        inside[first, generator.permutation(records)[: records // 2]] = True
    inside[1::2] = ~inside[::2]
    return inside


def gaussian(phi: Array, chosen: Mask) -> tuple[Array, Array]:
    """Mean of each record's φ over the chosen shadows, and its standard deviation.

    With few shadows a single record's deviation is mostly noise, so the root mean square over all records replaces it.
    """
    count = chosen.sum(0)
    mean = np.where(chosen, phi, 0.0).sum(0) / count
    squares = np.where(chosen, (phi - mean) ** 2, 0.0).sum(0)
    if len(phi) >= _MANY_SHADOWS:
        deviation: Array = np.sqrt(squares / (count - 1))
    else:
        deviation = np.full(len(mean), np.sqrt(squares.sum() / (count - 1).sum()))
    return mean, np.maximum(deviation, _LEAST_DEVIATION)


def likelihood_ratio(observed: Array, phi: Array, inside: Mask) -> Array:
    """ln N(observed; in) - ln N(observed; out)."""
    (mean_in, deviation_in), (mean_out, deviation_out) = gaussian(phi, inside), gaussian(phi, ~inside)
    z_in, z_out = (observed - mean_in) / deviation_in, (observed - mean_out) / deviation_out
    ratio: Array = (z_out**2 - z_in**2) / 2 + np.log(deviation_out / deviation_in)
    return ratio


def above_outsiders(observed: Array, phi: Array, inside: Mask) -> Array:
    """How many deviations `observed` is above the mean of shadows without the record."""
    mean, deviation = gaussian(phi, ~inside)
    result: Array = (observed - mean) / deviation
    return result


@dataclass(frozen=True, kw_only=True)
class Lira:
    """The attack with shadows that may (online) or may not (offline) see the evaluated records."""

    mode: Literal["online", "offline"]
    summary: str
    needs: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name."""
        return f"lira-{self.mode}"

    def score(self, setting: Setting) -> Scores:
        """The ratio, minus the rehearsal's threshold."""
        members, nonmembers = stacked(setting.members), stacked(setting.nonmembers)
        observed = np.concatenate([_phi(setting.target, records) for records in (members, nonmembers)])
        if self.mode == "online":
            scores, threshold = self._online(setting, observed, members, nonmembers)
        else:
            scores, threshold = self._offline(setting, observed, members, nonmembers)
        scores = scores - threshold
        learned = f"{setting.shadows} shadow models, {self.mode}; threshold from one of them played against the others"
        return Scores(members=scores[: len(members)], nonmembers=scores[len(members) :], calibration=learned)

    def _online(
        self, setting: Setting, observed: Array, members: TensorDataset, nonmembers: TensorDataset
    ) -> tuple[Array, float]:
        records = join(members, nonmembers)
        inside = halves(setting.shadows, len(records), setting.generator("online"))
        phi = np.stack([_phi(model, records) for model in train_shadows(setting, records, inside)])
        rehearsed = likelihood_ratio(phi[0], phi[1:], inside[1:])
        threshold = best_threshold(rehearsed[inside[0]], rehearsed[~inside[0]])
        return likelihood_ratio(observed, phi, inside), threshold

    def _offline(
        self, setting: Setting, observed: Array, members: TensorDataset, nonmembers: TensorDataset
    ) -> tuple[Array, float]:
        assert setting.pool is not None
        pool, records = stacked(setting.pool), join(members, nonmembers)
        inside = halves(setting.shadows, len(pool), setting.generator("offline"))
        on_pool, on_records = [], []
        for model in train_shadows(setting, pool, inside):
            on_pool.append(_phi(model, pool))
            on_records.append(_phi(model, records))
        played = np.stack(on_pool)
        rehearsed = above_outsiders(played[0], played[1:], inside[1:])
        threshold = best_threshold(rehearsed[inside[0]], rehearsed[~inside[0]])
        phi = np.stack(on_records)
        return above_outsiders(observed, phi, np.zeros(phi.shape, dtype=bool)), threshold


def train_shadows(setting: Setting, records: TensorDataset, inside: Mask) -> list[Trained]:
    """A shadow model for each row of `inside`, trained on the records that it marks."""
    assert setting.train is not None
    return [setting.train(subset(records, np.flatnonzero(row))) for row in inside]


def _phi(trained: Trained, records: TensorDataset) -> Array:
    return log_odds(*log_posteriors(rounds_of(trained)[-1], records))


def join(first: TensorDataset, second: TensorDataset) -> TensorDataset:
    """The records of both."""
    return TensorDataset(*(torch.cat(pair) for pair in zip(first.tensors, second.tensors, strict=True)))


ATTACKS = (
    Lira(
        mode="online",
        summary="likelihood ratio of a record in and out, from shadow models that may contain it (LiRA)",
        needs=("train",),
    ),
    Lira(
        mode="offline",
        summary="how far above shadow models that do not contain the record the target lies (LiRA)",
        needs=("train", "pool"),
    ),
)
