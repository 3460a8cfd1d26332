"""Per-record gradients of convolution weights, one to three dimensions, any stride, padding, dilation and groups.

The engine takes the cheapest way for the shape:

- The backend's weight gradient with the records folded into the groups gives one gradient per record, for little more
  than the cost of their sum. If these are smaller than their factors they are kept, and the clipped sum is one
  matrix-vector product. The same gradients follow from the input's windows by multiplying matrices. Where there are few
  channels, backends are faster if the kernel's columns become channels. Only a measurement can tell which is best
  (`assay.gradients.record_grads`).
- If they are larger (many channels on small maps), the ghost norm ‖Σ_t g_t p_tᵀ‖² comes from the two Gram matrices of
  output gradients and patches, and the sum is the ordinary weight gradient of the scaled output gradients. Where Gram
  matrices are no larger than the factors, a measurement may find this faster in any case.
- If neither is small, the norm is computed the first way in pieces, and the sum as the ordinary weight gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.gradients.arithmetic import CHUNK_ELEMENTS as _CHUNK_ELEMENTS
from assay.gradients.arithmetic import inner, masked, rounding, squares
from assay.gradients.uses.base import Dense, Outer, Reshaped, Use

_CHANNELS = 16  # that backends compute with at once


@dataclass(frozen=True, slots=True)
class ConvShape:
    """The shape of a convolution. Padding other than zeros is applied before."""

    weight: torch.Size
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def kernel(self) -> tuple[int, ...]:
        """The window's sides."""
        return tuple(self.weight[2:])

    def weight_gradients(self, x: Tensor, g: Tensor) -> Tensor:
        """The per-record weight gradients, [B, *weight], by the backend with the records folded into the groups."""
        B = x.shape[0]
        folded_x, folded_g = x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:])
        return self.gradient(folded_x, folded_g, B).view(B, *self.weight)

    @property
    def has_windows(self) -> bool:
        """Whether `window_gradients` applies: two dimensions, one group."""
        return len(self.stride) == 2 and self.groups == 1

    def window_gradients(self, x: Tensor, g: Tensor) -> Tensor:
        """The same with channels last, [B, out, height, width, in]: output gradients times the windows of the input."""
        x = F.pad(x, [p for pad in reversed(self.padding) for p in (pad, pad)]).permute(0, 2, 3, 1)
        B, out, channels = x.shape[0], g.shape[1], x.shape[3]
        each, down, right, across = x.stride()
        size = (B, *g.shape[2:], *self.kernel, channels)
        step = (down * self.stride[0], right * self.stride[1], down * self.dilation[0], right * self.dilation[1])
        windows = x.as_strided(size, (each, *step, across)).reshape(B, -1, math.prod(self.kernel) * channels)
        return torch.bmm(g.flatten(2), windows).view(B, out, *self.kernel, channels)

    @property
    def has_columns(self) -> bool:
        """Whether `column_gradients` applies: few channels, windows without holes."""
        return self.has_windows and self.weight[1] < _CHANNELS and set(self.dilation) == {1}

    def column_gradients(self, x: Tensor, g: Tensor) -> Tensor:
        """The same with the kernel's columns as channels, [B, out, channels, rows].

        Backends compute these gradients for several channels at a time, and waste that if there are fewer. So every
        column of the kernel becomes a channel, which holds the input moved by that column. With a stride that divides
        the kernel's height, every phase of the rows becomes one as well. Channels of zeros fill up the last block.
        """
        B, (height, width) = len(x), g.shape[2:]
        phases, rows = self._phases, self.kernel[0] // self._phases
        x = F.pad(x, [p for pad in reversed(self.padding) for p in (pad, pad)])
        each, across, down, right = x.stride()
        high = height - 1 + rows if phases > 1 else (height - 1) * self.stride[0] + rows
        size = (B, phases, self.kernel[1], x.shape[1], high, width)
        used = math.prod(size[1:4])
        moved = x.new_zeros(B, -(-used // _CHANNELS) * _CHANNELS, high, width)
        steps = (each, down, right, across, down * phases, right * self.stride[1])
        moved[:, :used].view(size).copy_(x.as_strided(size, steps))
        weight = torch.Size((self.weight[0], moved.shape[1], rows, 1))
        folded = ConvShape(weight, (1 if phases > 1 else self.stride[0], 1), (0, 0), (1, 1), 1)
        return folded.weight_gradients(moved, g).squeeze(-1)

    @property
    def _phases(self) -> int:
        return self.stride[0] if self.kernel[0] % self.stride[0] == 0 else 1

    def from_columns(self, values: Tensor) -> Tensor:
        """What `column_gradients` returned, in the order of the kernel: [..., out, in, height, width]."""
        used = self._phases * self.kernel[1] * self.weight[1]
        apart: Tensor = values[..., :used, :].unflatten(-2, (self._phases, self.kernel[1], self.weight[1]))
        return apart.movedim((-2, -1, -4, -3), (-4, -3, -2, -1)).flatten(-3, -2)

    @property
    def has_patches(self) -> bool:
        """Whether windows touch without overlap, so that the convolution is a linear map of patches."""
        return self.stride == self.kernel and self.groups == 1 and not any(self.padding) and set(self.dilation) == {1}

    def patches(self, x: Tensor, g: Tensor) -> Tensor:
        """The patches of the input, [B, positions, in · window], where `has_patches`."""
        dims = len(self.kernel)
        for i, (side, k) in enumerate(zip(g.shape[2:], self.kernel, strict=True)):
            x = x.narrow(2 + 2 * i, 0, side * k).unflatten(2 + 2 * i, (side, k))
        places, window = [2 + 2 * i for i in range(dims)], [3 + 2 * i for i in range(dims)]
        return x.permute(0, *places, 1, *window).flatten(1 + dims).flatten(1, dims)

    def summed_gradient(self, x: Tensor, g: Tensor) -> Tensor:
        """The ordinary weight gradient, summed over records."""
        return self.gradient(x, g, 1)

    def gradient(self, x: Tensor, g: Tensor, fold: int) -> Tensor:
        """The weight gradient with `fold` records in the channels, side by side: [fold · weight[0], ...]."""
        weight = x.new_empty(fold * self.weight[0], *self.weight[1:])  # only its shape is used
        outputs: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            g,
            x,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * len(self.stride),
            fold * self.groups,
            (False, True, False),
        )
        return outputs[1]

    def patch_gram(self, x: Tensor, *, stepwise: bool = False) -> Tensor:
        """Inner products of all pairs of input windows, [B·groups, positions, positions].

        Sums the Gram matrix of single input points over the window's offsets: ⟨p_t, p_s⟩ = Σ_δ ⟨x_{t+δ}, x_{s+δ}⟩. So
        the channels are contracted once, and not for every offset.

        Args:
            x: The input.
            stepwise: Leave out the padding, and sum over the window's columns, then over its rows: fewer operations,
                whose last bits differ.
        """
        padding = self.padding if stepwise else (0,) * len(self.padding)
        if not stepwise:
            x = F.pad(x, [p for pad in reversed(self.padding) for p in (pad, pad)])
        x = x.reshape(x.shape[0] * self.groups, x.shape[1] // self.groups, *x.shape[2:])
        sides, dims = x.shape[2:], range(len(self.kernel))
        points = x.flatten(2)
        gram = inner(points.mT, points.mT).view(x.shape[0], *sides, *sides)
        for over in reversed([(i,) for i in dims]) if stepwise else [tuple(dims)]:
            gram = self._summed_over(gram, over, padding)
        positions = math.prod(gram.shape[1 : 1 + len(dims)])
        return gram.view(x.shape[0], positions, positions)

    def _summed_over(self, gram: Tensor, over: Sequence[int], padding: Sequence[int]) -> Tensor:
        """A Gram matrix [B, *sides, *sides] with inner products of windows in these dimensions, in place of points."""
        half, size = len(self.kernel), list(gram.shape)
        reached = {i: self._reached(i, size[1 + i], padding[i]) for i in over}
        for i, (count, _) in reached.items():
            size[1 + i] = size[1 + half + i] = count
        total = gram.new_zeros(size)
        for offset in itertools.product(*(reached[i][1] for i in over)):
            to, of = [slice(None)] * len(size), [slice(None)] * len(size)
            for i, (window, point) in zip(over, offset, strict=True):
                to[1 + i] = to[1 + half + i] = window
                of[1 + i] = of[1 + half + i] = point
            total[tuple(to)] += gram[tuple(of)]
        return total

    def _reached(self, i: int, side: int, padding: int) -> tuple[int, list[tuple[slice, slice]]]:
        """How many windows there are in a dimension, and for each offset those with a point, and the points."""
        stride, dilation = self.stride[i], self.dilation[i]
        starts = [k * dilation - padding for k in range(self.kernel[i])]
        count = (side + padding - 1 - starts[-1]) // stride + 1
        found = []
        for start in starts:
            first, end = max(0, -(start // stride)), min(count, (side - 1 - start) // stride + 1)
            if first < end:
                points = slice(first * stride + start, (end - 1) * stride + start + 1, stride)
                found.append((slice(first, end), points))
        return count, found


@dataclass(slots=True)
class Convolved:
    """The weight of a convolution by its factors: input `x` and output gradient `g`, for kernels too large to keep.

    With `quick`, norms come from Gram matrices in any case, whose additions are done in the quicker order.
    """

    shape: ConvShape
    x: Tensor
    g: Tensor
    quick: bool = False

    def sq_norm(self) -> Tensor:
        out, window = self.shape.weight[0] // self.shape.groups, math.prod(self.shape.weight[1:])
        positions = math.prod(self.g.shape[2:])
        ghost = self.quick or positions * (out + window) <= out * window
        return self.raised(self._ghost() if ghost else torch.cat([Dense(part).sq_norm() for part in self.pieces()]))

    def raised(self, sq: Tensor) -> Tensor:
        """Squared norms, raised in place by what another order of summation may have taken from them."""
        window, positions = math.prod(self.shape.weight[1:]), math.prod(self.g.shape[2:])
        # ‖Σ g_t p_tᵀ‖ ≤ Σ ‖g_t‖‖p_t‖ ≤ ‖g‖ ‖p‖, and a pixel stands in at most prod(kernel) windows
        gg, xx = squares(self.g.flatten(1)), squares(self.x.flatten(1)).mul_(math.prod(self.shape.kernel))
        # inner products may have lost this much to underflow; Σ_t ‖p_t‖ ≤ √positions ‖p‖
        tiny = positions * torch.finfo(self.g.dtype).tiny
        sq = sq.add_(gg * xx, alpha=rounding(self.g.dtype, positions))
        return sq.add_(xx, alpha=self.shape.weight[0] * tiny).add_(gg, alpha=window * self.shape.groups * tiny)

    def _ghost(self) -> Tensor:
        B, groups = self.x.shape[0], self.shape.groups
        g = self.g.reshape(B * groups, self.g.shape[1] // groups, -1)
        both = inner(g.mT, g.mT).mul_(self.shape.patch_gram(self.x, stepwise=self.quick))
        return both.sum((1, 2)).clamp_min_(0).view(B, groups).sum(1)

    def pieces(self) -> Iterator[Tensor]:
        """The gradients of a few records at a time."""
        step = max(1, _CHUNK_ELEMENTS // math.prod(self.shape.weight))
        for x, g in zip(self.x.split(step), self.g.split(step), strict=True):
            yield self.shape.weight_gradients(x, g)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = self.g * weights.view(-1, *[1] * (self.g.dim() - 1))  # [B, 1] to [B, 1, ..., 1]
        return self.shape.summed_gradient(self.x, scaled)

    def per_record(self) -> Tensor:
        return self.shape.weight_gradients(self.x, self.g)

    def without(self, bad: Tensor) -> Convolved:
        return Convolved(self.shape, masked(self.x, bad), masked(self.g, bad), self.quick)


@dataclass(slots=True)
class Arranged(Dense):
    """Gradients in another order than the kernel's; `order` puts [..., *values.shape[1:]] into that of the kernel."""

    order: Callable[[Tensor], Tensor]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.order(Dense.weighted_sum(self, weights))

    def per_record(self) -> Tensor:
        return self.order(self.values)

    def without(self, bad: Tensor) -> Arranged:
        return Arranged(masked(self.values, bad), self.order)


def channels_first(values: Tensor) -> Tensor:
    """[..., out, height, width, in] as [..., out, in, height, width]."""
    return values.movedim(-1, -3)


Way = Callable[[ConvShape, Tensor, Tensor], Use]
"""One way to a convolution's gradients, from its shape, its input and the gradient of its output."""
Choice = Callable[[ConvShape, Tensor, Tensor], Way]
"""Which way to take."""


def by_groups(shape: ConvShape, x: Tensor, g: Tensor) -> Dense:
    """With the records folded into the groups."""
    return Dense(shape.weight_gradients(x, g))


def by_windows(shape: ConvShape, x: Tensor, g: Tensor) -> Dense:
    """By the windows of the input."""
    return Arranged(shape.window_gradients(x, g), channels_first)


def by_columns(shape: ConvShape, x: Tensor, g: Tensor) -> Dense:
    """With the kernel's columns as channels."""
    return Arranged(shape.column_gradients(x, g), shape.from_columns)


def by_factors(shape: ConvShape, x: Tensor, g: Tensor) -> Convolved:
    """By the norms alone, and the ordinary weight gradient."""
    return Convolved(shape, x, g)


def by_grams(shape: ConvShape, x: Tensor, g: Tensor) -> Convolved:
    """The same with norms from Gram matrices, in the quicker order."""
    return Convolved(shape, x, g, quick=True)


def by_patches(shape: ConvShape, x: Tensor, g: Tensor) -> Reshaped:
    """As a linear map of the input's patches."""
    return Reshaped(Outer(g.flatten(2).mT, shape.patches(x, g)), shape.weight)


_WINDOWS = 4  # times the memory of input and output gradient: larger ones are never the fastest way


def ways(shape: ConvShape, x: Tensor, g: Tensor) -> list[Way]:
    """All ways that apply to this input and output gradient and may be the fastest; the first for seeded runs."""
    factors = math.prod(x.shape[1:]) + math.prod(g.shape[1:])
    few_points = math.prod(x.shape[2:]) ** 2 + math.prod(g.shape[2:]) ** 2 <= factors
    if math.prod(shape.weight) > 5 * factors:
        if shape.has_patches:
            return [by_patches]
        return [by_factors, by_grams] if few_points else [by_factors]
    small = math.prod(shape.weight[1:]) * math.prod(g.shape[2:]) <= _WINDOWS * factors
    others: dict[Way, bool] = {
        by_windows: shape.has_windows and small,
        by_columns: shape.has_columns,
        by_grams: few_points,
    }
    return [by_groups, *(way for way, applies in others.items() if applies)]


def same_way(shape: ConvShape, x: Tensor, g: Tensor) -> Way:
    """Always the first way, for runs that must repeat to the last bit."""
    return ways(shape, x, g)[0]


def convolved(shape: ConvShape, x: Tensor, g: Tensor, choose: Choice = same_way) -> Use:
    """The cheapest form for this shape (see the module's docstring)."""
    return choose(shape, x, g)(shape, x, g)
