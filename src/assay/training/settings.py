"""How a run trains, apart from what decides ε: `Training`, as JSON and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.data.records import call
from assay.errors import ConfigError, check_fields
from assay.randomness.streams import Randomness, Seeded, check_source, source
from assay.training import augment
from assay.training.optim import Optimizer

PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True, kw_only=True)
class Training:
    """What does not decide ε: the optimizer, weight averaging, memory, precision, device, where randomness comes from.

    Args:
        optimizer: The optimizer and its learning rate.
        ema: The decay of an exponential moving average of the weights, which is then the result.
        tail: The last part of the run whose weights are averaged, in place of `ema`.
        augment: Random views of each record (`assay.training.augment`).
        seed: Makes a run reproducible, and therefore not private: whoever knows it can subtract the noise.
        secure_rng: Every random number comes from 64 bits of SHAKE-256, on every device.
        max_physical_batch: The largest number of records (or views) in memory at once. Results do not change.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        shard: Split parameters and optimizer state over the ranks (FSDP2), for models that do not fit one device.
        precision: That of the model's passes; `bf16` is under autocast. Parameters, norms, clipped sums and noise are
            float32 in any case.
        scale_from: The batch size at which learning rate, momentum and `ema` were found; `at_batch` scales them.

    Raises:
        ConfigError: A setting is out of its range.

    >>> Training(optimizer=Optimizer(lr=0.5), ema=0.99, scale_from=256).at_batch(512).optimizer.lr
    1.0
    """

    optimizer: Optimizer = field(default_factory=Optimizer)
    ema: float | None = None
    tail: float | None = None
    augment: str | None = None
    seed: int | None = None
    secure_rng: bool = False
    max_physical_batch: int | None = None
    device: str = "auto"
    shard: bool = False
    precision: str = "float32"
    scale_from: float | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfigError("precision", self.precision, f"one of {', '.join(PRECISIONS)}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ConfigError("ema", self.ema, "a number between 0 and 1, both excluded")
        if self.tail is not None and not (0 < self.tail <= 1 and self.ema is None):
            raise ConfigError("tail", self.tail, "a part of the run, above 0 and at most 1, without ema beside it")
        if self.scale_from is not None and not (math.isfinite(self.scale_from) and self.scale_from > 0):
            raise ConfigError("scale_from", self.scale_from, "the batch size that the settings were found at, above 0")
        if self.augment is not None:
            augment.parse(self.augment)
        check_source(self.seed, self.secure_rng)
        if self.seed is not None:
            Seeded(self.seed)  # refuses anything but a seed
        if self.max_physical_batch is not None and self.max_physical_batch < 1:
            raise ConfigError("max_physical_batch", self.max_physical_batch, "a whole number, 1 or above")

    def randomness(self) -> Randomness:
        """Where random numbers come from."""
        return source(self.seed, self.secure_rng)

    def outputs(self, model: nn.Module, inputs: Any, device: torch.device) -> Any:
        """The model's outputs for a training batch, in float32 whatever the model computes in."""
        if self.precision == "float32":
            return call(model, inputs)
        with torch.autocast(device.type, torch.bfloat16):
            outputs = call(model, inputs)
        return pytree.tree_map(lambda t: t.float() if isinstance(t, Tensor) and t.is_floating_point() else t, outputs)

    def at_batch(self, batch_size: float) -> Training:
        """The settings that a run with this batch size trains with: scaled from `scale_from`, which is then None.

        With κ = batch_size / scale_from, the optimizer is `Optimizer.scaled`, and the decay of `ema` is raised to the
        power κ (Busbridge et al. 2023, "How to scale your EMA", arXiv:2307.13813). `tail`, a part of the run, stays.

        Raises:
            ConfigError: The scaled settings are out of their range.
        """
        if self.scale_from is None:
            return self
        times = batch_size / self.scale_from
        try:
            ema = None if self.ema is None else self.ema**times
            return replace(self, scale_from=None, optimizer=self.optimizer.scaled(times), ema=ema)
        except (ConfigError, OverflowError) as error:
            raise ConfigError(
                "scale_from",
                self.scale_from,
                f"a batch size nearer to that of the run, {batch_size:g}; scaled to it, the settings cannot be used: "
                f"{error}",
            ) from error


def training_json(training: Training) -> dict[str, Any]:
    """Settings as JSON; `scale_from` only if there is one."""
    return {k: v for k, v in asdict(training).items() if k != "scale_from" or v is not None}


def recorded(asked: Training, used: Training) -> dict[str, Any]:
    """The settings that were asked for, and those scaled to the batch size, if they differ."""
    if asked.scale_from is None:
        return training_json(asked)
    scaled = {"lr": used.optimizer.lr, "momentum": used.optimizer.momentum, "ema": used.ema}
    return {**training_json(asked), "scaled": scaled}


def training_from_json(data: Mapping[str, Any]) -> Training:
    """Settings from JSON.

    Raises:
        ConfigError: A field is not known, or out of its range.
    """
    check_fields("training", data, [f.name for f in fields(Training)])
    check_fields("training.optimizer", data.get("optimizer"), [f.name for f in fields(Optimizer)])
    return Training(**{**data, "optimizer": Optimizer(**data["optimizer"])})


def pick_device(name: str) -> torch.device:
    """The device of this name; `auto` takes cuda, then mps, then cpu.

    Raises:
        ConfigError: This machine has no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError("device", name, "auto, cpu, cuda, cuda:N or mps, as far as this machine has them") from error
