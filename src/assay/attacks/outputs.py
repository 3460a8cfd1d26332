"""What the attacker reads off a model: the logarithms of its posteriors, in double precision.

A model that has memorised a record gives it a posterior that rounds to 1. Members and non-members then differ only in
later digits. So everything is computed from the logits, and nothing as 1 - p.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.errors import AssayError, ConfigError

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
BATCH = 512


def log_posteriors(model: nn.Module, records: TensorDataset) -> tuple[Array, Labels]:
    """ln p of every class for every record, [N, C], and the labels. The model runs in eval mode and is not changed."""
    with evaluating(model), torch.no_grad():
        log_p = [logits(model, x, y).log_softmax(1).cpu() for x, y in batches(model, records)]
    return torch.cat(log_p).numpy(), records.tensors[1].cpu().numpy().astype(np.int64)


def log_odds(log_p: Array, labels: Labels) -> Array:
    """ln(p_y / (1 - p_y)) of the true label, [N] (LiRA's φ): ln p_y minus the log of the others' sum."""
    rows = np.arange(len(labels))
    others = log_p.copy()
    others[rows, labels] = -np.inf
    odds: Array = log_p[rows, labels] - np.logaddexp.reduce(others, axis=1)
    return odds


def logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The model's output in double precision, [B, C]."""
    out = model(x)
    if not isinstance(out, Tensor) or out.dim() != 2 or out.shape[1] < 2:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ConfigError("target", f"a model with output {shape}", "a classifier with output [records, classes ≥ 2]")
    if not 0 <= int(y.min()) <= int(y.max()) < out.shape[1]:
        raise ConfigError("label", f"{int(y.min())} to {int(y.max())}", f"labels from 0 to {out.shape[1] - 1}")
    if not bool(torch.isfinite(out).all()):
        raise AssayError("the model's output is not finite: its training diverged, and there is nothing to attack")
    return out.double()


def batches(model: nn.Module, records: TensorDataset) -> Iterator[tuple[Tensor, Tensor]]:
    """The records in order, on the model's device."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x, y = records.tensors
    for start in range(0, len(records), BATCH):
        yield x[start : start + BATCH].to(device), y[start : start + BATCH].to(device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode, and every module back into its mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
