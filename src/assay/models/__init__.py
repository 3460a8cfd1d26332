"""Architectures by name, models of your own by import path, and the search for layers that mix records (`compat`).

Every network here treats each record of a batch by itself: GroupNorm in place of BatchNorm, no dropout. It consists
of Conv2d (plain or `standardised`), Linear and GroupNorm. Its shapes are fixed when it is built, and it accepts
batches of zero records.
"""

from __future__ import annotations

from difflib import get_close_matches

import torch
from torch import nn

from assay.errors import ConfigError
from assay.models import (
    afrrs,
    alexnet,
    compat,
    densenet,
    heads,
    lenet,
    logistic,
    mlp,
    mnist_cnn,
    model3,
    resnet,
    standardised,
    tempered,
)
from assay.models.custom import FORM, build_custom
from assay.models.registry import ModelInfo

__all__ = ["ModelInfo", "available", "build", "compat"]

_FAMILIES = (logistic, mlp, mnist_cnn, lenet, model3, alexnet, resnet, densenet, afrrs, heads, tempered, standardised)
_BY_NAME: dict[str, ModelInfo] = {info.name: info for family in _FAMILIES for info in family.MODELS}


def available() -> list[ModelInfo]:
    """Every architecture that `build` knows by name, simplest first."""
    return list(_BY_NAME.values())


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
    if name not in _BY_NAME:
        raise ConfigError("model", name, _known_names(name))
    info = _BY_NAME[name]
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


def _known_names(name: str) -> str:
    close = get_close_matches(name.lower().replace("_", "-"), _BY_NAME, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}one of {', '.join(_BY_NAME)}, or {FORM}"
