"""Adding one draw of noise to every coordinate of a sum."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from assay.types import Grads


def add_noise(total: Grads, std: float, draw: Callable[..., Tensor]) -> Grads:
    """total + std · draw: one draw for all coordinates, cut to the parameters' shapes. Consumes `total`."""
    values = list(total.values())
    if not values or std == 0:
        return total
    sizes = [v.numel() for v in values]
    noise = draw((sum(sizes),), dtype=values[0].dtype, device=values[0].device).split_with_sizes(sizes)
    for value, own in zip(values, noise, strict=True):
        value.add_(own if value.dim() == 1 else own.view_as(value), alpha=std)
    return total
