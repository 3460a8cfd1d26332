"""Sets of coordinates on the wire: one bit each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def bytes_for(size: int) -> int:
    """How many bytes a set of `size` coordinates takes."""
    return -(-size // 8)


def pack(chosen: Tensor) -> NDArray[np.uint8]:
    """A boolean vector as bytes."""
    return np.packbits(chosen.numpy())


def unpack(data: NDArray[Any], size: int) -> Tensor:
    """The boolean vector that `pack` was given; bits beyond `size` do not count."""
    return torch.from_numpy(np.unpackbits(data, count=size).astype(np.bool_))
