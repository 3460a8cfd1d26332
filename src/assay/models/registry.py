"""The description of a named architecture: its name, the inputs it takes, and how to build it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """One architecture of `assay.models`.

    Attributes:
        name: how `assay.models.build` knows it.
        summary: one line about it.
        make: builds the network from the shape of one record and the number of classes.
        input_rank: 3 for networks on images (channels, height, width), None for those that flatten any record.
        smallest_side: the smallest height and width that the layers can work on.
        channels_last: whether kernels lie in memory channels last, because a CPU was measured to be faster that way.
        features: the features (`assay.features`) that it is made for, if any. On other inputs its name would be false.
    """

    name: str
    summary: str
    make: Callable[[tuple[int, ...], int], nn.Module] = field(repr=False)
    input_rank: int | None = 3
    smallest_side: int = 1
    channels_last: bool = False
    features: str | None = None

    @property
    def accepts(self) -> str:
        """The inputs this architecture takes, in words."""
        if self.input_rank is None:
            return "records of any shape"
        return f"images (channels, height, width) of at least {self.smallest_side}×{self.smallest_side}"

    def takes(self, input_shape: tuple[int, ...]) -> bool:
        """Whether one record of this shape can be its input."""
        if self.input_rank is None:
            return True
        return len(input_shape) == self.input_rank and min(input_shape[1:]) >= self.smallest_side
