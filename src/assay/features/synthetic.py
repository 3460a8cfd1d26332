"""Pictures described by what they have in common with generated pictures: public features without public data.

Two descriptions are taken of a picture: its scattering coefficients, and its resemblance to patches. Each has thousands
of numbers, and DP-SGD adds noise to all of them. We keep the directions in which 2,000 generated pictures differ
(Williams and Seeger: "Using the Nyström Method to Speed Up Kernel Machines", NIPS 2000).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import ConfigError
from assay.features.leaves import dead_leaves
from assay.features.opponent import Opponent
from assay.features.patches import SIDE, Patches, patches_of
from assay.features.pictures import check_picture
from assay.features.scatter import Scatter

_MOST = {"pictures": 8192, "patches": 8192}
_AT_ONCE = 10  # pictures whose maps fit into a core's cache
_STABLE = 0.01  # added to the variances, in their mean: makes the map insensitive to rounding


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Scattering and patches of colour pictures, along the directions in which generated pictures differ.

    A description d becomes (d - m) Lᵀ (L Lᵀ/n + λ)^(-(1+f)/2) / √n. Here L are the n generated pictures' descriptions
    minus their mean m, and f is `flatten`. For f = 0 this keeps the lengths of differences along the n directions, and
    for f = 1 all directions are equally loud. Each description of a record is then scaled to length √n.

    Attributes:
        pictures: how many pictures are generated. There are twice as many features.
        patches: how many patches of them a record's are compared with.
        flatten: from 0 to 1, how much weaker directions are amplified.

    Raises:
        ConfigError: a setting is out of range.
    """

    name: ClassVar[str] = "synthetic"
    signed_pixels: ClassVar[bool] = True

    pictures: int = 2000
    patches: int = 384
    flatten: float = 0.3

    def __post_init__(self) -> None:
        for field, most in _MOST.items():
            if not 2 <= getattr(self, field) <= most:
                raise ConfigError(
                    f"features synthetic {field}", getattr(self, field), f"a whole number from 2 to {most}"
                )
        if not 0 <= self.flatten <= 1:
            raise ConfigError("features synthetic flatten", self.flatten, "a number from 0 to 1")

    def check(self, shape: tuple[int, ...]) -> None:
        check_picture(self, shape, least=SIDE + 2, channels=3)

    def made_with(self) -> str:
        return Scatter().made_with()

    def extract(self, x: Tensor) -> Tensor:
        patches, maps = _landmarks(self, (x.shape[2], x.shape[3]))
        return torch.cat([place.of(some) for place, some in zip(maps, _descriptions(patches, x), strict=True)], 1)

    def describe(self) -> str:
        return (
            f"scattering coefficients and resemblance to {self.patches} patches, along the directions in which "
            f"{self.pictures} generated pictures (dead leaves) differ ({self.made_with()})"
        )


@dataclass(frozen=True)
class _Map:
    """The projection of one description."""

    mean: Tensor
    matrix: Tensor

    def of(self, described: Tensor) -> Tensor:
        return F.normalize((described - self.mean) @ self.matrix) * self.matrix.shape[1] ** 0.5


def _descriptions(patches: Patches, x: Tensor) -> list[Tensor]:
    """The scattering coefficients of pictures, and their resemblance to patches."""
    parts = (x,) if torch.compiler.is_exporting() else x.split(_AT_ONCE)
    described = ((Opponent().around(Scatter().extract, part).flatten(1), patches.encode(part)) for part in parts)
    return [torch.cat(some) for some in zip(*described, strict=True)]


@lru_cache(maxsize=1)
def _landmarks(settings: Synthetic, shape: tuple[int, int]) -> tuple[Patches, list[_Map]]:
    """Everything that follows from the generated pictures."""
    generated = dead_leaves(settings.pictures, max(shape))[:, :, : shape[0], : shape[1]].contiguous()
    patches = patches_of(generated, settings.patches)
    with torch.no_grad():
        return patches, [_map(some, settings.flatten) for some in _descriptions(patches, generated)]


def _map(described: Tensor, flatten: float) -> _Map:
    mean = described.mean(0)
    from_mean, n = described - mean, len(described)
    variances, axes = torch.linalg.eigh((from_mean @ from_mean.T).double() / n)
    scales = (variances.clamp_min(0) + _STABLE * variances.mean()) ** (-(1 + flatten) / 2)
    # A function of a symmetric matrix does not depend on the signs and the order of its axes.
    return _Map(mean, from_mean.T @ ((axes * scales) @ axes.T / n**0.5).float())
