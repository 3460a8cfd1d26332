"""The tails of float32 normal numbers, from their true distribution.

Box and Muller's numbers end where their uniform numbers do: with 24 bits, as torch makes them, at sqrt(48 log 2) = 5.77 standard deviations, which
8e-9 of normal numbers exceed. A record that moves one coordinate by a standard deviation would make numbers appear beyond, which prove its
presence, with a probability of 1e-6 a step: over a run, as much as a usual δ. So whatever is beyond `TAIL` is drawn anew.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TAIL = 4.5


def redrawn(tail: Tensor, uniform: Tensor) -> Tensor:
    """New numbers beyond `TAIL`, on the sides of those in `tail`, from uniform float64 numbers in [0, 1).

    Given |z| > `TAIL`, the probability of an even larger |z| is uniform. From 53 bits, they reach beyond 9 standard deviations.
    """
    mass = 0.5 * math.erfc(TAIL / math.sqrt(2))
    size: Tensor = torch.special.ndtri((1 - uniform) * mass).abs()
    return size.to(tail.dtype).copysign(tail)
