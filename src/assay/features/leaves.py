"""Generated pictures: leaves of random size, shape and colour that fall on each other. No photograph takes part.

Edges, corners and sizes of things are distributed roughly as in photographs: Lee, Mumford and Huang: "Occlusion Models
for Natural Images", IJCV 41, 2001, doi:10.1023/A:1011109015675. As public data for learning: Baradad, Wulff, Wang,
Isola and Torralba: "Learning to See by Looking at Noise", NeurIPS 2021, arXiv:2106.05963.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.randomness.streams import Seeded

_LEAVES = 120  # on a picture
_LARGEST, _SMALLEST = 1 / 2, 1 / 32  # half a leaf's width, in sides of the picture
_LONGEST = 1.0  # the logarithm of a leaf's length over its width
_MARGIN = 1 / 4  # how far outside the picture a leaf's centre may be, in sides
_GREY, _COLOUR, _SHADE = 0.5, 0.12, 0.64  # spreads of brightness, of colour, and of brightness within a leaf


def dead_leaves(count: int, side: int) -> Tensor:
    """The first `count` generated pictures: [count, 3, side, side] in float32, pixels from -1 to 1.

    They are the same at every call. The frequency of leaves falls with the third power of their width.
    """
    stream = Seeded(0).stream("dead leaves", side)
    places = (torch.arange(side) + 0.5) / side
    return torch.stack(
        [_picture(stream.uniform(12 * _LEAVES).float().view(12, -1, 1, 1), places) for _ in range(count)]
    )


def _picture(drawn: Tensor, places: Tensor) -> Tensor:
    """One picture from twelve numbers between 0 and 1 for each leaf, the uppermost leaf first."""
    width = (_SMALLEST**-2 + drawn[0] * (_LARGEST**-2 - _SMALLEST**-2)) ** -0.5
    middle = drawn[1:3] * (1 + 2 * _MARGIN) - _MARGIN
    across, down = places - middle[0], places[:, None] - middle[1]
    angle, length = drawn[3] * torch.pi, width * (drawn[4] * _LONGEST).exp()
    along = (angle.cos() * across + angle.sin() * down) / length
    aside = (angle.cos() * down - angle.sin() * across) / width
    oval, square = along**2 + aside**2 <= 1, (along.abs() <= 1) & (aside.abs() <= 1)
    inside = torch.where(drawn[5] < 0.5, oval, square)
    inside[-1] = True  # the last leaf is the ground
    seen = inside.int().argmax(0)
    normal = torch.special.ndtri(drawn[6:].clamp(1e-6, 1 - 1e-6))
    colour = ((_GREY * normal[0]).clamp(-1, 1) + _COLOUR * normal[1:4]).clamp(-1, 1).flatten(1)
    shade = _SHADE * (normal[4] * across + normal[5] * down)
    return (colour[:, seen] + shade.gather(0, seen[None])).clamp(-1, 1)
