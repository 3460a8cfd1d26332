"""Optimizers and learning-rate schedules by name: post-processing of a private gradient, which costs no privacy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from assay.errors import ConfigError

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda _, __: 1.0,
    "linear": lambda step, steps: 1.0 - step / steps,
    "cosine": lambda step, steps: 0.5 * (1.0 + math.cos(math.pi * step / steps)),
    "inverse": lambda step, _: 1.0 / (step + 1),
}
_FLOAT32 = torch.finfo(torch.float32)
_LARGEST = _FLOAT32.max / 16  # torch's optimizers take these as float32, and Adam's first step ten times lr


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An optimizer, its learning rate and its schedule, which maps a step's number to a factor.

    Numbers that a torch optimizer could not take as float32 are refused here, because the first step is charged before
    the optimizer runs.

    Raises:
        ConfigError: A name is not known, or a number is out of its range.

    >>> Optimizer(name="sgd", lr=0.5, momentum=0.9).scaled(2).momentum
    0.81
    """

    name: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ConfigError("optimizer", self.name, "one of " + ", ".join(OPTIMIZERS))
        if self.schedule not in SCHEDULES:
            raise ConfigError("schedule", self.schedule, "one of " + ", ".join(SCHEDULES))
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
        return self.lr * rise * SCHEDULES[self.schedule](step, steps)
