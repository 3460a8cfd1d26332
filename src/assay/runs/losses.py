"""The loss of each task, with a value for each record."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from assay.data.task import MULTILABEL, REGRESSION, Task
from assay.errors import ConfigError
from assay.methods.stage import Loss

_HUBER = 0.25  # where Huber's loss turns from a square to a line, on targets scaled to [-1, 1]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of each record, averaged over positions where there are several."""
    losses = F.cross_entropy(output, target, reduction="none")
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """The mean over labels of each label's cross-entropy; outputs are log-odds."""
    return F.binary_cross_entropy_with_logits(output, target, reduction="none").flatten(1).mean(1)


def squared(output: Tensor, target: Tensor) -> Tensor:
    """The squared distance of one output from the scaled target."""
    return (_single(output) - target).square()


def huber(output: Tensor, target: Tensor) -> Tensor:
    """Huber's loss of one output: a square near the scaled target, a line beyond a quarter (Huber 1964)."""
    return F.huber_loss(_single(output), target, reduction="none", delta=_HUBER)


def _single(output: Tensor) -> Tensor:
    if output.dim() == 2 and output.shape[1] == 1:
        return output[:, 0]
    if output.dim() == 1:
        return output
    raise ConfigError(
        "model", f"outputs of shape {tuple(output.shape)}", "one output for each record with a regression"
    )


def loss_of(task: Task | None) -> Loss:
    """The loss that a task is trained with; cross-entropy where no task is named.

    Args:
        task: What is predicted.

    Returns:
        `loss(output, target)`, with a value for each record.
    """
    if task is not None and task.kind == MULTILABEL:
        return binary_cross_entropy
    if task is not None and task.kind == REGRESSION:
        return huber if task.loss == "huber" else squared
    return cross_entropy
