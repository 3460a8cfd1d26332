"""Clipped gradients as whole numbers, so that their sum and its bound are exact (`assay.mechanisms.exact`).

Each record's gradient is scaled in float32 and rounded to a vector q of whole numbers of units. Two things are then
exact, however the floating-point numbers were computed before:

- ‖q‖² ≤ (C/u)². The squares are added up in float64 and compared with the bound. A record that fails the test counts
  as zero. The test cannot be wrong: rounding is monotone and no term is negative, so a computed sum of at most
  (C/u)² < 2⁴³ has no partial sum above that, and whole numbers below 2⁵³ are added and squared without rounding.
- Σ q over the records. All partial sums are whole numbers below 2⁵³, so the result is the same in any order.

Whether a record passes, and its q, follow from that record alone, provided that its gradient does:
`assay.gradients.proof.position`.

The scale leaves a margin for rounding: ‖q‖ ≤ ‖v‖ + √d/2 for d coordinates v before rounding. So rounding to the grid
makes no record fail the test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from assay.errors import ConfigError
from assay.gradients.clip_rules import ClipRule
from assay.gradients.record_grads import RecordGrads
from assay.gradients.uses.base import Rank1, Use
from assay.gradients.uses.convolution import Arranged, Convolved, by_windows
from assay.mechanisms.exact import Grid

_AT_ONCE = 1 << 16  # numbers of a block: with their float64 copy they stay in a core's cache
_MARGIN = 1 - 2.0**-16  # of the bound: more than norms, weights and products lose to rounding in float32
_LEAST_LEFT = 0.5  # of the bound, after subtracting the rounding of all coordinates

Blocks = Iterator[Tensor]
"""The scaled gradients of all records, some coordinates at a time: [B, n]. The next block overwrites the last."""


def clipped_sum(grads: RecordGrads, clip: ClipRule, groups: list[int], grid: Grid) -> tuple[dict[str, Tensor], Tensor]:
    """The sum of clipped gradients in float64, whole multiples of the grid's unit.

    Guarantee: one record moves the sum by at most the grid's bound, in exact arithmetic. A gradient that holds NaN or
    Inf counts as zero.

    Args:
        grads: The gradients of a batch.
        clip: The clipping rule.
        groups: The clipping group of each layer.
        grid: The unit and the bound.

    Returns:
        The sum for each parameter, and the norms [B, L] before clipping.

    Raises:
        ConfigError: The model has so many parameters that rounding them to the grid would take half of the bound.
    """
    norms = grads.plain_norms(groups)
    weights = clip.weights(norms) * (_target(grads, grid) / grid.bound)
    bad = ~torch.isfinite(norms).all(1) | ~torch.isfinite(weights).all(1)
    grads.nonfinite += int(bad[: grads.records - grads.padding].sum())
    bad[grads.records - grads.padding :] = True
    while True:
        totals, squares = _added(grads, weights, groups, bad)
        over = ~(squares <= grid.most) & ~bad  # also what is not a number
        if not bool(over.any()):
            return {name: total.mul_(grid.unit) for name, total in totals.items()}, norms
        bad |= over


def rounded(grads: RecordGrads, clip: ClipRule, groups: list[int], grid: Grid) -> dict[str, Tensor]:
    """The whole numbers of every record for each parameter, [B, n], without the test of their norm."""
    norms = grads.plain_norms(groups)
    weights = clip.weights(norms) * (_target(grads, grid) / grid.bound)
    return {
        name: torch.cat([block.round() for block in blocks], 1) for name, blocks, _ in _scaled(grads, weights, groups)
    }


def _target(grads: RecordGrads, grid: Grid) -> float:
    """The norm in units that clipped gradients are scaled to."""
    most = math.sqrt(grid.most)
    numbers = sum(p.numel() for p in grads.parameters.values())
    left = most * _MARGIN - math.sqrt(numbers) / 2
    if left < _LEAST_LEFT * most:
        raise ConfigError("exact", f"{numbers} trainable parameters", f"at most {int(most) ** 2} with exact noise")
    return left


def _added(grads: RecordGrads, weights: Tensor, groups: list[int], bad: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Σ q for every parameter and ‖q‖² for every record, without the records marked in `bad`."""
    squares = torch.zeros(grads.records, dtype=torch.float64)
    ones = torch.ones(grads.records, dtype=torch.float64)
    whole = torch.empty(_AT_ONCE, dtype=torch.float64)
    left_out = bad.nonzero().flatten()
    totals: dict[str, Tensor] = {}
    for name, blocks, shaped in _scaled(grads, weights, groups):
        total = torch.empty(grads.parameters[name].numel(), dtype=torch.float64)
        start = 0
        for block in blocks:
            block.round_()
            if len(left_out):
                block[left_out] = 0.0
            if block.numel() > len(whole):
                whole = torch.empty(block.numel(), dtype=torch.float64)
            q = whole[: block.numel()].view(block.shape).copy_(block)
            end = start + block.shape[1]
            torch.mv(q.t(), ones, out=total[start:end])
            squares.addmv_(q.mul_(q), torch.ones(block.shape[1], dtype=torch.float64))
            start = end
        totals[name] = shaped(total)
    for name, parameter in grads.parameters.items():
        if name not in totals:
            totals[name] = torch.zeros(parameter.shape, dtype=torch.float64)
    return {name: totals[name] for name in grads.parameters}, squares


def _scaled(
    grads: RecordGrads, weights: Tensor, groups: list[int]
) -> Iterator[tuple[str, Blocks, Callable[[Tensor], Tensor]]]:
    """Every parameter's scaled gradients in blocks, and how their sum becomes the parameter's shape."""
    for names, use in grads.uses:
        column = weights[:, groups[grads.layer_of[names[0]]], None]
        for name, part in zip(names, use.apart(), strict=True):
            yield name, *_in_blocks(part, column, grads.parameters[name].shape)


def _in_blocks(use: Use, weights: Tensor, shape: torch.Size) -> tuple[Blocks, Callable[[Tensor], Tensor]]:
    if isinstance(use, Rank1):
        return _outer(use.g * weights, use.x), lambda total: total.view(shape)
    if isinstance(use, Convolved) and use.shape.has_windows:
        use = by_windows(use.shape, use.x, use.g)  # what is computed fastest
    if isinstance(use, Arranged):  # in their order in memory
        stored, order = use.values.shape[1:], use.order
        return _cut(use.values.flatten(1), weights), lambda total: order(total.view(stored)).contiguous()
    values = use.per_record()
    return _cut(values.reshape(len(values), -1), weights), lambda total: total.view(shape)


def _cut(rows: Tensor, weights: Tensor) -> Blocks:
    step = max(1, _AT_ONCE // len(rows))
    memory = rows.new_empty(len(rows) * min(step, rows.shape[1]))
    for start in range(0, rows.shape[1], step):
        part = rows[:, start : start + step]
        yield torch.mul(part, weights, out=memory[: part.numel()].view(part.shape))


def _outer(g: Tensor, x: Tensor) -> Blocks:
    step = max(1, _AT_ONCE // max(1, x.numel()))
    memory = x.new_empty(min(step, g.shape[1]) * x.numel())
    for part in g.split(step, 1):
        shape = (len(x), part.shape[1], x.shape[1])
        block = memory[: math.prod(shape)].view(shape)
        yield torch.mul(part.unsqueeze(2), x.unsqueeze(1), out=block).flatten(1)
