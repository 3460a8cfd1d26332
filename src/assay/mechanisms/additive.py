"""Adding noise to every coordinate of a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from assay.types import Grads

_AT_ONCE = 1 << 20  # numbers: what a core's cache holds while they are drawn and added


def add_noise(total: Grads, std: float, draw: Callable[..., Tensor]) -> Grads:
    """total + std · draw: one draw for all coordinates, or for a large sum one for each parameter. Consumes `total`."""
    values = list(total.values())
    if not values or std == 0:
        return total
    size = sum(v.numel() for v in values)
    for part in [values] if size <= _AT_ONCE else [[v] for v in values]:
        count = sum(v.numel() for v in part)
        add_vector(part, std, draw((count,), dtype=part[0].dtype, device=part[0].device))
    return total


def add_vector(values: Sequence[Tensor], std: float, noise: Tensor) -> None:
    """values + std · noise, in place: noise for all coordinates, cut to the values' shapes."""
    for value, own in zip(values, noise.split_with_sizes([v.numel() for v in values]), strict=True):
        value.add_(own if value.dim() == 1 else own.view_as(value), alpha=std)
