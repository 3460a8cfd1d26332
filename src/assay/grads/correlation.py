"""Convolutions in GReDP's `full` frequency domain: a record's gradient is its whole correlation map (Eq. 14-16).

The published method transforms the circular correlation of the padded input and the output gradient, of the padded
input's size H×W, whose leading corner is the kernel's gradient; it clips and adds noise there. The map's norm is at least
the corner's, so clipping by it bounds what is cropped from it as well.

The norm comes from two power spectra (`assay.grads.spectra`); no record's map is built for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.grads.convolution import Convolved
from assay.grads.layers import ConvRule
from assay.grads.spectra import Correlations, Torus, norms
from assay.grads.uses import Use, rounding


def corner(value: Tensor, shape: Sequence[int]) -> Tensor:
    """The leading corner of `value`'s last dimensions that has this shape; `value` itself where it has it already."""
    lead = [slice(None)] * (value.dim() - len(shape))
    return value[(*lead, *map(slice, shape))]


@dataclass(frozen=True, kw_only=True)
class FullCorrelationRule(ConvRule):
    """Convolutions clipped by the norm of their whole correlation map, for any stride, padding and groups.

    With `maps` the weighted sum is that of the maps, [out, in / groups, H, W], for a caller that filters before it takes
    the `corner`; without, it is the kernel's gradient. The bias is as everywhere.
    """

    maps: bool

    def _weight(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, g: Tensor) -> Use:
        if any(step > 1 for step in module.dilation):
            raise UnsupportedModelError(
                f"{module} is dilated: its gradient is no corner of the full correlation map; use domain=kernel"
            )
        x, shape = self._laid_out(module, x, pad=self.maps)
        torus = Torus(tuple(side + 2 * pad for side, pad in zip(x.shape[2:], shape.padding, strict=True)))
        if not self.maps:
            return Cornered(Convolved(shape, x, g), torus)
        seen, given = torus.spectrum(x), torus.spectrum(_spread(g, shape.stride, torus))
        return Correlations(torus, seen.unflatten(1, (shape.groups, -1)), given.unflatten(1, (shape.groups, -1)))


def _spread(g: Tensor, stride: tuple[int, ...], torus: Torus) -> Tensor:
    """The output gradient on the input's grid: zeros between positions. What follows them `Torus.spectrum` adds."""
    if all(step == 1 for step in stride):
        return g
    out = g.new_zeros(*g.shape[:2], *torus.sides)
    steps = [slice(0, step * n, step) for step, n in zip(stride, g.shape[2:], strict=True)]
    out[(slice(None), slice(None), *steps)] = g
    return out


@dataclass(slots=True)
class Cornered:
    """The kernel's gradients, each with the norm of the whole map that it is the corner of."""

    kernel: Convolved
    torus: Torus

    def sq_norm(self) -> Tensor:
        shape, x, g = self.kernel.shape, self.kernel.x, self.kernel.g
        # zeros around the input may as well all be behind it: a shift leaves the power spectrum as it is
        seen = self.torus.power(x, shape.groups)
        given = self.torus.power(_spread(g, shape.stride, self.torus), shape.groups)
        # the sum is over windows: ‖Σ g_t p_tᵀ‖ ≤ ‖g‖ ‖p‖, and a pixel stands in at most prod(kernel) windows
        summing = rounding(g.dtype, math.prod(g.shape[2:])) * math.sqrt(math.prod(shape.kernel))
        norm, lost = norms(self.torus, seen, given, summing)
        return norm.add_(lost).square_()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.kernel.weighted_sum(weights)

    def per_record(self) -> Tensor:
        return self.kernel.per_record()

    def without(self, bad: Tensor) -> Cornered:
        return Cornered(self.kernel.without(bad), self.torus)
