"""ML-Leaks: one shadow model, sorted posteriors, a small network.

Adversary 1 of Salem et al., "ML-Leaks: model and data independent membership inference attacks and defenses on machine
learning models", 2019 (arXiv:1806.01246).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn
from torch.utils.data import TensorDataset

from assay.attacks.evaluation import Scores
from assay.attacks.network import learn_and_score
from assay.attacks.outputs import Array, log_posteriors
from assay.attacks.setting import Setting

_LARGEST = 3


def top_posteriors(rounds: tuple[nn.Module, ...], records: TensorDataset) -> Array:
    """The logarithms of the three largest posteriors in falling order, without labels.

    The paper uses the posteriors themselves. Their logarithms carry the same information, and distinguish values that
    round to 0 or 1.
    """
    log_p, _ = log_posteriors(rounds[-1], records)
    return np.sort(log_p, axis=1)[:, : -_LARGEST - 1 : -1]


@dataclass(frozen=True, kw_only=True)
class MLLeaks:
    """Learned from the shadow model, applied to the target."""

    name: str = "ml-leaks"
    summary: str = "one shadow model; its three largest posteriors train a network (ML-Leaks)"
    needs: tuple[str, ...] = ("train", "pool")

    def score(self, setting: Setting) -> Scores:
        """The network's log-odds."""
        return learn_and_score(setting, top_posteriors)


ATTACKS = (MLLeaks(),)
