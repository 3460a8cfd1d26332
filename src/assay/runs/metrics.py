"""The loss of each task, and the figures that say how well a model does on records that ε does not protect.

Figures are scikit-learn's where it has them. The calibration error is the expected calibration error over 15 bins of
equal width (Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", 2017, arXiv:1706.04599): the mean
distance between the probability of the predicted class and how often it is right."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.data.records import Records, call, pair
from assay.data.task import BINARY, MULTILABEL, REGRESSION, Task
from assay.errors import ConfigError
from assay.methods.stage import Loss

_BINS = 15
_TOGETHER = 1000  # records in memory at once
LABELS: Mapping[str, str] = {
    "test_balanced_accuracy": "balanced accuracy",
    "test_auc": "AUC",
    "test_f1": "F1",
    "test_calibration_error": "calibration error",
    "test_commonest": "commonest class alone",
    "test_mae": "mean absolute error",
    "test_rmse": "root mean squared error",
    "test_r2": "R²",
    "test_exact": "all labels right",
}
"""The figures of `measured` by their name in a record, and what people call them."""
_SHARES = ("test_balanced_accuracy", "test_commonest", "test_exact")


def shown(result: Mapping[str, Any]) -> dict[str, str]:
    """The figures of a record's `result` beside accuracy and loss, as people read them.

    Args:
        result: The record's `result`.

    Returns:
        Text by name; figures that were not measured are left out.
    """
    return {
        words: f"{value:.2%}" if name in _SHARES else f"{value:.4g}"
        for name, words in LABELS.items()
        if isinstance(value := result.get(name), int | float)
    }


def measured(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, float | None]:
    """The figures of a task on some records.

    Args:
        task: What is predicted.
        outputs: The model's output for each record.
        targets: The true values, in the form that `Task` describes.

    Returns:
        Figures by the names of `LABELS`, and `test_accuracy`; None where one is not defined for these records.
    """
    y, scores = targets.cpu().numpy(), outputs.detach().float().cpu()
    if not bool(torch.isfinite(scores).all()):
        return {}  # noise can make a model useless; its figures would mean nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a figure is undefined if a class is missing among the test records
        if task.kind == REGRESSION:
            return _regression(task, scores, y)
        if task.kind == MULTILABEL:
            return _labels(torch.sigmoid(scores).numpy(), y)
        return _classes(task, torch.softmax(scores, 1).numpy(), y)


def _classes(task: Task, p: npt.NDArray[Any], y: npt.NDArray[Any]) -> dict[str, float | None]:
    from sklearn import metrics

    said = p.argmax(1)
    averaged = "binary" if task.kind == BINARY else "macro"
    return {
        "test_accuracy": float((said == y).mean()),
        "test_balanced_accuracy": float(metrics.balanced_accuracy_score(y, said)),
        "test_auc": _auc(p, y),
        "test_f1": float(metrics.f1_score(y, said, average=averaged, zero_division=0.0)),
        "test_calibration_error": calibration_error(p.max(1), said == y),
        "test_commonest": float(np.bincount(y).max() / len(y)),
    }


def _auc(p: npt.NDArray[Any], y: npt.NDArray[Any]) -> float | None:
    from sklearn import metrics

    there = np.unique(y)
    if len(there) != p.shape[1]:  # a class without test records has no curve
        return None
    if p.shape[1] == 2:
        return float(metrics.roc_auc_score(y, p[:, 1]))
    whole = p.astype(np.float64)
    return float(metrics.roc_auc_score(y, whole / whole.sum(1, keepdims=True), multi_class="ovr", labels=there))


def _labels(p: npt.NDArray[Any], y: npt.NDArray[Any]) -> dict[str, float | None]:
    from sklearn import metrics

    said, y = p > 0.5, y.astype(int)
    curves = [metrics.roc_auc_score(y[:, i], p[:, i]) for i in range(y.shape[1]) if 0 < y[:, i].sum() < len(y)]
    return {
        "test_accuracy": float((said == y).mean()),
        "test_exact": float((said == y).all(1).mean()),
        "test_auc": float(np.mean(curves)) if curves else None,
        "test_f1": float(metrics.f1_score(y, said, average="macro", zero_division=0.0)),
        "test_calibration_error": calibration_error(np.where(said, p, 1 - p).ravel(), (said == y).ravel()),
    }


def _regression(task: Task, scores: Tensor, y: npt.NDArray[Any]) -> dict[str, float | None]:
    from sklearn import metrics

    said = task.unscaled(scores.reshape(len(y), -1)[:, 0].double()).numpy()
    true = task.unscaled(torch.from_numpy(y).double()).numpy()
    return {
        "test_accuracy": None,
        "test_mae": float(metrics.mean_absolute_error(true, said)),
        "test_rmse": math.sqrt(metrics.mean_squared_error(true, said)),
        "test_r2": float(metrics.r2_score(true, said)) if len(true) > 1 and np.ptp(true) > 0 else None,
    }


def calibration_error(confidence: npt.NDArray[Any], right: npt.NDArray[np.bool_]) -> float:
    """The expected calibration error: the mean over records of a bin's |confidence - share of right answers|.

    Args:
        confidence: The probability of each predicted class.
        right: Whether each prediction is right.

    Returns:
        A number from 0, for a model that is right as often as it says, to 1.
    """
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, weights=confidence - right, minlength=_BINS)
    return float(np.abs(gaps).sum() / max(1, len(confidence)))


def evaluate(model: nn.Module, records: Records, loss: Loss) -> tuple[float | None, float | None]:
    """Accuracy (None where the output does not score each class) and mean loss."""
    right, total, counted = 0, 0.0, 0
    classes = True
    for start in range(0, len(records), _TOGETHER):
        inputs, targets = pair(records.gather(torch.arange(start, min(start + _TOGETHER, len(records)))))
        output = call(model, inputs)
        total += float(loss(output, targets).double().sum())
        counted += len(targets)
        classes = classes and output.dim() == 2 and not targets.is_floating_point()
        if classes:
            right += int((output.argmax(1) == targets).sum())
    if not counted:
        return None, None
    return (right / counted if classes else None), total / counted


def outputs_of(model: nn.Module, records: Records, task: Task | None) -> tuple[Task, Tensor, Tensor] | None:
    """What `measured` and `recalls` take: the task, the outputs on these records, and the truth.

    Args:
        model: The model, in eval mode.
        records: Pairs of input and target.
        task: What is predicted; None infers it from the outputs, if they score each class.

    Returns:
        None where there is no such task, or no records.
    """
    outputs, targets = [], []
    with torch.no_grad():
        for start in range(0, len(records), _TOGETHER):
            x, y = pair(records.gather(torch.arange(start, min(start + _TOGETHER, len(records)))))
            outputs.append(call(model, x))
            targets.append(y)
            if task is None and not _are_classes(outputs[-1], y):
                return None
    if not outputs:
        return None
    scores, truth = torch.cat(outputs), torch.cat(targets)
    return (Task.of_classes(scores.shape[1]) if task is None else task), scores, truth


def recalls(task: Task, outputs: Tensor, targets: Tensor) -> list[float | None]:
    """The share of each class's records that the model puts into it; None for a class without records.

    Args:
        task: What is predicted.
        outputs: The model's output for each record.
        targets: The true values.

    Returns:
        A number for each class; nothing for tasks without classes.
    """
    if not task.is_classification or outputs.dim() != 2 or targets.dim() != 1:
        return []
    right = outputs.argmax(1) == targets
    return [
        float(right[mine].double().mean()) if bool((mine := targets == label).any()) else None
        for label in range(outputs.shape[1])
    ]


def _are_classes(output: Any, target: Any) -> bool:
    return (
        isinstance(output, Tensor)
        and isinstance(target, Tensor)
        and output.dim() == 2
        and output.shape[1] > 1
        and target.dim() == 1
        and not target.is_floating_point()
    )


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
