"""A model tried out on a few records before its run begins: what the first batch would be refused for is refused before anything is
written or an earlier run replaced.

Nothing of the trial leaves: it is a copy of the model, and of the loss, that sees the records. What such a copy would write down of them
(data-dependent initialisation) is refused, and must neither be there nor be hidden when the run begins.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from assay.data.records import Records
from assay.errors import AssayError, ConfigError, UnsupportedModelError
from assay.grads.engine import Engine
from assay.grads.forwards import check_free
from assay.grads.isolation import separate
from assay.grads.layers import RULES
from assay.models import compat, copies
from assay.plan import Plan
from assay.stage import Loss
from assay.training import Training

# A table that all records share may have as many rows as there are records here, and be taken for one row a record: what one
# number of records is refused for, and another is not, says nothing.
_SIZES = (5, 7)


def rehearse(
    model: nn.Module, train: Dataset[Any], loss: Loss, plan: Plan, training: Training, device: torch.device
) -> None:
    """Refuse a model, or a loss, that cannot be trained so under the plan. One that cannot be copied is not asked before its first batch."""
    model.to(device).train()
    compat.check(model)
    check_free(model)
    records = Records(train, device)
    if len(records) < 2:
        return
    for size in _SIZES:
        trial = copies.of_model(model)
        if trial is None:
            return
        batch = records.gather(torch.arange(min(size, len(records))))
        try:
            _try(trial, batch, copies.of_loss(loss), plan, training, device)
            return
        except UnsupportedModelError:
            if size == _SIZES[-1]:
                raise


def _try(model: nn.Module, batch: Any, loss: Loss, plan: Plan, training: Training, device: torch.device) -> None:
    inputs, targets = batch
    engine = Engine(model, {**RULES, **plan.chain().rules})
    try:
        with torch.random.fork_rng(devices=[]):
            outputs = training.outputs(model, inputs, device)
            separate(loss, outputs, targets)
            engine.collect(loss(outputs, targets))
    except AssayError:
        raise
    except Exception as error:  # the user's own model and loss, which may fail in any way
        shape = tuple(inputs.shape[1:]) if isinstance(inputs, torch.Tensor) else type(inputs).__name__
        raise ConfigError(
            "model",
            type(model).__name__,
            f"a model and a loss that take these records (inputs {shape}); it failed with {type(error).__name__}: {error}",
        ) from error
    finally:
        engine.detach()
