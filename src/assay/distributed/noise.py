"""The noise of ranks that add none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Silent:
    """Zeros, for a rank whose part of the sum gets no noise because the leader's has it all.

    A mechanism adds its noise to the sum. It does so with zeros here, and states the event of the release that it takes part in.
    Randomness other than added noise has no place there.
    """

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Zeros."""
        return torch.zeros(tuple(shape), dtype=dtype, device=device)

    laplace = normal

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """Nothing, without the zeros."""

    def uniform(self, n: int) -> Tensor:
        """Nothing that could be added up."""
        raise AssertionError(f"a mechanism asked for {n} uniform numbers, which ranks cannot share as added noise")

    def integers(self, high: int, n: int) -> Tensor:
        """Nothing that could be added up."""
        raise AssertionError(f"a mechanism asked for {n} numbers below {high}, which ranks cannot share as added noise")
