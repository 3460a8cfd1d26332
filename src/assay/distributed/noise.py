"""The stream of ranks that add no noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Silent:
    """Zeros, for ranks whose sum gets no noise because the leader adds all of it.

    The mechanism of such a rank adds zeros and states the event of the whole release. Randomness that is not added
    noise is refused.
    """

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Zeros."""
        return torch.zeros(tuple(shape), dtype=dtype, device=device)

    laplace = normal

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """Add nothing."""

    def uniform(self, n: int) -> Tensor:
        """Refused: it cannot be added up."""
        raise AssertionError(f"a mechanism asked for {n} uniform numbers, which ranks cannot share as added noise")

    def integers(self, high: int, n: int) -> Tensor:
        """Refused: it cannot be added up."""
        raise AssertionError(f"a mechanism asked for {n} numbers below {high}, which ranks cannot share as added noise")
