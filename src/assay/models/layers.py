"""The layers of a model: the modules that own its trainable parameters."""

from __future__ import annotations

from torch import nn


def trainable_layers(model: nn.Module) -> list[str]:
    """The modules that own trainable parameters, by path, each once: what per-layer clipping calls a layer."""
    return list(dict.fromkeys(layer_path(name) for name, p in model.named_parameters() if p.requires_grad))


def layer_path(parameter: str) -> str:
    """The module that a parameter belongs to."""
    return parameter.rpartition(".")[0]
