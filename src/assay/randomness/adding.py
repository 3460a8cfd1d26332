"""Adding noise to every coordinate of a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from assay._util.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Stream

_AT_ONCE = 1 << 20  # numbers: what a core's cache holds while they are drawn and added


@runtime_checkable
class Adding(Protocol):
    """A stream that knows a better way to add its normal numbers than to hand them over first."""

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """As the function `add_normal`, and with the same numbers as if it called `normal`."""
        ...


def add_normal(values: Sequence[Tensor], std: float, stream: Stream) -> None:
    """values + std · z in place, z being independent standard normal numbers of the stream. Asks it for none if there is nothing to add."""
    if not values or std == 0:
        return
    if isinstance(stream, Adding):
        stream.add_normal(values, std)
    else:
        add_drawn(values, std, stream.normal)


def add_drawn(values: Sequence[Tensor], scale: float, draw: Callable[..., Tensor]) -> None:
    """values + scale · draw, in place."""
    for part in drawn_together(values):
        count = sum(v.numel() for v in part)
        add_vector(part, scale, draw((count,), dtype=part[0].dtype, device=part[0].device))


def drawn_together(values: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """Which values get their numbers in one draw: all of them, or of a large sum each its own."""
    return [values] if sum(v.numel() for v in values) <= _AT_ONCE else [[v] for v in values]


def one_vector(values: Sequence[Tensor]) -> Tensor | None:
    """The numbers of a single float32 value that are in their order on the CPU, as a vector to write to; None of any others."""
    if len(values) != 1:
        return None
    (only,) = values
    plain = only.dtype == torch.float32 and only.device.type == "cpu" and only.is_contiguous()
    return only.view(-1) if plain else None


def add_vector(values: Sequence[Tensor], scale: float, noise: Tensor) -> None:
    """values + scale · noise, in place: noise for all coordinates, cut to the values' shapes."""
    for value, own in zip(values, noise.split_with_sizes([v.numel() for v in values]), strict=True):
        value.add_(own if value.dim() == 1 else own.view_as(value), alpha=scale)
