"""Persons with different numbers of rows: the gradient that is clipped is the sum over a person's rows.

A batch of P persons runs through the model as independent rows, those of a person one after the other. This module
combines the rows of a person, as `assay.gradients.uses.views` combines equally many views. Persons are put into buckets
of 1, 2, 3 to 4, 5 to 8, … rows. In a bucket, rows of zeros fill everybody up to the same number, so that at most half
of the work is filling. Then the rows are combined like views.

This is exact: a row of zeros adds zero to every product, Gram matrix and sum, and the norm of a single row never stands
for that of its person. A number that is not finite stays with its person, because zeros are written and not multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from assay.gradients.rules.standardised import Projected
from assay.gradients.uses.base import Apart, Dense, LayerUse, Outer, Rank1, Use
from assay.gradients.uses.convolution import Convolved
from assay.gradients.uses.repeated import Tied
from assay.gradients.uses.tables import Rows, SharedRows
from assay.gradients.uses.views import fold


class _Bucket(NamedTuple):
    """Persons with about the same number of rows."""

    who: Tensor
    """Which persons, [p]."""
    rows: int
    """To how many rows each is filled up, K."""
    place: Tensor
    """Where their rows are in the batch, [p · K]; one past the last row stands for a row of zeros."""
    padded: bool


class Persons:
    """Which rows of a batch belong to one person: `counts` [P] of them each, one person after the other."""

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts
        self.rows = int(counts.sum())
        self._buckets = _buckets(counts, self.rows)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def owner(self) -> Tensor:
        """Whose each row is, [rows]."""
        return torch.arange(len(self), device=self.counts.device).repeat_interleave(self.counts)

    def shares(self, losses: Tensor) -> Tensor:
        """Each row's loss divided by its person's number of rows: their sum is the person's mean loss."""
        return losses / self.counts.to(losses.device)[self.owner.to(losses.device)].to(losses.dtype)

    def sums(self, values: Tensor) -> Tensor:
        """The sum of a value per row over each person's rows, [P]."""
        out = values.new_zeros(len(self))
        return out.index_add_(0, self.owner.to(values.device), values)

    def folded(self, layer: LayerUse) -> LayerUse:
        """The use of a layer's parameters by persons, from its use by rows."""
        return Apart([self._folded(use) for use in layer.apart()])

    def _folded(self, use: Use) -> Use:
        if isinstance(use, SharedRows):
            use = use.each()
        if not isinstance(use, Rank1 | Outer | Rows | Tied | Convolved | Projected):
            values = use.per_record()
            summed = values.new_zeros(len(self), *values.shape[1:])
            return Dense(summed.index_add_(0, self.owner.to(values.device), values))
        parts = [(bucket.who, _in_bucket(use, bucket)) for bucket in self._buckets]
        if len(parts) == 1 and len(parts[0][0]) == len(self):
            return parts[0][1]
        return Bucketed(len(self), parts)


def _buckets(counts: Tensor, rows: int) -> list[_Bucket]:
    """The persons who have rows, by the least power of two not below their number of rows; in order within it."""
    counts = counts.cpu()
    starts = counts.cumsum(0) - counts
    found: list[_Bucket] = []
    low, high = 0, 1
    while low < int(counts.max() if len(counts) else 0):
        who = torch.nonzero((counts > low) & (counts <= high)).flatten()
        if len(who):
            size = int(counts[who].max())
            steps = torch.arange(size)
            place = starts[who].unsqueeze(1) + steps
            inside = steps < counts[who].unsqueeze(1)
            place = torch.where(inside, place, rows)
            found.append(_Bucket(who, size, place.flatten(), not bool(inside.all())))
        low, high = high, 2 * high
    return found


def _in_bucket(use: Use, bucket: _Bucket) -> Use:
    """The use by the persons of a bucket."""
    taken = _taken(use, bucket)
    return taken if bucket.rows == 1 else fold(taken, bucket.rows)


def _taken(use: Use, bucket: _Bucket) -> Use:
    """The use by the rows of a bucket, filling included."""

    def pick(t: Tensor) -> Tensor:
        if bucket.padded:
            t = torch.cat([t, t.new_zeros(1, *t.shape[1:])])
        return t.index_select(0, bucket.place.to(t.device))

    match use:
        case Rank1():
            return Rank1(pick(use.g), pick(use.x))
        case Outer():
            return Outer(pick(use.g), pick(use.x), use.keep)
        case Rows():
            return Rows(pick(use.index), pick(use.g), use.rows)
        case Tied():
            rows = Rows(pick(use.rows.index), pick(use.rows.g), use.rows.rows)
            return Tied(rows, Outer(pick(use.outer.g), pick(use.outer.x)))
        case Convolved():
            return replace(use, x=pick(use.x), g=pick(use.g))
        case Projected():
            kernel = use.kernel
            return replace(use, kernel=replace(kernel, x=pick(kernel.x), g=pick(kernel.g)))
    raise AssertionError(f"{type(use).__name__} is not folded by rows")


@dataclass(slots=True)
class Bucketed:
    """Per-person gradients of one parameter, a bucket at a time: which persons, and their use."""

    persons: int
    parts: list[tuple[Tensor, Use]]

    def sq_norm(self) -> Tensor:
        """Each person's, where it belongs; zero for a person without rows."""
        out: Tensor | None = None
        for who, use in self.parts:
            values = use.sq_norm()
            out = values.new_zeros(self.persons) if out is None else out
            out[who.to(values.device)] = values
        assert out is not None
        return out

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over the buckets."""
        total: Tensor | None = None
        for who, use in self.parts:
            part = use.weighted_sum(weights[who.to(weights.device)])
            total = part if total is None else total + part
        assert total is not None
        return total

    def per_record(self) -> Tensor:
        """[P, *shape]."""
        out: Tensor | None = None
        for who, use in self.parts:
            values = use.per_record()
            out = values.new_zeros(self.persons, *values.shape[1:]) if out is None else out
            out[who.to(values.device)] = values
        assert out is not None
        return out

    def without(self, bad: Tensor) -> Bucketed:
        """The same with the gradients of the persons marked in `bad` [P] replaced by zero."""
        return Bucketed(self.persons, [(who, use.without(bad[who.to(bad.device)])) for who, use in self.parts])
