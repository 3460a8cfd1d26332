"""RMIA, the robust membership inference attack: a record is compared with others of its population.

Zarifzadeh, Liu and Shokri, "Low-cost high-power membership inference attacks", ICML 2024 (arXiv:2312.03262). The ratio
of a record is the target's posterior of its label over the average posterior of models that may or may not contain it.
The score is the share of the population's records whose ratio is lower than the record's (γ = 1).

Offline: shadows train on halves of the pool, which contains no evaluated record. The average over models with and
without the record is approximated from those without it, as ((1 + a) p + 1 - a)/2. The pool is the population; each of
its records is compared by the shadows that do not contain it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch.utils.data import TensorDataset

from assay.attacks.evaluation import Scores, best_threshold
from assay.attacks.lira import Mask, halves, join, train_shadows
from assay.attacks.outputs import Array, log_posteriors
from assay.attacks.setting import Setting, Trained, rounds_of, stacked

_SLOPE = 0.3  # a, the paper's value for models trained from scratch


def log_ratios(observed: Array, shadows: Array, inside: Mask) -> Array:
    """ln of a record's posterior over its average, from the shadows [shadows, records] that do not contain it."""
    outside = np.where(inside, 0.0, np.exp(shadows)).sum(0) / (~inside).sum(0)
    ratios: Array = observed - np.log((1 + _SLOPE) / 2 * outside + (1 - _SLOPE) / 2)
    return ratios


def share_below(ratios: Array, population: Array) -> Array:
    """The share of the population with a lower ratio; a tie counts half, so that ties do not favour an answer."""
    ordered = np.sort(population)
    both = np.searchsorted(ordered, ratios, "left") + np.searchsorted(ordered, ratios, "right")
    share: Array = both / (2 * len(ordered))
    return share


@dataclass(frozen=True, kw_only=True)
class Rmia:
    """The offline attack, with as many shadows as LiRA has."""

    name: str = "rmia-offline"
    summary: str = "the record's likelihood ratio against those of a population (RMIA)"
    needs: tuple[str, ...] = ("train", "pool")

    def score(self, setting: Setting) -> Scores:
        """The share of the population below the record, minus the rehearsal's threshold."""
        assert setting.pool is not None
        members, nonmembers, pool = stacked(setting.members), stacked(setting.nonmembers), stacked(setting.pool)
        records = join(members, nonmembers)
        inside = halves(setting.shadows, len(pool), setting.generator("rmia"))
        models = train_shadows(setting, pool, inside)
        on_pool, on_records = (np.stack([_log_p(model, some) for model in models]) for some in (pool, records))
        population = log_ratios(_log_p(setting.target, pool), on_pool, inside)
        ratios = log_ratios(_log_p(setting.target, records), on_records, np.zeros(on_records.shape, dtype=bool))
        rehearsed = log_ratios(on_pool[0], on_pool[1:], inside[1:])
        played = share_below(rehearsed, rehearsed[~inside[0]])
        threshold = best_threshold(played[inside[0]], played[~inside[0]])
        scores = share_below(ratios, population) - threshold
        learned = f"{setting.shadows} shadow models, offline; threshold from one of them played against the others"
        return Scores(members=scores[: len(members)], nonmembers=scores[len(members) :], calibration=learned)


def _log_p(trained: Trained, records: TensorDataset) -> Array:
    """ln p of the true label."""
    log_p, labels = log_posteriors(rounds_of(trained)[-1], records)
    return log_p[np.arange(len(labels)), labels]


ATTACKS = (Rmia(),)
