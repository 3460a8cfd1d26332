"""Brightness and colour in separate channels, by constant weights.

Ohta, Kanade and Sakai: "Color Information for Region Segmentation", Computer Graphics and Image Processing 13(3), 1980.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from assay.features.pictures import check_picture

_AXES = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 2.0, -1.0]])
_AXES /= _AXES.norm(dim=1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class Opponent:
    """Turns red, green and blue into their sum, red against blue, and green against both, by an orthogonal map.

    These are close to the principal axes of colours in natural pictures. In red, green and blue an edge of brightness
    appears three times. Here absolute values and scales of each channel also show edges of colour.
    """

    name: ClassVar[str] = "opponent"

    def check(self, shape: tuple[int, ...]) -> None:
        check_picture(self, shape, least=1, channels=3)

    def around(self, extract: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return extract(torch.einsum("oc,bchw->bohw", _AXES.to(x), x))

    def describe(self) -> str:
        return "each pixel's colour as brightness, red against blue and green against both"
