"""A parameter that is used more than once in a pass: tied weights, weights applied repeatedly, packed projections.

A record's gradient is the sum over the uses, and the norm is that of the sum: never that of a single use.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.gradients.arithmetic import inner, rounding
from assay.gradients.uses.base import Apart, Dense, Found, Outer, Rank1, Use
from assay.gradients.uses.tables import Rows, SharedRows


def gathered(found: Found) -> Found:
    """One entry for each parameter: the uses of a parameter that occurs more than once are added up."""
    once = [name for names, _ in found for name in names]
    if len(once) == len(set(once)):
        return found
    repeated = {name for name in once if once.count(name) > 1}
    out: Found = []
    parts: dict[str, list[Use]] = {}
    for names, use in found:
        if repeated.isdisjoint(names):
            out.append((names, use))
            continue
        for name, part in zip(names, use.apart(), strict=True):
            parts.setdefault(name, []).append(part)
    return out + [((name,), Apart([together(uses)])) for name, uses in parts.items()]


def together(uses: Sequence[Use]) -> Use:
    """All uses of one parameter as one: their gradients are added up before anything is clipped."""
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
    """A table that is used by its rows and as a matrix in one pass (tied weights): the gradients are added up."""

    rows: Rows
    outer: Outer

    def sq_norm(self) -> Tensor:
        """‖R + G‖² = ‖R‖² + ‖G‖² + 2⟨R, G⟩, with ⟨e_i rᵀ, g xᵀ⟩ = g_i (r·x): a table of 50,000 rows is never built."""
        a, b = self.rows.sq_norm(), self.outer.ghost()
        picked = self.outer.g.gather(2, self.rows.index.unsqueeze(1).expand(-1, self.outer.g.shape[1], -1))
        cross = (picked * inner(self.outer.x, self.rows.g)).sum((1, 2))
        terms = self.outer.g.shape[1] + self.rows.g.shape[1]
        size = self.rows.size() + self.outer.size()
        return (a + b + 2 * cross).clamp_min(0) + rounding(a.dtype, terms) * size.square()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.rows.weighted_sum(weights) + self.outer.weighted_sum(weights)

    def per_record(self) -> Tensor:
        return self.rows.per_record() + self.outer.per_record()

    def without(self, bad: Tensor) -> Tied:
        return Tied(self.rows.without(bad), self.outer.without(bad))
