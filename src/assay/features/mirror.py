"""Features that are equal for a picture and its mirror image: the mean of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from assay.features.pictures import check_picture


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """A linear layer on the mean of two views learns what it would learn from both, at the noise of one."""

    name: ClassVar[str] = "mirror"

    def check(self, shape: tuple[int, ...]) -> None:
        check_picture(self, shape, least=2)

    def around(self, extract: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return extract(x).add_(extract(x.flip(-1))).div_(2)

    def describe(self) -> str:
        return "the mean over each picture and its mirror image"
