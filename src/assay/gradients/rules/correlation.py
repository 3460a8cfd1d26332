"""Convolutions in GReDP's `full` frequency domain: a record's gradient is its whole correlation map (Eq. 14-16).

The published method transforms the circular correlation of the padded input and the output gradient. It has the padded
input's size H×W, and its leading corner is the kernel's gradient. The method clips and adds noise there. The map's norm
is at least the corner's, so clipping by it also bounds what is cropped from it.

The norm comes from two power spectra (`assay.gradients.rules.spectra`), without building a record's map.

If white noise on the map is followed by a low-pass filter, and only the corner is kept, no map is built at all. The
corner of a filtered map m is E m, where E is [corner, map] with E Eᵀ = A = V Λ Vᵀ, and A[u, v] is the kernel of the
filter applied twice at u - v. U = Λ^-½ Vᵀ E has orthonormal rows: U m is no longer than m, white noise on m is white
noise of the same scale on U m, and V Λ^½ U m is the corner. So the sum is taken in the coordinates U m (`Filtered`), as
many as the corner has, and `restored` after the noise. This has the distribution of adding noise to the map, filtering
and cropping. As a function of that release it is no less private.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.gradients.arithmetic import corner, rounding
from assay.gradients.rules.layers import ConvRule
from assay.gradients.rules.spectra import Correlations, Torus, by_frequency, norms
from assay.gradients.uses.base import Use
from assay.gradients.uses.convolution import Convolved
from assay.mechanisms.frequencies import leading_frequencies, low_frequencies


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """The coordinates of a filtered map's corner (see above), which give a weight of this shape."""

    shape: torch.Size
    kept: Tensor
    """Which frequencies of the half spectrum the filter keeps, [frequencies], true or false."""
    analysis: Tensor
    """U over those, [coordinates, 2, kept]: real and imaginary parts."""
    synthesis: Tensor
    """V Λ^½ transposed, [coordinates, corner]."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which low-pass filter follows the noise (`assay.methods.denoise.lowpass`)."""

    rho: float
    one_sided: bool = False

    def gains(self, sides: tuple[int, ...]) -> Tensor:
        """What it leaves of each frequency of the half spectrum, from 0 to 1."""
        return leading_frequencies(sides, self.rho) if self.one_sided else low_frequencies(sides, self.rho).double()


@functools.lru_cache(maxsize=256)
def basis(
    shape: torch.Size, sides: tuple[int, ...], filtering: Filter, dtype: torch.dtype, device: torch.device
) -> Basis:
    """The basis for maps with these sides, of which the filter keeps ρ and the crop a kernel; computed in float64."""
    torus, size = Torus(sides), tuple(shape[2:])
    gains = filtering.gains(sides)
    kept = gains > 0
    spike = torch.zeros(math.prod(size), *sides, dtype=torch.float64)
    places = torch.cartesian_prod(*map(torch.arange, size)).view(-1, len(size))
    spike[(torch.arange(len(spike)), *places.unbind(1))] = 1.0
    rows = torus.spectrum(spike).mul_(gains)  # the rows of E: each is one place of the corner, filtered
    values, vectors = torch.linalg.eigh(corner(torus.signal(rows * gains), size).flatten(1))
    real = values > 1e-9 * values[-1]  # if there are fewer frequencies than places, some directions have no map
    root = values[real].sqrt()
    whitened = (vectors[:, real] / root).T.to(rows.dtype) @ rows.flatten(1)
    # ⟨row, m⟩ over all frequencies is Σ count · Re(conj(roŵ) m̂) over the half that is kept of them
    counted = (whitened * torus.counts(rows.real).expand(rows.shape[1:]).flatten())[:, kept.flatten()]
    return Basis(
        shape,
        kept.flatten().to(device),
        torch.stack([counted.real, counted.imag], 1).to(device, dtype),
        (vectors[:, real] * root).T.contiguous().to(device, dtype),
    )


def restored(value: Tensor, form: torch.Size | Basis) -> Tensor:
    """A parameter's gradient, from coordinates or from a map whose leading corner it is."""
    if isinstance(form, Basis):
        return (value @ form.synthesis).view(form.shape)
    return corner(value, form).contiguous()


@dataclass(slots=True)
class Filtered(Correlations):
    """Maps of which only the filtered corner is used: the norm is that of the whole map, the sum is in coordinates."""

    basis: Basis

    def sq_norm(self) -> Tensor:
        norm, lost = self.norms(rounding(self.x.real.dtype, 2 * len(self.basis.kept)))
        return norm.add_(lost).square_()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        kept, (groups, inputs) = self.basis.kept, self.x.shape[1:3]
        scaled = self.g.flatten(3)[..., kept] * weights.view(-1, 1, 1, 1)
        spectra = torch.bmm(by_frequency(scaled).mH, by_frequency(self.x.flatten(3)[..., kept]))
        parts = torch.view_as_real(spectra).view(groups, -1, self.g.shape[2] * inputs, 2).permute(0, 3, 1, 2)
        found = self.basis.analysis.flatten(1) @ parts.reshape(groups, -1, self.g.shape[2] * inputs)
        return found.mT.flatten(0, 1).mul(math.sqrt(self.torus.points))

    def whole(self) -> Correlations:
        """The maps themselves."""
        return Correlations(self.torus, self.x, self.g)

    def without(self, bad: Tensor) -> Filtered:
        clean = self.whole().without(bad)
        return Filtered(self.torus, clean.x, clean.g, self.basis)


@dataclass(frozen=True, kw_only=True)
class FullCorrelationRule(ConvRule):
    """Convolutions clipped by the norm of their whole correlation map, for any stride, padding and groups.

    With `maps`, the weighted sum is that of the maps, [out, in / groups, H, W], for a caller that changes them before
    it takes the `corner`. With `rho`, it is in coordinates of the corner that a low-pass filter leaves, to be
    `restored`. With neither, it is the kernel's gradient. The bias is that of any convolution.
    """

    maps: bool
    rho: float | None = None
    one_sided: bool = False

    def _weight(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, g: Tensor) -> Use:
        if any(step > 1 for step in module.dilation):
            raise UnsupportedModelError(
                f"{module} is dilated: its gradient is not a corner of the full correlation map; use domain=kernel"
            )
        x, shape = self.laid_out(module, x, pad=self.maps or self.rho is not None)
        torus = Torus(tuple(side + 2 * pad for side, pad in zip(x.shape[2:], shape.padding, strict=True)))
        if not self.maps and self.rho is None:
            return Cornered(Convolved(shape, x, g), torus)
        seen, given = torus.spectrum(x), torus.spectrum(_spread(g, shape.stride, torus))
        seen, given = seen.unflatten(1, (shape.groups, -1)), given.unflatten(1, (shape.groups, -1))
        if self.rho is None:
            return Correlations(torus, seen, given)
        shape_of, filtering = module.weight.shape, Filter(self.rho, self.one_sided)
        return Filtered(torus, seen, given, basis(shape_of, torus.sides, filtering, x.dtype, x.device))


def _spread(g: Tensor, stride: tuple[int, ...], torus: Torus) -> Tensor:
    """The output gradient on the input's grid, with zeros between positions. `Torus.spectrum` adds those at the end."""
    if all(step == 1 for step in stride):
        return g
    out = g.new_zeros(*g.shape[:2], *torus.sides)
    steps = [slice(0, step * n, step) for step, n in zip(stride, g.shape[2:], strict=True)]
    out[(slice(None), slice(None), *steps)] = g
    return out


@dataclass(slots=True)
class Cornered:
    """The kernel's gradients, each with the norm of the whole map whose corner it is."""

    kernel: Convolved
    torus: Torus

    def sq_norm(self) -> Tensor:
        shape, x, g = self.kernel.shape, self.kernel.x, self.kernel.g
        # the zeros around the input may all be put behind it: a shift does not change the power spectrum
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
