"""What a piece of code allocates, by the shapes of what its operations put out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Sizes(TorchDispatchMode):
    """The shapes of all tensors that operations put out and that take memory of their own (views of others do not)."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        before = {t.untyped_storage().data_ptr() for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for t in pytree.tree_leaves(out):
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in before:
                self.shapes.append(tuple(t.shape))
        return out

    @property
    def largest(self) -> int:
        """Elements of the largest."""
        return max(torch.Size(shape).numel() for shape in self.shapes)


@contextmanager
def allocated() -> Iterator[Sizes]:
    with Sizes() as sizes:
        yield sizes
