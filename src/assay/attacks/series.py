"""CS-MIA: how the confidence in a record moves over the rounds of training.

Gu, Bai and Xu, "CS-MIA: membership inference attack based on prediction confidence series in federated learning", 2022
(doi:10.1016/j.jisa.2022.103201). A member's confidence rises when it is trained on and stays high; a non-member's
follows what generalises. This is the "basic MIA" in table II of the DP-FedAGS paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn
from torch.utils.data import TensorDataset

from assay.attacks.evaluation import Scores
from assay.attacks.network import learn_and_score
from assay.attacks.outputs import Array, log_odds, log_posteriors
from assay.attacks.setting import Setting, rounds_of
from assay.errors import ConfigError


def confidence_series(rounds: tuple[nn.Module, ...], records: TensorDataset) -> Array:
    """The confidence in the true label after each round, as log-odds, [N, rounds]."""
    return np.stack([log_odds(*log_posteriors(model, records)) for model in rounds], axis=1)


@dataclass(frozen=True, kw_only=True)
class ConfidenceSeries:
    """The series trains a network."""

    name: str = "confidence-series"
    summary: str = "confidence in the true label over rounds or checkpoints trains a network (CS-MIA)"
    needs: tuple[str, ...] = ("checkpoints",)

    def score(self, setting: Setting) -> Scores:
        """The network's log-odds."""
        if len(rounds_of(setting.target)) < 2:
            raise ConfigError("target", "one model", "two checkpoints or more, in the order of training")
        return learn_and_score(setting, confidence_series)


ATTACKS = (ConfidenceSeries(),)
