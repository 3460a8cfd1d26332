"""Architectures by name, own models by import path, and what keeps records apart in them (`compat`).

Every network here treats each record of a batch by itself (GroupNorm, no BatchNorm, no dropout), is made of
Conv2d (plain or `standardised`), Linear and GroupNorm, has its shapes fixed when built, and takes batches of zero records.
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
    """A freshly initialised network from records of `input_shape` (no batch dimension) to `classes` scores.

    `name` is one of `available()` or "package.module:factory" for a model of your own. Initialisation draws
    from torch's global generator. Raises `ConfigError` for an unknown name, for an input shape the
    architecture cannot take (it then names the ones that can), and for a factory that is missing or makes
    no `nn.Module`.
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
            f"{name} takes {info.accepts}, the data has shape {input_shape}; for this shape: {fitting}",
        )
    network = info.make(input_shape, classes)
    if info.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _known_names(name: str) -> str:
    close = get_close_matches(name.lower().replace("_", "-"), _BY_NAME, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}one of {', '.join(_BY_NAME)}, or {FORM}"
