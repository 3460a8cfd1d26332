"""One use of a module's parameters in a forward pass, in the cheapest form that still knows every record's gradient.

A `Use` answers three questions: the squared norm of each record's gradient, their weighted sum, and (only when a method
asks) the gradients themselves, one a record. Most uses never build the last: a linear layer's gradient is a sum of
outer products, and the norm and the weighted sum of those need no [records, out, in] tensor.

Norms are safe: where a norm is computed by another order of summation than the sum it bounds, it is raised by a bound
on the rounding error, so that a record whose terms nearly cancel cannot slip past the clipping bound.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_SHORT, _LONG, _BLOCK = 64, 4096, 512
_CHUNK_ELEMENTS = 1 << 22  # per-record gradients built only for their norm are built in pieces of at most 16 MB


class Use(Protocol):
    """Per-record gradients of one parameter, [B, *shape] in meaning, rarely in memory."""

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


def rounding(dtype: torch.dtype, terms: int) -> float:
    """A bound on the relative rounding error of a sum of `terms` products, twice √terms units (probabilistic growth)."""
    return 4.0 * torch.finfo(dtype).eps * math.sqrt(max(1, terms))


_EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}
_TINY = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}


def squares(t: Tensor, plus: float = 0.0) -> Tensor:
    """‖t‖² + plus over the last dimension, raised by what rounding and underflow may have taken from it.

    A sum of n squares loses at most n/2 · eps of itself, whatever the order; a long float32 reduction can lose that much
    (1 % at ten million), so long rows are summed in blocks.
    """
    n = t.shape[-1]
    if n <= _SHORT:
        total: Tensor = torch.linalg.vecdot(t, t)
        steps = n
    elif n <= _LONG:
        total = torch.linalg.vector_norm(t, dim=-1).square_()
        steps = n
    else:
        whole = n // _BLOCK * _BLOCK
        blocks = torch.linalg.vector_norm(t[..., :whole].unflatten(-1, (-1, _BLOCK)), dim=-1)
        total = torch.linalg.vecdot(blocks, blocks)
        if whole < n:
            total += torch.linalg.vecdot(t[..., whole:], t[..., whole:])
        steps = 2 * _BLOCK + n // _BLOCK
    return total.mul_(1 + steps * _EPS[t.dtype] / 2).add_(n * _TINY[t.dtype] + plus)


def _masked(value: Tensor, bad: Tensor) -> Tensor:
    return value.masked_fill(bad.view(-1, *[1] * (value.dim() - 1)), 0.0)


@dataclass(slots=True)
class Dense:
    """Gradients at hand: `values` is [B, *shape]."""

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
        return Dense(_masked(self.values, bad))


@dataclass(slots=True)
class Rank1:
    """g xᵀ for each record: `g` [B, O] and `x` [B, I]."""

    g: Tensor
    x: Tensor

    def sq_norm(self) -> Tensor:
        return squares(self.x).mul_(squares(self.g))  # ‖g xᵀ‖² = ‖g‖² ‖x‖²

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return (self.g * weights).t() @ self.x

    def per_record(self) -> Tensor:
        return self.g.unsqueeze(2) * self.x.unsqueeze(1)

    def without(self, bad: Tensor) -> Rank1:
        return Rank1(_masked(self.g, bad), _masked(self.x, bad))


def keeps_product(positions: int, out: int, inp: int) -> bool | None:
    """Whether Σ_t g_t x_tᵀ is better computed and kept or known by its factors; None where only a clock can tell.

    The product [out, in] is never kept where it takes more than twice the memory of its factors, the Gram matrices
    [positions, positions] are never formed where they take more than the factors.
    """
    factors = positions * (out + inp)
    if positions > out + inp:
        return True
    return None if out * inp <= 2 * factors else False


@dataclass(slots=True)
class Outer:
    """Σ_t g_t x_tᵀ for each record: `g` [B, T, O], `x` [B, T, I]; the weight of a linear map of shape [O, I].

    Two ways. The products themselves, one a record: the weighted sum is then one matrix-vector product. Or the ghost norm
    ‖Σ_t g_t x_tᵀ‖² = Σ_ts ⟨g_t, g_s⟩⟨x_t, x_s⟩ from two Gram matrices, and the ordinary weight gradient of the weighted
    output gradients (Li et al. 2022, "Large language models can be strong differentially private learners"). `keep`
    says which; by itself it keeps what is smaller than the factors.
    """

    g: Tensor
    x: Tensor
    keep: bool | None = None
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
        """The squared norm from Gram matrices, whatever `keep` says: no [records, out, in] tensor is formed."""
        g, x = self.g, self.x
        gg = torch.bmm(g, g.mT)
        xx = torch.bmm(x, x.mT)
        size, lost = self._size(gg.diagonal(dim1=1, dim2=2), xx.diagonal(dim1=1, dim2=2))
        exact = (gg.mul_(xx)).sum((1, 2))
        return exact.clamp_min(0) + rounding(g.dtype, g.shape[1]) * size.square() + lost

    def _size(self, gg: Tensor, xx: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_t ‖g_t‖‖x_t‖, and what inner products below the least number may have lost."""
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
        scaled = (self.g * weights.unsqueeze(2)).flatten(0, 1)
        return scaled.mT @ self.x.flatten(0, 1)

    def per_record(self) -> Tensor:
        return torch.bmm(self.g.mT, self.x) if self._product is None else self._product.values

    def without(self, bad: Tensor) -> Outer:
        return Outer(_masked(self.g, bad), _masked(self.x, bad), self.keep)


@dataclass(slots=True)
class Rows:
    """Rows of a table: record b adds `g[b, t]` to row `index[b, t]` of a [rows, D] parameter (an embedding)."""

    index: Tensor
    g: Tensor
    rows: int

    def sq_norm(self) -> Tensor:
        records = self.g.shape[0]
        key = self.index + self.rows * torch.arange(records, device=self.index.device).unsqueeze(1)
        distinct, place = key.flatten().unique(return_inverse=True)
        sums = self.g.new_zeros(len(distinct), self.g.shape[2]).index_add_(0, place, self.g.flatten(0, 1))
        norm = self.g.new_zeros(records).index_add_(0, distinct // self.rows, sums.square().sum(1)).sqrt_()
        return norm.add_(self.size(), alpha=rounding(self.g.dtype, self.g.shape[1])).square_()

    def size(self) -> Tensor:
        """Σ_t ‖g_t‖ for each record."""
        norms: Tensor = torch.linalg.vector_norm(self.g, dim=2)
        return norms.sum(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = (self.g * weights.unsqueeze(2)).flatten(0, 1)
        return self.g.new_zeros(self.rows, self.g.shape[2]).index_add_(0, self.index.flatten(), scaled)

    def per_record(self) -> Tensor:
        out = self.g.new_zeros(self.g.shape[0], self.rows, self.g.shape[2])
        return out.scatter_add_(1, self.index.unsqueeze(2).expand_as(self.g), self.g)

    def without(self, bad: Tensor) -> Rows:
        return Rows(self.index, _masked(self.g, bad), self.rows)


@dataclass(slots=True)
class SharedRows:
    """Rows of a table where every record uses the same ones (positions): `index` [T], `g` [B, T, D] added to them."""

    index: Tensor
    g: Tensor
    rows: int
    _sums: Dense | None = None
    _distinct: Tensor | None = None

    def _summed(self) -> tuple[Dense, Tensor]:
        """The gradient of each row that is used, [B, distinct, D], and which rows these are."""
        if self._sums is None or self._distinct is None:
            self._distinct, place = self.index.unique(return_inverse=True)
            sums = self.g.new_zeros(self.g.shape[0], len(self._distinct), self.g.shape[2])
            self._sums = Dense(sums.index_add_(1, place, self.g))
        return self._sums, self._distinct

    def sq_norm(self) -> Tensor:
        return self._summed()[0].sq_norm()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        sums, distinct = self._summed()
        table = self.g.new_zeros(self.rows, self.g.shape[2])
        table[distinct] = sums.weighted_sum(weights)
        return table

    def each(self) -> Rows:
        """The same as rows of each record's own."""
        return Rows(self.index.expand(self.g.shape[:2]), self.g, self.rows)

    def per_record(self) -> Tensor:
        return self.each().per_record()

    def without(self, bad: Tensor) -> SharedRows:
        return SharedRows(self.index, _masked(self.g, bad), self.rows)


@dataclass(slots=True)
class Block:
    """Gradients of rows `start` to `stop` of a parameter with `rows` of them (a packed projection); zero elsewhere."""

    use: Use
    start: int
    stop: int
    rows: int

    def sq_norm(self) -> Tensor:
        return self.use.sq_norm()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        part = self.use.weighted_sum(weights)
        whole = part.new_zeros(self.rows, *part.shape[1:])
        whole[self.start : self.stop] = part
        return whole

    def per_record(self) -> Tensor:
        part = self.use.per_record()
        whole = part.new_zeros(len(part), self.rows, *part.shape[2:])
        whole[:, self.start : self.stop] = part
        return whole

    def without(self, bad: Tensor) -> Block:
        return Block(self.use.without(bad), self.start, self.stop, self.rows)


@dataclass(slots=True)
class Stacked:
    """Blocks of one parameter that do not overlap."""

    blocks: Sequence[Block]

    def sq_norm(self) -> Tensor:
        return torch.stack([block.sq_norm() for block in self.blocks]).sum(0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return torch.stack([block.weighted_sum(weights) for block in self.blocks]).sum(0)

    def per_record(self) -> Tensor:
        return torch.stack([block.per_record() for block in self.blocks]).sum(0)

    def without(self, bad: Tensor) -> Stacked:
        return Stacked([block.without(bad) for block in self.blocks])


@dataclass(slots=True)
class Tied:
    """Several uses of one parameter in one pass (tied or repeatedly applied weights): the gradients add up."""

    rows: Rows
    outer: Outer

    def sq_norm(self) -> Tensor:
        """‖R + G‖² = ‖R‖² + ‖G‖² + 2⟨R, G⟩, with ⟨e_i rᵀ, g xᵀ⟩ = g_i (r·x): a table of 50,000 rows is never built."""
        a, b = self.rows.sq_norm(), self.outer.ghost()
        picked = self.outer.g.gather(2, self.rows.index.unsqueeze(1).expand(-1, self.outer.g.shape[1], -1))
        cross = (picked * torch.bmm(self.outer.x, self.rows.g.mT)).sum((1, 2))
        terms = self.outer.g.shape[1] + self.rows.g.shape[1]
        size = self.rows.size() + self.outer.size()
        return (a + b + 2 * cross).clamp_min(0) + rounding(a.dtype, terms) * size.square()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.rows.weighted_sum(weights) + self.outer.weighted_sum(weights)

    def per_record(self) -> Tensor:
        return self.rows.per_record() + self.outer.per_record()

    def without(self, bad: Tensor) -> Tied:
        return Tied(self.rows.without(bad), self.outer.without(bad))


class LayerUse(Protocol):
    """The uses of several parameters of one module, where together is cheaper than one by one."""

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
        """The same, a parameter at a time."""
        ...


@dataclass(slots=True)
class Apart:
    """Parameters that gain nothing from each other's company."""

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
def constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor, made once: turning a Python number into one costs as much as the operation it is for."""
    return torch.tensor(value, dtype=dtype, device=device)


@functools.lru_cache(maxsize=256)
def _affine_constants(
    inputs: int, outputs: int, dtype: torch.dtype, device: torch.device
) -> tuple[float, Tensor, Tensor]:
    """By how much `Affine.norm` raises a norm for rounding, what underflow may have taken from ‖g‖ (raised), and 1."""
    raised = 1 + (inputs + outputs) * _EPS[dtype] / 4
    lost = constant(raised * (outputs * _TINY[dtype]) ** 0.5, dtype, device)
    return raised, lost, constant(1.0, dtype, device)


@dataclass(slots=True)
class Affine:
    """Weight and bias of y = W x + b, one position a record: gradients g xᵀ and g."""

    g: Tensor
    x: Tensor

    def norm(self) -> Tensor:
        """‖g‖ √(‖x‖² + 1): for a model of one layer the fewest operations are what counts."""
        g, x = self.g, self.x
        inputs, outputs = x.shape[1], g.shape[1]
        if max(inputs, outputs) > _LONG:
            return self.sq_norm().sqrt_().unsqueeze(1)
        raised, lost, one = _affine_constants(inputs, outputs, g.dtype, g.device)
        g_norm: Tensor = torch.linalg.vector_norm(g, 2, 1, True)
        x_norm: Tensor = torch.linalg.vector_norm(x, 2, 1, True)
        return x_norm.hypot_(one).mul_(lost.add(g_norm, alpha=raised))  # ‖x, 1‖ · (‖g‖ + lost), raised

    def sq_norm(self) -> Tensor:
        return squares(self.x, plus=1.0).mul_(squares(self.g))  # ‖g‖² (‖x‖² + 1)

    def weighted_sums(self, weights: Tensor) -> Sequence[Tensor]:
        scaled = self.g * weights
        return torch.mm(scaled.t(), self.x), scaled.sum(0)

    def apart(self) -> Sequence[Use]:
        return Rank1(self.g, self.x), Dense(self.g)


def together(uses: Sequence[Use]) -> Use:
    """All uses of one parameter as one use: their gradients add up before anything is clipped."""
    if all(isinstance(u, Block) for u in uses):
        stacked = _stacked([u for u in uses if isinstance(u, Block)])
        if stacked is not None:
            return stacked
    uses = [Outer(u.g.unsqueeze(1), u.x.unsqueeze(1)) if isinstance(u, Rank1) else u for u in uses]
    uses = [u.each() if isinstance(u, SharedRows) else u for u in uses]
    outers = [u for u in uses if isinstance(u, Outer)]
    rows = [u for u in uses if isinstance(u, Rows)]
    if len(outers) + len(rows) < len(uses):
        total = uses[0].per_record()
        for use in uses[1:]:
            total = total + use.per_record()
        return Dense(total)
    one_outer = Outer(torch.cat([u.g for u in outers], 1), torch.cat([u.x for u in outers], 1)) if outers else None
    one_rows = (
        Rows(torch.cat([u.index for u in rows], 1), torch.cat([u.g for u in rows], 1), rows[0].rows) if rows else None
    )
    if one_outer is not None and one_rows is not None:
        return Tied(one_rows, one_outer)
    merged = one_outer or one_rows
    assert merged is not None
    return merged


def _stacked(blocks: Sequence[Block]) -> Stacked | None:
    """The blocks with those of the same rows added up, or None if some overlap in part."""
    by_rows: dict[tuple[int, int], list[Use]] = {}
    for block in blocks:
        by_rows.setdefault((block.start, block.stop), []).append(block.use)
    places = sorted(by_rows)
    if any(stop > start for (_, stop), (start, _) in itertools.pairwise(places)):
        return None
    rows = blocks[0].rows
    return Stacked(
        [Block(u[0] if len(u) == 1 else together(u), start, stop, rows) for (start, stop), u in by_rows.items()]
    )
