"""Handwriting set upright: each picture is moved and sheared by moments of its ink.

LeCun, Bottou, Bengio and Haffner deskew MNIST in this way: "Gradient-Based Learning Applied to Document Recognition",
Proceedings of the IEEE 86(11), 1998, doi:10.1109/5.726791.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.features.pictures import check_picture

_STEEPEST = 1.0  # the largest slant that is removed, sideways over upwards: a flat stroke has no meaningful slant


@dataclass(frozen=True, kw_only=True)
class Deskew:
    """Moves the ink's centre to the middle and shifts rows so that its positions sideways and upwards are uncorrelated.

    A pixel's ink is its value minus the picture's smallest value. A picture without ink stays as it is.
    """

    name: ClassVar[str] = "deskew"

    def check(self, shape: tuple[int, ...]) -> None:
        check_picture(self, shape, least=2)

    def around(self, extract: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        paper = x.flatten(1).amin(1).view(-1, 1, 1, 1)
        ink = x - paper
        places = F.affine_grid(_upright(ink.sum(1)), list(x.shape), align_corners=False)
        return extract(F.grid_sample(ink, places, align_corners=False) + paper)

    def describe(self) -> str:
        return "each picture centred and its slant taken out, by moments of its own pixels"


def _upright(ink: Tensor) -> Tensor:
    """For each picture [B, H, W], the map from places of the upright one to its own: [B, 2, 3], places in [-1, 1]."""
    height, width = ink.shape[1:]
    up, across = _places(height)[:, None], _places(width)
    whole = ink.sum((1, 2))
    share = torch.where(whole > 0, 1 / whole, 0.0)

    def mean(values: Tensor) -> Tensor:
        return (ink * values).sum((1, 2)) * share

    middle_across, middle_up = mean(across), mean(up)
    aside, above = across - middle_across[:, None, None], up - middle_up[:, None, None]
    spread = mean(above**2)
    slant = torch.where(spread > 0, mean(aside * above) / spread, 0.0).clamp(-_STEEPEST, _STEEPEST)
    maps = ink.new_zeros(len(ink), 2, 3)
    maps[:, 0, 0] = maps[:, 1, 1] = 1.0
    maps[:, 0, 1], maps[:, 0, 2], maps[:, 1, 2] = slant, middle_across, middle_up
    return maps


def _places(count: int) -> Tensor:
    """The centres of `count` pixels side by side between -1 and 1."""
    return (2 * torch.arange(count) + 1) / count - 1
