"""Max pooling on the CPU with the channels last, which takes torch a third of the time or less.

With the channels first, torch looks through the windows of one channel after the other. With them last it compares many
channels at once. So the input is put in that order and the result back, where a measurement finds that faster. Values
and places are the same to the last bit, ties and NaN included. So runs with a seed come here as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from assay.gradients.quickest import remembered, rounded_up, timed_records

_LEAST = 1 << 14  # numbers: smaller inputs are pooled before they are copied
_pooled: Callable[..., tuple[Tensor, Tensor]] = torch.ops.aten.max_pool2d_with_indices.default


def max_pool(module: nn.MaxPool2d, x: Tensor) -> Tensor:
    """What `module` makes of its input."""
    window = _window(module)
    last = _suits(module, x) and _is_faster(x, window)
    out: Tensor = _MaxPool.apply(x, window) if last else type(module).forward(module, x)  # type: ignore[no-untyped-call]
    return out


def _is_faster(x: Tensor, window: tuple[Any, ...]) -> bool:
    """Whether it takes less time with the channels last, the copies included."""
    key = ("pool", rounded_up(len(x)), *x.shape[1:], *map(str, window))
    return bool(remembered(key, partial(_both_ways, x, window), x.device))


def _suits(module: nn.MaxPool2d, x: Tensor) -> bool:
    """Whether torch would pool this channel by channel."""
    return (
        type(x) is Tensor
        and x.dim() == 4
        and x.numel() >= _LEAST
        and x.dtype is torch.float32
        and x.is_cpu
        and x.is_contiguous()
        and x.shape[1] > 1
        and not module.return_indices
        and torch._C._functorch.maybe_current_level() is None
        and torch.autograd.forward_ad._current_level < 0
    )


def _window(module: nn.MaxPool2d) -> tuple[Any, ...]:
    """Kernel, stride, padding, dilation and rounding as the operators take them."""
    sizes = (module.kernel_size, module.stride, module.padding, module.dilation)
    return (*([size, size] if isinstance(size, int) else list(size) for size in sizes), module.ceil_mode)


def _channels_last(x: Tensor, window: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """The largest entries and their places, both with the channels first."""
    out, places = _pooled(x.contiguous(memory_format=torch.channels_last), *window)
    return out.contiguous(), places.contiguous()


def _both_ways(x: Tensor, window: tuple[Any, ...]) -> list[Callable[[], object]]:
    source = torch.Generator().manual_seed(0)
    made = torch.randn(timed_records(x), *x.shape[1:], generator=source).relu_()  # no record chooses
    return [partial(_pooled, made, *window), partial(_channels_last, made, window)]


class _MaxPool(torch.autograd.Function):
    """Max pooling; its backward pass is torch's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: tuple[Any, ...]) -> Tensor:
        out, places = _channels_last(x, window)
        ctx.save_for_backward(x, places)
        ctx.window = window
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        x, places = ctx.saved_tensors
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward.default(g, x, *ctx.window, places)
        return found, None
