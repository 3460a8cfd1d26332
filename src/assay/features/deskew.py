"""Handwriting set upright: each picture moved and sheared by moments of its own ink (LeCun et al. 1998 deskew MNIST so)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.features.pictures import check_picture

_STEEPEST = (
    1.0  # the slant that is taken out at most, sideways over upwards: a stroke that lies flat has no slant to speak of
)


@dataclass(frozen=True, kw_only=True)
class Deskew:
    """Ink is what a pixel has above the picture's smallest one. Its centre comes to the middle, and rows are shifted in proportion to
    their height so that sideways and upward position are uncorrelated. A picture without ink stays as it is.
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
    """For each picture [B, H, W], where a place of the upright one is found in it: [B, 2, 3], in coordinates from -1 to 1."""
    height, width = ink.shape[1:]
    up, across = _places(height)[:, None], _places(width)
    whole = ink.sum((1, 2))
    there = whole > 0
    share = torch.where(there, 1 / whole, 0.0)

    def mean(values: Tensor) -> Tensor:
        return (ink * values).sum((1, 2)) * share

    middle_across, middle_up = mean(across), mean(up)
    aside, above = across - middle_across[:, None, None], up - middle_up[:, None, None]
    spread = mean(above**2)
    slant = torch.where(spread > 0, mean(aside * above) / spread, 0.0).clamp(-_STEEPEST, _STEEPEST)
    found = ink.new_zeros(len(ink), 2, 3)
    found[:, 0, 0] = found[:, 1, 1] = 1.0
    found[:, 0, 1], found[:, 0, 2], found[:, 1, 2] = slant, middle_across, middle_up
    return found


def _places(count: int) -> Tensor:
    """The middles of so many pixels side by side between -1 and 1."""
    return (2 * torch.arange(count) + 1) / count - 1
