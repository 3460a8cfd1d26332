"""Where the records are in a tensor: in the first dimension, in the second, or each in several rows after one another.

The first batch shows which one holds for a layer (`assay.gradients.proof.first_batch`): only with the right one do the
losses of some records leave the others' entries without gradient. Later batches keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from torch import Tensor


class Layout(Enum):
    """Where the records are."""

    FIRST = "first"
    SECOND = "second"
    FOLDED = "folded"
    """The first dimension holds the rows of the first record, then those of the second, and so on."""

    def fits(self, shape: tuple[int, ...], records: int) -> bool:
        """Whether a tensor of this shape can have this layout."""
        if not shape or records == 0:
            return False
        if self is Layout.FIRST:
            return shape[0] == records
        if self is Layout.SECOND:
            return len(shape) > 2 and shape[1] == records
        return shape[0] > records and shape[0] % records == 0

    def within(self, shape: Sequence[int], records: int) -> Layout:
        """How a tensor of a layer with this layout is read: folded only if there are several rows for each record."""
        if self is Layout.SECOND and self.fits(tuple(shape), records):
            return self
        return Layout.FIRST if Layout.FIRST.fits(tuple(shape), records) or self is Layout.SECOND else self

    def by_record(self, t: Tensor, records: int) -> Tensor:
        """The tensor with one entry for each record in the first dimension."""
        if self is Layout.FIRST:
            return t
        return t.transpose(0, 1) if self is Layout.SECOND else t.unflatten(0, (records, -1))


def possible(shape: tuple[int, ...], records: int, *, second: bool = True) -> list[Layout]:
    """The layouts that a tensor of this shape can have."""
    return [layout for layout in Layout if layout.fits(shape, records) and (second or layout is not Layout.SECOND)]
