"""ML-Leaks (Salem et al. 2019, adversary 1): one shadow model, sorted posteriors, a small network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn
from torch.utils.data import TensorDataset

from assay.attacks.evaluation import Scores
from assay.attacks.network import learned
from assay.attacks.outputs import Array, log_posteriors
from assay.attacks.setting import Setting

_LARGEST = 3


def top_posteriors(rounds: tuple[nn.Module, ...], records: TensorDataset) -> Array:
    """The three largest posteriors in falling order, as logarithms: labels are not used.

    The paper feeds the posteriors themselves; their logarithms carry the same, and keep apart what rounds to 0 and 1.
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
        return learned(setting, top_posteriors)


ATTACKS = (MLLeaks(),)
