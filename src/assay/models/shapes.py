"""Fully connected layers that fit behind given convolutions."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn


def with_head(
    features: nn.Sequential,
    input_shape: tuple[int, ...],
    widths: tuple[int, ...],
    classes: int,
    *,
    activation: type[nn.Module],
    last_bias: bool = True,
) -> nn.Sequential:
    """`features`, then fully connected layers of `widths` with an activation after each, then one score per class.

    One record of zeros shows how many values `features` hands over, so that the two cannot disagree.

    Args:
        features: the layers up to a flattened output.
        input_shape: the shape of one record.
        widths: the sizes of the hidden layers; there may be none.
        classes: the number of scores.
        activation: called without arguments once for each hidden layer.
        last_bias: whether the last layer has a bias.

    Returns:
        A network of two children, `features` and `head`.
    """
    with torch.no_grad():
        size = features(torch.zeros(1, *input_shape)).numel()
    head = nn.Sequential()
    for number, width in enumerate(widths, start=1):
        head.add_module(f"fc{number}", nn.Linear(size, width))
        head.add_module(f"act{number}", activation())
        size = width
    head.add_module(f"fc{len(widths) + 1}", nn.Linear(size, classes, bias=last_bias))
    return nn.Sequential(OrderedDict(features=features, head=head))
