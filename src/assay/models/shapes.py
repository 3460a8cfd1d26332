"""The one shape question an architecture asks: how many features convolutions hand to the first Linear."""

from __future__ import annotations

import torch
from torch import nn


def flat_size(features: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Values per record that `features` puts out for one record of `input_shape`.

    Found by passing one record of zeros, so that it cannot disagree with the layers. Draws no randomness.
    """
    with torch.no_grad():
        out: torch.Tensor = features(torch.zeros(1, *input_shape))
    return out.numel()
