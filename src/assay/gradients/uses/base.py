"""One use of a module's parameters in a forward pass, in the cheapest form that still knows every record's gradient.

A `Use` answers three questions: the squared norm of each record's gradient, their weighted sum, and (if a method needs
them) the per-record gradients themselves. Most uses never build the last. A linear layer's gradient is a sum of outer
products, whose norm and weighted sum need no [records, out, in] tensor.

This module has gradients that exist as tensors, and those of linear maps. The others are rows of a table (`tables`),
convolutions (`convolution`), correlations (`assay.gradients.rules.spectra`), and a parameter that is used more than
once (`repeated`). Norms are safe in all of them (`assay.gradients.arithmetic`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from assay.gradients.arithmetic import EPS, LONG, TINY, constant, inner, masked, rounding, squares


class Use(Protocol):
    """The per-record gradients of one parameter. They stand for a tensor [B, *shape], which is rarely built."""

    def sq_norm(self) -> Tensor:
        """Squared l2 norm of each record's gradient, [B]; never below the norm of what `weighted_sum` adds up."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_i weights[i] · gradient_i, in the parameter's shape; weights are [B, 1]."""
        ...

    def per_record(self) -> Tensor:
        """The gradients themselves, [B, *shape]."""
        ...

    def without(self, bad: Tensor) -> Use:
        """The same with the gradients of the records marked in `bad` [B] replaced by zero (they hold NaN or Inf)."""
        ...


class LayerUse(Protocol):
    """The uses of several parameters of one module, which are cheaper together than one by one."""

    def norm(self) -> Tensor:
        """Norm of each record's gradient over all these parameters, [B, 1]."""
        ...

    def sq_norm(self) -> Tensor:
        """Its square, [B]."""
        ...

    def weighted_sums(self, weights: Tensor) -> Sequence[Tensor]:
        """The weighted sum for each parameter; weights are [B, 1]."""
        ...

    def apart(self) -> Sequence[Use]:
        """The use of each parameter."""
        ...


Product = Callable[[Tensor, Tensor], Tensor]
"""gᵀ x for [rows, out] and [rows, in]."""


def by_torch(g: Tensor, x: Tensor) -> Tensor:
    """The product as torch computes it."""
    return torch.mm(g.t(), x)


Found = list[tuple[Sequence[str], LayerUse]]
"""What a pass has recorded: names of parameters, and their use."""


@dataclass(slots=True)
class Dense:
    """Gradients that exist as a tensor: `values` is [B, *shape]."""

    values: Tensor

    def sq_norm(self) -> Tensor:
        if self.values.dim() == 1:  # a parameter that is a single number
            return squares(self.values.unsqueeze(1))
        return squares(self.values.flatten(1))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.values.dim() == 1:
            return torch.dot(self.values, weights[:, 0])
        if self.values.dim() == 2:
            return torch.mv(self.values.t(), weights[:, 0])
        return torch.mv(self.values.flatten(1).t(), weights[:, 0]).view(self.values.shape[1:])

    def per_record(self) -> Tensor:
        return self.values

    def without(self, bad: Tensor) -> Dense:
        return Dense(masked(self.values, bad))


@dataclass(slots=True)
class Rank1:
    """g xᵀ for each record: `g` [B, O] and `x` [B, I]."""

    g: Tensor
    x: Tensor
    product: Product = by_torch

    def sq_norm(self) -> Tensor:
        return squares(self.x).mul_(squares(self.g))  # ‖g xᵀ‖² = ‖g‖² ‖x‖²

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.product(self.g * weights, self.x)

    def per_record(self) -> Tensor:
        return self.g.unsqueeze(2) * self.x.unsqueeze(1)

    def without(self, bad: Tensor) -> Rank1:
        return Rank1(masked(self.g, bad), masked(self.x, bad), self.product)


def keeps_product(positions: int, out: int, inp: int) -> bool | None:
    """Whether to compute and keep Σ_t g_t x_tᵀ rather than its factors; None if only a measurement can tell.

    The product [out, in] is not kept if it takes more than twice the memory of its factors. The Gram matrices
    [positions, positions] are not formed if they take more memory than the factors.
    """
    factors = positions * (out + inp)
    if positions > out + inp:
        return True
    return None if out * inp <= 2 * factors else False


@dataclass(slots=True)
class Outer:
    """Σ_t g_t x_tᵀ for each record: `g` [B, T, O], `x` [B, T, I]; the weight of a linear map of shape [O, I].

    There are two ways. The first keeps the product of each record, so that the weighted sum is one matrix-vector
    product. The second is the ghost norm ‖Σ_t g_t x_tᵀ‖² = Σ_ts ⟨g_t, g_s⟩⟨x_t, x_s⟩ from two Gram matrices, and then
    the ordinary weight gradient of the weighted output gradients (Li et al. 2022, "Large language models can be strong
    differentially private learners", arXiv:2110.05679). `keep` chooses; by default products are kept if they are
    smaller than the factors.
    """

    g: Tensor
    x: Tensor
    keep: bool | None = None
    product: Product = by_torch
    _product: Dense | None = None

    def sq_norm(self) -> Tensor:
        keep = self.keep
        if keep is None:
            positions, out, inp = self.shape
            keep = out * inp <= positions * (out + inp)
        if not keep:
            return self.ghost()
        self._product = Dense(torch.bmm(self.g.mT, self.x))
        return self._product.sq_norm()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Positions, outputs and inputs."""
        return self.g.shape[1], self.g.shape[2], self.x.shape[2]

    def ghost(self) -> Tensor:
        """The squared norm from Gram matrices, whatever `keep` says. No [records, out, in] tensor is formed."""
        g, x = self.g, self.x
        gg, xx = inner(g, g), inner(x, x)
        size, lost = self._size(gg.diagonal(dim1=1, dim2=2), xx.diagonal(dim1=1, dim2=2))
        exact = (gg.mul_(xx)).sum((1, 2))
        return exact.clamp_min(0) + rounding(g.dtype, 2 * g.shape[1]) * size.square() + lost

    def _size(self, gg: Tensor, xx: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_t ‖g_t‖‖x_t‖, and what inner products may have lost to underflow."""
        tiny = torch.finfo(gg.dtype).tiny
        gg, xx = gg.clamp_min(0) + self.g.shape[2] * tiny, xx.clamp_min(0) + self.x.shape[2] * tiny
        least = xx.sqrt().sum(1).square() * (self.g.shape[2] * tiny) + gg.sqrt().sum(1).square() * (
            self.x.shape[2] * tiny
        )
        return (gg * xx).sqrt().sum(1), least

    def size(self) -> Tensor:
        """Σ_t ‖g_t‖‖x_t‖ for each record."""
        return self._size(torch.linalg.vecdot(self.g, self.g), torch.linalg.vecdot(self.x, self.x))[0]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._product is not None:
            return self._product.weighted_sum(weights)
        scaled, x = self.g * weights.unsqueeze(2), self.x
        if self.product is not by_torch and x.stride(0) < x.stride(1):  # rows in the order of memory need no copy
            scaled, x = scaled.transpose(0, 1), x.transpose(0, 1)
        return self.product(scaled.flatten(0, 1), x.flatten(0, 1))

    def per_record(self) -> Tensor:
        return torch.bmm(self.g.mT, self.x) if self._product is None else self._product.values

    def without(self, bad: Tensor) -> Outer:
        return Outer(masked(self.g, bad), masked(self.x, bad), self.keep, self.product)


@dataclass(slots=True)
class Reshaped:
    """The gradients of `use` as those of a parameter of another shape with the same numbers."""

    use: Use
    shape: torch.Size

    def sq_norm(self) -> Tensor:
        return self.use.sq_norm()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.use.weighted_sum(weights).view(self.shape)

    def per_record(self) -> Tensor:
        values = self.use.per_record()
        return values.reshape(len(values), *self.shape)

    def without(self, bad: Tensor) -> Reshaped:
        return Reshaped(self.use.without(bad), self.shape)


@dataclass(slots=True)
class Apart:
    """Parameters whose uses are computed one by one."""

    uses: Sequence[Use]

    def norm(self) -> Tensor:
        return self.sq_norm().sqrt_().unsqueeze(1)

    def sq_norm(self) -> Tensor:
        total = self.uses[0].sq_norm()
        for use in self.uses[1:]:
            total = total + use.sq_norm()
        return total

    def weighted_sums(self, weights: Tensor) -> Sequence[Tensor]:
        return [use.weighted_sum(weights) for use in self.uses]

    def apart(self) -> Sequence[Use]:
        return self.uses


@functools.lru_cache(maxsize=256)
def _affine_constants(
    inputs: int, outputs: int, dtype: torch.dtype, device: torch.device
) -> tuple[float, Tensor, Tensor]:
    """The factor by which `Affine.norm` raises a norm for rounding, what ‖g‖ may have lost to underflow, and 1."""
    raised = 1 + (inputs + outputs) * EPS[dtype] / 4
    lost = constant(raised * (outputs * TINY[dtype]) ** 0.5, dtype, device)
    return raised, lost, constant(1.0, dtype, device)


@dataclass(slots=True)
class Affine:
    """Weight and bias of y = W x + b with one position per record: gradients g xᵀ and g."""

    g: Tensor
    x: Tensor
    product: Product = by_torch

    def norm(self) -> Tensor:
        """‖g‖ √(‖x‖² + 1), in as few operations as possible: they are what a model of one layer spends its time on."""
        g, x = self.g, self.x
        inputs, outputs = x.shape[1], g.shape[1]
        if max(inputs, outputs) > LONG:
            return self.sq_norm().sqrt_().unsqueeze(1)
        raised, lost, one = _affine_constants(inputs, outputs, g.dtype, g.device)
        g_norm: Tensor = torch.linalg.vector_norm(g, 2, 1, True)
        x_norm: Tensor = torch.linalg.vector_norm(x, 2, 1, True)
        return x_norm.hypot_(one).mul_(lost.add(g_norm, alpha=raised))  # ‖x, 1‖ · (‖g‖ + lost), raised

    def sq_norm(self) -> Tensor:
        return squares(self.x, plus=1.0).mul_(squares(self.g))  # ‖g‖² (‖x‖² + 1)

    def weighted_sums(self, weights: Tensor) -> Sequence[Tensor]:
        scaled = self.g * weights
        return self.product(scaled, self.x), scaled.sum(0)

    def apart(self) -> Sequence[Use]:
        return Rank1(self.g, self.x, self.product), Dense(self.g)
