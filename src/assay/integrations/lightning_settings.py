"""Settings of Lightning's `Trainer`, of a module and of a loader that would break ε: each is refused by name."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from assay.data.records import Records
from assay.errors import ConfigError
from assay.integrations.given import check_dataset

_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "fast_dev_run": ((False, 0), "False: its steps are charged like others; use max_epochs and the whole plan"),
    "accumulate_grad_batches": (
        (1,),
        "1: make the batch of the plan larger, and bound the memory by max_physical_batch of PrivateCallback",
    ),
    "overfit_batches": ((0, 0.0), "0: the plan's sampler draws the batches, and no others"),
    "limit_train_batches": ((1.0, None), "1.0: the plan says how many steps there are"),
    "reload_dataloaders_every_n_epochs": ((0,), "0: a run is about the records that it began with"),
    "precision": (
        ("32-true", "64-true", "bf16-mixed"),
        "32-true, 64-true or bf16-mixed: half precision breaks the clipping bound, and scaling skips charged steps",
    ),
}
"""The accepted values of a setting of the trainer, and what to do instead of another one."""
_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_FINDERS = (BatchSizeFinder, LearningRateFinder, GradientAccumulationScheduler)


def check_trainer(trainer: Any) -> None:
    """Refuse a trainer under which ε would not hold.

    Args:
        trainer: The trainer.

    Raises:
        ConfigError: Names the argument of `Trainer`.
    """
    for name, (accepted, instead) in _REFUSED.items():
        value = getattr(trainer, name)
        if value not in accepted:
            raise ConfigError(name, value, instead)
    if trainer.max_epochs == -1 and trainer.max_steps == -1:
        raise ConfigError("max_epochs", -1, "a number of epochs, or max_steps: ε is that of a number of steps")
    if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        raise ConfigError(
            "strategy", type(trainer.strategy).__name__, "one device, or ddp: every device has the whole model"
        )
    for callback in trainer.callbacks:
        if isinstance(callback, _FINDERS) and type(callback).__module__.startswith("lightning."):
            _check_finder(callback)


def _check_finder(callback: Any) -> None:
    if isinstance(callback, GradientAccumulationScheduler) and set(callback.scheduling.values()) == {1}:
        return  # Lightning adds one by itself
    raise ConfigError(
        "callbacks",
        type(callback).__name__,
        "none that trains on the records for a trial, or adds up gradients of several batches",
    )


def check_module(trainer: Any, module: pl.LightningModule) -> None:
    """Refuse a module whose loop is its own, or that would work on the loop's batches, which are numbers.

    Args:
        trainer: The trainer, which knows the data module.
        module: The module.

    Raises:
        ConfigError: Names the method.
    """
    if not module.automatic_optimization:
        raise ConfigError(
            "automatic_optimization", False, "True. For several optimizers write your own loop with assay.PrivateStep"
        )
    if is_overridden("backward", module):
        raise ConfigError("backward", "overridden", "Lightning's own: the private step writes the gradients")
    for hook in _HOOKS:
        data = trainer.datamodule
        if is_overridden(hook, module) or (data is not None and is_overridden(hook, data)):
            raise ConfigError(
                hook, "overridden", "Lightning's own: change records in the data set, collate_fn or training_step"
            )


def check_loader(loader: Any) -> DataLoader[Any]:
    """Refuse a loader whose batches mean something that the plan's sampler would not keep.

    Args:
        loader: What the user gave as training loader.

    Returns:
        The loader, which has one data set with an index.

    Raises:
        ConfigError: Names the argument of `DataLoader`.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError("train_dataloaders", type(loader).__name__, "one torch DataLoader")
    check_dataset(loader.dataset, "train_dataloaders")
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise ConfigError(
            "batch_sampler", type(loader.batch_sampler).__name__, "none: the plan's sampler draws batches"
        )
    if loader.drop_last:
        raise ConfigError("drop_last", True, "False: a batch has as many records as were drawn, and none is dropped")
    sampler, records = loader.sampler, len(Records(loader.dataset))
    plain = isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == records
    if not plain and type(sampler) is not SequentialSampler:
        raise ConfigError(
            "sampler", type(sampler).__name__, "none: the plan's sampler draws each record with the same probability"
        )
    return loader
