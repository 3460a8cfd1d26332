"""LiRA, the likelihood ratio attack (Carlini et al. 2022): every record is compared with itself.

φ = ln(p_y / (1 - p_y)) of a record is close to Gaussian over random trainings. Shadow models give its mean and deviation when
the record is in the training set and when it is not.

Online: every shadow trains on a random half of the evaluated records, each record is in exactly half of the shadows, and the
score is ln N(φ; in) - ln N(φ; out). Which records are in which shadow is drawn without regard to their membership in the
target. Offline: shadows train on halves of the pool, no evaluated record is in any, and the score is how many deviations φ
lies above the mean of the shadows.

The threshold of the decision comes from a rehearsal: one shadow, whose members the attacker chose, plays the target against
the others.
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
from assay.attacks.setting import Setting, Trained, rounds_of, stacked, taken

Mask = NDArray[np.bool_]

_OWN_DEVIATION = 64  # shadows from which on a record's own deviation is better than all records' (Carlini et al., VI.A)
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

    With few shadows a record's own deviation is mostly noise; the root mean square within records stands for all.
    """
    count = chosen.sum(0)
    mean = np.where(chosen, phi, 0.0).sum(0) / count
    squares = np.where(chosen, (phi - mean) ** 2, 0.0).sum(0)
    if len(phi) >= _OWN_DEVIATION:
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
    """How many deviations `observed` lies above what shadows without the record give."""
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
        """As it is called."""
        return f"lira-{self.mode}"

    def score(self, setting: Setting) -> Scores:
        """The ratio, less the rehearsal's threshold."""
        members, nonmembers = stacked(setting.members), stacked(setting.nonmembers)
        observed = np.concatenate([_phi(setting.target, part) for part in (members, nonmembers)])
        if self.mode == "online":
            scores, threshold = self._online(setting, observed, members, nonmembers)
        else:
            scores, threshold = self._offline(setting, observed, members, nonmembers)
        scores = scores - threshold
        return Scores(
            members=scores[: len(members)],
            nonmembers=scores[len(members) :],
            calibration=f"{setting.shadows} shadow models, {self.mode}; threshold from one of them played against the others",
        )

    def _online(
        self, setting: Setting, observed: Array, members: TensorDataset, nonmembers: TensorDataset
    ) -> tuple[Array, float]:
        records = _joined(members, nonmembers)
        inside = halves(setting.shadows, len(records), setting.generator("online"))
        phi = np.stack([_phi(model, records) for model in _shadows(setting, records, inside)])
        rehearsed = likelihood_ratio(phi[0], phi[1:], inside[1:])
        threshold = best_threshold(rehearsed[inside[0]], rehearsed[~inside[0]])
        return likelihood_ratio(observed, phi, inside), threshold

    def _offline(
        self, setting: Setting, observed: Array, members: TensorDataset, nonmembers: TensorDataset
    ) -> tuple[Array, float]:
        assert setting.pool is not None
        pool, records = stacked(setting.pool), _joined(members, nonmembers)
        inside = halves(setting.shadows, len(pool), setting.generator("offline"))
        on_pool, on_records = [], []
        for model in _shadows(setting, pool, inside):
            on_pool.append(_phi(model, pool))
            on_records.append(_phi(model, records))
        played = np.stack(on_pool)
        rehearsed = above_outsiders(played[0], played[1:], inside[1:])
        threshold = best_threshold(rehearsed[inside[0]], rehearsed[~inside[0]])
        phi = np.stack(on_records)
        return above_outsiders(observed, phi, np.zeros(phi.shape, dtype=bool)), threshold


def _shadows(setting: Setting, records: TensorDataset, inside: Mask) -> list[Trained]:
    assert setting.train is not None
    return [setting.train(taken(records, np.flatnonzero(row))) for row in inside]


def _phi(trained: Trained, records: TensorDataset) -> Array:
    return log_odds(*log_posteriors(rounds_of(trained)[-1], records))


def _joined(first: TensorDataset, second: TensorDataset) -> TensorDataset:
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
