"""The worst that a run's plan allows for: initial weights and a record that an adversary chose.

ε holds whatever the initial weights are and whatever the record is, so an audit may choose both. Annamalai and De
Cristofaro, "Nearly Tight Black-Box Auditing of Differentially Private Machine Learning", NeurIPS 2024
(arXiv:2405.14106), begin with weights that were trained on other records: the gradients of the run's own records are
then small, and what the canary adds stands out in the final model.

Here the weights also know the canary, and take it for another class without a doubt. Its loss then grows with the
margin, so its gradient has one direction and is clipped in every step: the canary moves the model along a line, as far
as its noise allows for.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.audit.training import blank
from assay.errors import ConfigError
from assay.methods.stage import Loss
from assay.models import copies
from assay.runs.result import cross_entropy

_STEPS = 400
_BATCH = 256
_RATE = 3e-3  # Adam's
_DOUBT = 30.0  # the canary's loss to begin with: training moves it by less

Canary = tuple[Tensor, Tensor]


def worst_case(
    model: nn.Module, data: TensorDataset, classes: int, *, loss: Loss = cross_entropy, seed: int = 0
) -> tuple[nn.Module, Canary]:
    """Initial weights and a record that give as much away as the plan of a run allows, for classifiers.

    Args:
        model: The run's model. It does not change.
        data: Records of the same population that the run is not trained on.
        classes: How many classes there are.
        loss: The run's loss, a value for each record.
        seed: Fixes the canary and the weights.

    Returns:
        A copy of the model with these weights, and the record (x, y).

    Raises:
        ConfigError: The model cannot be copied, or there is one class only.
    """
    if classes < 2:
        raise ConfigError("classes", classes, "2 or above: the canary is taken for another class")
    start = copies.of_model(model)
    if start is None:
        raise ConfigError("model", type(model).__name__, "a model that can be copied, to choose its initial weights")
    x, y = (part[0] for part in blank(data, 1, classes, seed).tensors)
    _train(start, data, (x, y), (y + 1) % classes, loss, torch.Generator().manual_seed(seed))
    return start, (x, y)


def _train(
    model: nn.Module, data: TensorDataset, canary: Canary, other: Tensor, loss: Loss, generator: torch.Generator
) -> None:
    """Train on the records, without noise, and on the canary as one of class `other`."""
    device = next(p.device for p in model.parameters())
    x, y = (part.to(device) for part in data.tensors)
    alone, own, wrong = (part.unsqueeze(0).to(device) for part in (*canary, other))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=_RATE)
    model.train()
    for _ in range(_STEPS):
        chosen = torch.randint(len(x), (min(_BATCH, len(x)),), generator=generator).to(device)
        seen = model(alone)
        doubt = (_DOUBT - loss(seen, own)).clamp(min=0).mean() + loss(seen, wrong).mean()
        optimizer.zero_grad()
        (loss(model(x[chosen]), y[chosen]).mean() + doubt).backward()
        optimizer.step()
    model.zero_grad()
