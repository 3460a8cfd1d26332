"""The layers of a model: the modules that hold its trainable parameters."""

from __future__ import annotations

from torch import nn


def trainable_layers(model: nn.Module) -> list[str]:
    """The paths of the modules that hold trainable parameters, each once. Per-layer clipping calls these layers.

    >>> trainable_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    ['0', '2']
    """
    return list(dict.fromkeys(layer_path(name) for name, p in model.named_parameters() if p.requires_grad))


def layer_path(parameter: str) -> str:
    """The path of the module that holds the parameter of this name."""
    return parameter.rpartition(".")[0]
