"""Architectures by name: what is known of each, and how it is built."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

import torch
from torch import nn

from assay.errors import ConfigError, one_of
from assay.models.custom import FORM, build_custom

_FAMILIES = (
    "logistic", "mlp", "mnist_cnn", "lenet", "model3", "alexnet", "resnet", "densenet", "afrrs", "heads", "tempered",
    "standardised",
)  # fmt: skip
"""The modules of `assay.models` that define `MODELS`, simplest first."""


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """One architecture of `assay.models`.

    Attributes:
        name: how `assay.models.build` knows it.
        summary: one line about it.
        make: builds the network from the shape of one record and the number of classes.
        input_rank: 3 for networks on images (channels, height, width), None for those that flatten any record.
        smallest_side: the smallest height and width that the layers can work on.
        channels_last: whether kernels lie in memory channels last, because a CPU was measured to be faster that way.
        features: the features (`assay.features`) that it is made for, if any. On other inputs its name would be false.
    """

    name: str
    summary: str
    make: Callable[[tuple[int, ...], int], nn.Module] = field(repr=False)
    input_rank: int | None = 3
    smallest_side: int = 1
    channels_last: bool = False
    features: str | None = None

    @property
    def accepts(self) -> str:
        """The inputs this architecture takes, in words."""
        if self.input_rank is None:
            return "records of any shape"
        return f"images (channels, height, width) of at least {self.smallest_side}×{self.smallest_side}"

    def takes(self, input_shape: tuple[int, ...]) -> bool:
        """Whether one record of this shape can be its input."""
        if self.input_rank is None:
            return True
        return len(input_shape) == self.input_rank and min(input_shape[1:]) >= self.smallest_side


@functools.cache
def _by_name() -> dict[str, ModelInfo]:
    families = (import_module(f"assay.models.{family}") for family in _FAMILIES)
    return {info.name: info for family in families for info in family.MODELS}


def available() -> list[ModelInfo]:
    """Every architecture that `build` knows by name, simplest first."""
    return list(_by_name().values())


def build(name: str, *, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a freshly initialised network. Initialisation draws from torch's global generator.

    Args:
        name: one of `available()`, or "package.module:factory" for a model of your own.
        input_shape: the shape of one record, without the batch dimension.
        classes: the number of scores per record.

    Returns:
        The network, in training mode.

    Raises:
        ConfigError: the name is unknown, the architecture does not take records of this shape (the error names those
            that do), or the factory is missing or returns no `nn.Module`.

    >>> build("logistic", input_shape=(1, 8, 8), classes=10)[-1]
    Linear(in_features=64, out_features=10, bias=True)
    """
    input_shape = tuple(input_shape)
    if not input_shape or any(n < 1 for n in input_shape):
        raise ConfigError("input_shape", input_shape, "the shape of one record, sizes of at least 1")
    if classes < 1:
        raise ConfigError("classes", classes, "a whole number of at least 1, the outputs of the model")
    if ":" in name:
        return build_custom(name, input_shape, classes)
    known = _by_name()
    if name not in known:
        raise ConfigError("model", name, _known_names(name, known))
    info = known[name]
    if not info.takes(input_shape):
        fitting = ", ".join(other.name for other in available() if other.takes(input_shape))
        raise ConfigError(
            "model",
            name,
            f"{name} takes {info.accepts}, but the data has shape {input_shape}; for this shape: {fitting}",
        )
    network = info.make(input_shape, classes)
    if info.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _known_names(name: str, known: Mapping[str, ModelInfo]) -> str:
    return f"{one_of(name, known)}, or {FORM}"
