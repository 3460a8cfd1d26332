"""Brightness and colour apart, as constants have them (Ohta, Kanade and Sakai 1980, "Color information for region segmentation")."""

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
    """Red, green and blue turned to their sum, red against blue, and green against both: near the principal axes of natural pictures'
    colours, and an orthogonal map of each pixel. Whatever takes absolute values or scales channel by channel afterwards sees edges of colour that
    in red, green and blue are three times the same edge of brightness.
    """

    name: ClassVar[str] = "opponent"

    def check(self, shape: tuple[int, ...]) -> None:
        check_picture(self, shape, least=1, channels=3)

    def around(self, extract: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return extract(torch.einsum("oc,bchw->bohw", _AXES.to(x), x))

    def describe(self) -> str:
        return "each pixel's colour as brightness, red against blue and green against both"
