"""Checks before anything is written, charged or replaced: of the settings, and of the model on a few records.

The model is tried out as on its first batch. Nothing of the trial remains: only copies of the model and of the loss see
the records. A model that would store something about them (data-dependent initialisation) is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from assay.data.loading import PLAIN, Loading
from assay.data.records import Records, pair
from assay.errors import AssayError, ConfigError, UnsupportedModelError
from assay.gradients.engine import Engine
from assay.gradients.forwards import check_free
from assay.gradients.proof.isolation import separate
from assay.gradients.rules.layers import RULES
from assay.methods.plan import Plan
from assay.methods.stage import Loss
from assay.models import compat, copies
from assay.training import augment, limits
from assay.training.processor import check_precision
from assay.training.settings import Training, pick_device

# A table that all records share may happen to have as many rows as the trial has records, and be taken for one row per
# record. So a model is refused only if it fails with both numbers of records.
_SIZES = (5, 7)


def check_run(
    model: nn.Module,
    train: Dataset[Any],
    loss: Loss,
    plan: Plan,
    training: Training,
    data: str | None,
    ranks: int,
    *,
    loading: Loading = PLAIN,
) -> Plan:
    """Refuse a run that could not be trained.

    Args:
        model: The model.
        train: Yields (input, target).
        loss: `loss(output, target)` gives one value for each record.
        plan: Everything that decides ε.
        training: How to train.
        data: The name of the data set, if it has one.
        ranks: How many ranks train together.
        loading: How records are fetched and put together.

    Returns:
        The plan for this model.

    Raises:
        ConfigError: Settings do not go together, or the model or the loss fails on the records.
        UnsupportedModelError: The model or the loss mixes records.
    """
    Records(train, loading=loading).check_pairs("train")
    _check_finite(model)
    plan = plan.for_model(model)
    if plan.stage is not None:
        plan.stage.check(model, Records(train), data)
    training.at_batch(plan.batch_size)
    limits.check(plan, ranks, shard=training.shard)
    plan.chain()
    device = pick_device(training.device)
    if plan.exact and device.type != "cpu":
        raise ConfigError("device", training.device, "cpu with exact noise: kernels elsewhere add up in any order")
    if plan.exact and training.precision != "float32":
        raise ConfigError("precision", training.precision, "float32 with exact noise")
    check_precision(training.precision, device)
    decided = plan.stage is not None and plan.center is None  # a stage that decides what the model sees
    if not training.shard and not decided:
        _rehearse(model, Records(train, device, loading), loss, plan, training, device)
    if training.augment is not None:
        _check_augment(training.augment, train, plan, ranks)
    return plan


def _check_finite(model: nn.Module) -> None:
    """Refuse weights that are NaN or infinite: nothing can be trained from there."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter.detach()).all()):
            raise ConfigError(
                "model", f"{type(model).__name__} with {name}", "finite weights; these hold NaN or infinite numbers"
            )


def _check_augment(text: str, train: Dataset[Any], plan: Plan, ranks: int) -> None:
    """Refuse views of records that are not images, or that a stage replaces."""
    if plan.unit is not None and plan.unit.whole:
        raise ConfigError("augment", text, f"no views where the unit is {plan.unit} and persons are sampled")
    if ranks > 1:
        raise ConfigError("augment", text, "one rank: ranks with one seed would draw the same views")
    if plan.stage is not None and not plan.stage.takes_views:
        raise ConfigError(
            "augment", text, f"no augmentation with {plan.method.name}, which decides what training sees of a record"
        )
    augment.check(text, tuple(Records(train).gather(torch.tensor([0]))[0].shape[1:]))


def _rehearse(
    model: nn.Module, records: Records, loss: Loss, plan: Plan, training: Training, device: torch.device
) -> None:
    """Refuse a model or a loss that fails on a few records. If it cannot be copied, the first batch shows it."""
    model.to(device).train()
    compat.check(model)
    check_free(model)
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
    inputs, targets = pair(batch)
    engine = Engine(model, {**RULES, **plan.chain().rules}, coins=training.randomness().stream("rehearsal", 0))
    try:
        with torch.random.fork_rng(devices=[]):
            outputs = training.outputs(model, inputs, device)
            separate(loss, outputs, targets, engine.coins)
            engine.collect(loss(outputs, targets))
    except AssayError:
        raise
    except Exception as error:  # the user's own model and loss, which may fail in any way
        shape = tuple(inputs.shape[1:]) if isinstance(inputs, torch.Tensor) else type(inputs).__name__
        raise ConfigError(
            "model",
            type(model).__name__,
            f"a model and a loss that take these records (inputs {shape}); it failed with {type(error).__name__}: "
            f"{error}",
        ) from error
    finally:
        engine.detach()
