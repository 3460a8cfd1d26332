"""What a named architecture says about itself: its name, the inputs it takes, and how to make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """One architecture of the models room.

    `input_rank` is 3 for networks on images (channels, height, width) and None for networks that flatten
    a record of any shape. `smallest_side` is the least height and width the layers can still work on. `channels_last` is
    how its kernels lie in memory, where a CPU was measured to be faster that way. `features` names those (`assay.features`) that it is made
    for; on anything else it would be another model than its name says.
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
