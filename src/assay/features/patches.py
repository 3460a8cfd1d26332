"""How much the patches of a picture resemble given patches, after whitening.

Coates, Lee and Ng: "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", AISTATS 2011. Thiry,
Arbel, Belilovsky and Oyallon: "The Unreasonable Effectiveness of Patches in Deep Convolutional Kernels Methods", ICLR
2021, arXiv:2101.07528. They take the patches from the training records. Here they come from generated pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.randomness.streams import Seeded

SIDE = 6  # of a patch
_PLACES = 3  # rows and columns of places over which resemblance is averaged
_FLOOR = 1e-2  # added to the variance of each direction before whitening
_LEAST = 0.25  # a smaller cosine does not count
_FLAT = 0.25  # the share of patches that are left out as too flat
_DRAWN = 40_000  # patches from which the covariance is computed


@dataclass(frozen=True)
class Patches:
    """Whitened patches as one convolution: first one output for each patch, then the whitened patch itself."""

    weight: Tensor
    bias: Tensor
    count: int

    def encode(self, x: Tensor) -> Tensor:
        """The square roots of average resemblances: [B, 2 · count · 9], those to each patch and to its negative.

        A place's resemblance to a patch is the cosine of the angle between both, less 1/4.
        """
        outputs = F.conv2d(x, self.weight, self.bias)
        length = outputs[:, self.count :].norm(dim=1, keepdim=True).clamp_min(1e-3)
        cosines = outputs[:, : self.count] / length
        both = torch.cat([(cosines - _LEAST).relu_(), (-cosines - _LEAST).relu_()], 1)
        return F.adaptive_avg_pool2d(both, _PLACES).flatten(1).sqrt()


def patches_of(pictures: Tensor, count: int) -> Patches:
    """`count` patches of public pictures, and the whitening by their covariance.

    Args:
        pictures: public pictures [N, channels, side, side].
        count: how many patches to keep.
    """
    drawn = _cut(pictures, _DRAWN)
    mean = drawn.mean(0)
    covariance = (drawn - mean).T @ (drawn - mean) / len(drawn)
    variances, axes = torch.linalg.eigh(covariance)
    whitening = (axes * (variances + _FLOOR).rsqrt()) @ axes.T
    white = (drawn[: 4 * count] - mean) @ whitening
    length = white.norm(dim=1)
    kept = F.normalize(white[length > length.quantile(_FLAT)][:count])
    weight = torch.cat([kept @ whitening, whitening])
    shape = (len(weight), pictures.shape[1], SIDE, SIDE)
    return Patches(weight.view(shape).float(), (-weight @ mean).float(), len(kept))


def _cut(pictures: Tensor, count: int) -> Tensor:
    """Patches at random places of random pictures, in float64: [count, channels · SIDE²]."""
    stream = Seeded(0).stream("patches", count)
    which = stream.integers(len(pictures), count)
    row, column = (stream.integers(side - SIDE + 1, count) for side in pictures.shape[2:])
    windows = pictures.unfold(2, SIDE, 1).unfold(3, SIDE, 1)
    return windows[which, :, row, column].flatten(1).double()
