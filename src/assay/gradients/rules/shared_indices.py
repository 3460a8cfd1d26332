"""Embeddings whose indices all records share (positions): the indices are repeated for each record.

For a row that all records share, autograd would give the sum over records; repeated, it gives one row per record.
Shared indices have no record dimension: [T] or [1, T]. The first batch that can tell decides which embeddings these
are, because in a later batch T may happen to be the number of records.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.errors import UnsupportedModelError


class SharedIndices:
    """Knows which embeddings these are. Before each call of the model it counts the records."""

    def __init__(self, model: nn.Module) -> None:
        self._shared: dict[str, bool] = {}
        self._rows = 0

        def count(_module: nn.Module, args: Any, kwargs: Any) -> None:
            leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim() > 0]
            # most arguments have one row per record
            self._rows = Counter(t.shape[0] for t in leaves).most_common(1)[0][0] if leaves else 0

        self._counting = model.register_forward_pre_hook(count, with_kwargs=True)

    def by_record(self, path: str, index: Tensor, *, settle: bool) -> Tensor:
        """The indices that the embedding at `path` looks up, one row per record.

        Args:
            path: The embedding.
            index: What it was called with.
            settle: Whether this batch may decide if records share the indices.

        Raises:
            UnsupportedModelError: The embedding is called in both ways, or the indices fit neither.
        """
        decided = self._rows > 1 or (self._rows == 1 and index.dim() == 1 and len(index) > 1)
        if settle and decided:
            shared = _without_records(path, index, self._rows)
            if self._shared.setdefault(path, shared) != shared:
                raise UnsupportedModelError(
                    f"{path} is called both with indices of each record and with indices that all records share: "
                    "expand the latter to all records before the call"
                )
        if self._shared.get(path, False):
            index = (index.unsqueeze(0) if index.dim() == 1 else index).expand(
                self._rows, *[-1] * max(1, index.dim() - 1)
            )
        return index

    def settle(self) -> None:
        """Decide for good. If no indices are shared, records are no longer counted."""
        if not any(self._shared.values()):
            self.stop()

    def stop(self) -> None:
        """Stop counting."""
        self._counting.remove()


def _without_records(path: str, index: Tensor, records: int) -> bool:
    """Whether indices have no record dimension: [1, T], or [T] with T different from the number of records.

    If T is that number, eight or more indices that count up from 0 are taken for positions.
    """
    if index.dim() == 1:
        counts_up = records >= 8 and torch.equal(index, torch.arange(records, device=index.device))
        return index.shape[0] != records or counts_up
    if index.dim() > 1 and index.shape[0] not in (1, records):
        raise UnsupportedModelError(
            f"{path} looks up indices of shape {tuple(index.shape)} that all of the {records} records share: there is "
            "no way to tell what each record contributes. Freeze it (requires_grad_(False)), or expand the indices to "
            "all records"
        )
    return index.dim() > 1 and index.shape[0] == 1
