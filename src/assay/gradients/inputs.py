"""Where the records are in the input of a layer, if it has any.

They are in the first dimension, in the second, each in several rows after one another, or some of them (`Layout`). The
first batch shows which one holds for a layer (`assay.gradients.proof.first_batch`): only with the right one do the
losses of some records leave the others' entries without gradient. Later batches keep it.

Some calls of a layer have rows of records, and some a constant that all records share (positions, a table's rows). A
call has rows if its input can have a layout with records. The first batch that can tell decides for each call of each
layer: in a later one, a constant may happen to have as many rows as there are records. The proof checks the decision
there: a wrong one shows as records that mix. What is made without any input of the model (`torch.arange`, buffers) is
never taken for several rows of each record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_MADE = "_assay_made_without_records"
_COUNTS_UP = 8  # fewer numbers than this may be labels that happen to count up


class Layout(Enum):
    """Where the records are."""

    FIRST = "first"
    SECOND = "second"
    FOLDED = "folded"
    """The first dimension holds the rows of the first record, then those of the second, and so on."""
    CHOSEN = "chosen"
    """The first dimension holds rows of some records, others on every batch (`assay.gradients.chosen`)."""

    def fits(self, shape: tuple[int, ...], records: int) -> bool:
        """Whether a tensor of this shape can have this layout, as far as its shape tells."""
        if not shape or records == 0 or self is Layout.CHOSEN:
            return False
        if self is Layout.FIRST:
            return shape[0] == records
        if self is Layout.SECOND:
            return len(shape) > 2 and shape[1] == records
        return shape[0] > records and shape[0] % records == 0

    def within(self, shape: Sequence[int], records: int) -> Layout:
        """How a tensor of a layer with this layout is read: folded only if there are several rows for each record."""
        if self is Layout.CHOSEN or (self is Layout.SECOND and self.fits(tuple(shape), records)):
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


class Inputs:
    """Knows the calls. At each call of the model it counts the records.

    Args:
        model: The model.
        proven: Whether the first batch is over.
    """

    def __init__(self, model: nn.Module, proven: Callable[[], bool]) -> None:
        self._model, self._proven = model, proven
        self.records = 0
        self.expected = 0
        """How many records the next batch has, where somebody has said it."""
        self.again = False
        """Whether a first batch was there before: what it decided stays."""
        self._constant: dict[tuple[str, int], bool] = {}
        self._calls: Counter[str] = Counter()
        frozen = (p for p in model.parameters() if not p.requires_grad)
        self._constants = frozenset(id(t) for t in (*model.buffers(), *frozen))
        self._marks = False

    def begin(self, args: Any, kwargs: Any) -> None:
        """The model is about to be called."""
        leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim() > 0]
        sizes = Counter(t.shape[0] for t in leaves)
        second = {t.shape[1] for t in leaves if t.dim() > 1}
        if self.expected and self.expected not in sizes and self.expected in second:
            self.records = self.expected  # the model is called with the records in the second dimension
        else:  # most arguments have one row per record
            self.records = sizes.most_common(1)[0][0] if leaves else 0
        self._calls.clear()

    def marking(self) -> AbstractContextManager[Any]:
        """A context in which what depends on no input of the model is marked."""
        self._marks = True
        return _Made(self)

    def is_fixed(self, t: Tensor) -> bool:
        """Whether this is a buffer or a frozen parameter, or a view of one."""
        return id(t) in self._constants or (t._base is not None and id(t._base) in self._constants)

    def is_made(self, t: Tensor) -> bool:
        """Whether this is known to depend on no input of the model; True where nothing is marked."""
        return not self._marks or getattr(t, _MADE, False) or self.is_fixed(t)

    def mark(self, t: Any) -> Any:
        """Mark what depends on no input of the model."""
        if type(t) is Tensor:
            setattr(t, _MADE, True)
        return t

    def are_distances(self, t: Tensor) -> bool:
        """Whether whole numbers depend on no input, as distances between positions do, and were not repeated by row."""
        whole = t.dim() > 1 and not t.is_floating_point()
        return whole and self._marks and self.is_made(t) and bool((t != t[:1]).any())

    def constant(self, path: str, x: Tensor) -> bool:
        """Whether the input of this call of a layer is the same for all records."""
        key = (path, self._calls[path])
        self._calls[path] += 1
        if not self._proven() and not (self.again and key in self._constant):
            found = self._is_constant(x)
            if self.records > 1:
                self._constant[key] = found
            return found
        if key in self._constant:
            return self._constant[key]
        known = {constant for (other, _), constant in self._constant.items() if other == path}
        return known.pop() if len(known) == 1 else self._is_constant(x)

    def _is_constant(self, x: Tensor) -> bool:
        if x.dim() == 0 or self.records == 0:
            return x.dim() == 0
        rows = x.shape[0]
        if rows == self.records:  # labels of the records, or as many positions as there are records
            made = self._marks and self.is_made(x)
            if self._marks and self.is_fixed(x) and bool((x != x[:1]).any()):  # not repeated for each record
                return True
            if x.is_floating_point() or (x.dim() == 1 and rows < _COUNTS_UP and not made):
                return False
            if x.dim() == 1:
                return torch.equal(x, torch.arange(rows, device=x.device))
            return self.are_distances(x)
        if self._marks and self.is_made(x):
            return True
        # a tensor that depends on the inputs in no known layout is refused by name when the batch is checked
        alone = rows <= 1 and not x.requires_grad  # one record's row comes from layers before, where it was chosen
        return not possible(tuple(x.shape), self.records) and (alone or not self._marks)

    def several(self) -> bool:
        """Whether any call has a constant."""
        return any(self._constant.values())


class _Made(TorchFunctionMode):
    """Marks what is computed from nothing, from buffers and from frozen parameters."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self._inputs = inputs

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        if type(out) is Tensor:
            given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            if all(map(self._inputs.is_made, given)):
                self._inputs.mark(out)
        return out
