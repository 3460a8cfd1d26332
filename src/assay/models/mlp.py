"""A perceptron with one hidden layer, for flat data and as the smallest non-convex model."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

from torch import nn

from assay.models.registry import ModelInfo

HIDDEN = 256


def mlp(input_shape: tuple[int, ...], classes: int, *, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Flatten, Linear(d, 256), activation, Linear(256, classes).

    Tanh is the default: bounded activations keep per-record gradients small, so that clipping loses less
    (Papernot et al., "Tempered Sigmoid Activations for Deep Learning with Differential Privacy", AAAI 2021,
    arXiv:2007.14191).
    """
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(prod(input_shape), HIDDEN),
            act1=activation(),
            fc2=nn.Linear(HIDDEN, classes),
        )
    )


MODELS = (ModelInfo(name="mlp", summary=f"perceptron, one hidden layer of {HIDDEN} (tanh)", make=mlp, input_rank=None),)
