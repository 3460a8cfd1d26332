"""How a run trains, apart from what decides ε: `Optimizer` and `Training`, as JSON and back.

Optimizers and learning-rate schedules are post-processing of a private gradient, which costs no privacy. A schedule
(`constant`, `linear`, `inverse:every=469`, `drop:at=10000,by=10`) is a function of the step's number alone, so that a
resumed run continues it exactly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay._util import spec
from assay.data.records import call
from assay.errors import ConfigError, check_fields, one_of
from assay.methods import Method
from assay.randomness.streams import Randomness, Seeded, check_source, source
from assay.training import augment, defaults


class Rate(ABC):
    """How the learning rate changes over a run. A frozen dataclass whose fields are its settings."""

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """The factor on the learning rate in this step, counted from 0, of a run of `steps` steps."""


@dataclass(frozen=True, kw_only=True)
class Constant(Rate):
    """1 throughout."""

    def factor(self, step: int, steps: int) -> float:  # noqa: ARG002
        """1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Linear(Rate):
    """From 1 down to 0 in equal steps."""

    def factor(self, step: int, steps: int) -> float:
        """1 - t/T."""
        return 1.0 - step / steps


@dataclass(frozen=True, kw_only=True)
class Cosine(Rate):
    """From 1 down to 0 along half a wave."""

    def factor(self, step: int, steps: int) -> float:
        """(1 + cos πt/T)/2."""
        return 0.5 * (1.0 + math.cos(math.pi * step / steps))


@dataclass(frozen=True, kw_only=True)
class Inverse(Rate):
    """1/t, where t counts steps from 1.

    Attributes:
        every: The factor changes only after this many steps: with the number of batches in an epoch, once an epoch.

    Raises:
        ConfigError: `every` is below 1.

    >>> [Inverse(every=2).factor(step, 6) for step in range(4)]
    [1.0, 1.0, 0.3333333333333333, 0.3333333333333333]
    """

    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError("schedule every", self.every, "a whole number, 1 or above")

    def factor(self, step: int, steps: int) -> float:  # noqa: ARG002
        """1/t at the last step that changed it."""
        return 1.0 / (step - step % self.every + 1)


@dataclass(frozen=True, kw_only=True)
class Drop(Rate):
    """1 at first; divided once.

    Attributes:
        at: The number of steps before it is divided.
        by: What it is divided by.

    Raises:
        ConfigError: A setting is out of its range.

    >>> [Drop(at=2, by=10).factor(step, 6) for step in range(4)]
    [1.0, 1.0, 0.1, 0.1]
    """

    at: int = 10_000
    by: float = 10.0

    def __post_init__(self) -> None:
        if self.at < 1:
            raise ConfigError("schedule at", self.at, "a whole number, 1 or above")
        if not 1 <= self.by < math.inf:
            raise ConfigError("schedule by", self.by, "a number, 1 or above")

    def factor(self, step: int, steps: int) -> float:  # noqa: ARG002
        """1, then 1/by."""
        return 1.0 if step < self.at else 1.0 / self.by


RATES: dict[str, type[Rate]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "inverse": Inverse,
    "drop": Drop,
}


PRECISIONS = ("float32", "bf16")
OPTIMIZERS = ("sgd", "adam", "adamw")
_FLOAT32 = torch.finfo(torch.float32)
_LARGEST = _FLOAT32.max / 16  # torch's optimizers take these as float32, and Adam's first step ten times lr


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An optimizer, its learning rate and its schedule, which maps a step's number to a factor.

    Numbers that a torch optimizer could not take as float32 are refused here, because the first step is charged before
    the optimizer runs. The defaults are those of the command line (`assay.training.defaults`).

    Args:
        name: `sgd`, `adam` or `adamw`.
        lr: The learning rate; None is 0.7 for sgd, 0.002 for adam and adamw.
        momentum: Of sgd; None is 0.9.
        weight_decay: Weight decay.
        schedule: The learning rate over the run (`assay.training.settings`).
        warmup: The part of the run in which the learning rate rises.

    Raises:
        ConfigError: A name is not known, or a number is out of its range.

    >>> Optimizer(name="sgd", lr=0.5, momentum=0.9).scaled(2).momentum
    0.81
    """

    name: str = defaults.OPTIMIZER
    lr: spec.Converted[float | None, float] = spec.Converted(default=None)
    momentum: spec.Converted[float | None, float] = spec.Converted(default=None)
    weight_decay: float = 0.0
    schedule: str = defaults.SCHEDULE
    warmup: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ConfigError("optimizer", self.name, one_of(self.name, OPTIMIZERS))
        for number, usual in (("lr", defaults.LR), ("momentum", defaults.MOMENTUM)):
            if getattr(self, number) is None:
                object.__setattr__(self, number, usual[self.name])
        _rate(self.schedule)
        if not _FLOAT32.tiny <= self.lr <= _LARGEST:
            raise ConfigError(
                "lr", self.lr, f"a number above 0, as float32 holds it: {_FLOAT32.tiny:.1g} to {_LARGEST:.1g}"
            )
        if not 0 <= self.momentum <= 1 - _FLOAT32.eps:
            raise ConfigError("momentum", self.momentum, "a number from 0 to below 1, also as float32")
        if self.momentum and self.name != "sgd":
            raise ConfigError("momentum", self.momentum, "0 with Adam and AdamW, which have their own")
        if not 0 <= self.weight_decay * max(1.0, self.lr) <= _LARGEST:  # AdamW takes their product
            raise ConfigError(
                "weight_decay", self.weight_decay, f"a number, 0 or above, itself and times lr at most {_LARGEST:.1g}"
            )
        if not 0 <= self.warmup < 1:
            raise ConfigError("warmup", self.warmup, "the part of the run to warm up in, from 0 to below 1")

    def scaled(self, times: float) -> Optimizer:
        """The settings for a batch κ = `times` as large that take the same path through the same records, up to noise.

        SGD: momentum β becomes β^κ, which forgets a record's gradient after as many records as before. The step
        lr/(1 - β) that a constant gradient leads to is multiplied by κ; without momentum, lr is (Goyal et al. 2017,
        "Accurate, large minibatch SGD: training ImageNet in 1 hour", arXiv:1706.02677). Adam and AdamW: lr is
        multiplied by √κ, and their averages stay (Malladi et al. 2022, "On the SDEs and scaling rules for adaptive
        gradient algorithms", arXiv:2205.10287).
        """
        if self.name != "sgd":
            return replace(self, lr=self.lr * math.sqrt(times))
        momentum = self.momentum**times
        return replace(self, lr=self.lr * times * ((1 - momentum) / (1 - self.momentum)), momentum=momentum)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The torch optimizer over the model's trainable parameters."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        match self.name:
            case "adam":
                return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
            case "adamw":
                return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
            case _:
                return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def set_lr(self, optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
        """Give `optimizer` the learning rate of this step."""
        for group in optimizer.param_groups:
            group["lr"] = self.lr_at(step, steps)

    def lr_at(self, step: int, steps: int) -> float:
        """The learning rate of this step, counted from 0, in a run of `steps` steps.

        It depends on the step's number only, so a resumed run continues it exactly.
        """
        rise = min(1.0, (step / steps + 1e-12) / self.warmup) if self.warmup else 1.0
        return self.lr * rise * _rate(self.schedule).factor(step, steps)


@lru_cache(maxsize=16)
def _rate(text: str) -> Rate:
    """The schedule that the text names; asked for in every step."""
    return spec.parse("schedule", text, RATES)


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

    >>> Training(optimizer=Optimizer(lr=0.5, momentum=0.0), ema=0.99, scale_from=256).at_batch(512).optimizer.lr
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
            raise ConfigError("precision", self.precision, one_of(self.precision, PRECISIONS))
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

    @classmethod
    def of_method(cls, method: Method) -> Training:
        """How a run trains where nobody says anything: by the method's own optimizer."""
        return cls(optimizer=Optimizer(name=method.optimizer))

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
