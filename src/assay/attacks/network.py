"""Attacks that learn: features of calibration examples train a small network, which scores the evaluated records."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from assay.attacks.evaluation import Scores
from assay.attacks.outputs import Array
from assay.attacks.setting import Setting
from assay.errors import ConfigError

Features = Callable[[tuple[nn.Module, ...], TensorDataset], Array]
"""From the checkpoints of a model and records to a row of features for each record."""

_HIDDEN = 64  # as in ML-Leaks
_STEPS, _HALF_BATCH = 400, 128


def learn_and_score(setting: Setting, features: Features) -> Scores:
    """Learn from the setting's calibration examples, and score its evaluated records."""
    known, asked = setting.calibration, setting.evaluated
    if len(known.rounds) != len(asked.rounds):
        raise ConfigError(
            "train", f"{len(known.rounds)} checkpoints", f"as many as of the target, which are {len(asked.rounds)}"
        )
    score = train(features(known.rounds, known.members), features(known.rounds, known.nonmembers), setting.seed)
    return Scores(
        members=score(features(asked.rounds, asked.members)),
        nonmembers=score(features(asked.rounds, asked.nonmembers)),
        calibration=setting.calibrated_on,
    )


def train(members: Array, nonmembers: Array, seed: int) -> Callable[[Array], Array]:
    """Train a perceptron that gives the log-odds of membership.

    Batches hold as many members as non-members, so log-odds of 0 are even odds whatever the sizes of the two groups.
    The process's random state does not change.
    """
    both = np.concatenate([members, nonmembers])
    centre, scale = both.mean(0), both.std(0)
    scale[scale == 0] = 1.0

    def scaled(values: Array) -> torch.Tensor:
        return torch.from_numpy((values - centre) / scale).float()

    inside, outside = scaled(members), scaled(nonmembers)
    truth = torch.cat([torch.ones(_HALF_BATCH), torch.zeros(_HALF_BATCH)])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(both.shape[1], _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.01, fused=True)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, _STEPS)
        for _ in range(_STEPS):
            batch = torch.cat([group[torch.randint(len(group), (_HALF_BATCH,))] for group in (inside, outside)])
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(net(batch).squeeze(1), truth).backward()
            optimizer.step()
            schedule.step()

    def score(values: Array) -> Array:
        with torch.no_grad():
            return np.asarray(net(scaled(values)).squeeze(1).double().numpy())

    return score
