"""Augmentation multiplicity: several random views of each record, whose gradients are averaged before clipping.

De et al. 2022, "Unlocking high-accuracy differentially private image classification through scale", arXiv:2204.13650,
section 3.2. It costs no privacy: a record's views are made of that record and of randomness drawn for it alone, and the
one gradient of the mean loss over its views is clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from assay._util import spec
from assay.errors import ConfigError
from assay.randomness.streams import Stream


class Augmentation(Protocol):
    """Makes views of records."""

    @property
    def views(self) -> int:
        """How many views each record has."""
        ...

    def __call__(self, batch: Any, stream: Stream) -> Any:
        """A batch (inputs, ...) with `views` rows for each record, one after the other."""
        ...


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Images moved by up to `pixels` in each direction; the border is repeated to fill the gap."""

    views: int = 4
    pixels: int = 2

    def __post_init__(self) -> None:
        _check(self.views, self.pixels)

    def __call__(self, batch: Any, stream: Stream) -> Any:
        inputs, *rest = batch
        return [_shifted(_repeated(inputs, self.views), self.pixels, stream), *(_repeated(t, self.views) for t in rest)]


@dataclass(frozen=True, kw_only=True)
class ShiftFlip:
    """As `Shift`, and mirrored left to right with probability ½: for photographs, not for letters and digits."""

    views: int = 4
    pixels: int = 4

    def __post_init__(self) -> None:
        _check(self.views, self.pixels)

    def __call__(self, batch: Any, stream: Stream) -> Any:
        inputs, *rest = batch
        moved = _shifted(_repeated(inputs, self.views), self.pixels, stream)
        mirrored = stream.integers(2, len(moved)).to(moved.device).bool().view(-1, 1, 1, 1)
        return [torch.where(mirrored, moved.flip(3), moved), *(_repeated(t, self.views) for t in rest)]


_MOST_VIEWS = 1000  # a record's views are in memory together
KINDS: dict[str, type[Shift] | type[ShiftFlip]] = {"shift": Shift, "shift-flip": ShiftFlip}


def parse(text: str) -> Augmentation:
    """The augmentation of a text such as `shift:views=4,pixels=2` or `shift-flip:views=8,pixels=4`.

    Raises:
        ConfigError: There is no such augmentation, or a setting is out of its range.
    """
    found: Augmentation = spec.parse("augment", text, KINDS)
    return found


def _check(views: int, pixels: int) -> None:
    if not 1 <= views <= _MOST_VIEWS:
        raise ConfigError("augment views", views, f"a whole number from 1 to {_MOST_VIEWS}")
    if pixels < 0:
        raise ConfigError("augment pixels", pixels, "a whole number, 0 or above")


def check(text: str, shape: tuple[int, ...]) -> None:
    """Refuse views of records that are not images, or that a shift would move out of sight.

    Args:
        text: The augmentation.
        shape: The shape of one record.

    Raises:
        ConfigError: The records do not fit.
    """
    pixels = spec.parse("augment", text, KINDS).pixels
    if len(shape) != 3:
        raise ConfigError("augment", text, f"pictures (channels, height, width); these records have shape {shape}")
    height, width = shape[1:]
    most = min(height, width) // 2
    if pixels > most:
        raise ConfigError(
            "augment",
            text,
            f"a shift by {most} pixels at most, half the side of these pictures of {height}×{width}; this is one by "
            f"{pixels}",
        )


def _repeated(t: Any, views: int) -> Any:
    """Every record `views` times; targets may be several tensors."""
    return pytree.tree_map(lambda part: part.repeat_interleave(views, 0), t)


def _shifted(x: Tensor, pixels: int, stream: Stream) -> Tensor:
    if pixels == 0:
        return x
    rows, _, height, width = x.shape
    padded = F.pad(x, (pixels,) * 4, mode="replicate")
    down, right = stream.integers(2 * pixels + 1, 2 * rows).to(x.device).view(2, rows, 1)
    down = down + torch.arange(height, device=x.device)
    right = right + torch.arange(width, device=x.device)
    row = torch.arange(rows, device=x.device).view(rows, 1, 1)
    # indexed dimensions come first: [rows, height, width, channels]
    return padded.permute(0, 2, 3, 1)[row, down.unsqueeze(2), right.unsqueeze(1)].permute(0, 3, 1, 2).contiguous()
