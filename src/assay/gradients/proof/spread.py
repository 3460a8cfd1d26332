"""Which memory holds numbers that were made of a batch, whatever made them.

A `Spread` is on torch's stack of dispatch modes. So it sees every kernel that runs, also those of backward passes, of
`torch.func`, and of autograd functions of somebody's own. What a kernel returns or writes is made of the batch if one
of its arguments is. Memory is named by its storage: a view, `.data`, or a tensor that took over another's numbers has
the same one.

A number that leaves torch by `item` is known where it comes back as it is (a learning rate). NumPy and `tolist`, what
Python computes with such a number, and other threads are not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

_OF_A_SHAPE = ("_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")


class Places:
    """Places in memory, while something is there."""

    def __init__(self) -> None:
        self._held: dict[int, StorageWeakRef] = {}
        self._opaque = WeakTensorKeyDictionary()

    def __contains__(self, t: Tensor) -> bool:
        return t in self._opaque if _is_opaque(t) else place_of(t) in self._held

    def add(self, t: Tensor) -> None:
        """Add the place of a tensor."""
        if _is_opaque(t):
            self._opaque[t] = True
        elif place_of(t) not in self._held:
            # as long as this reference lives, nothing else gets the same number
            ref = StorageWeakRef(_storage(t))
            self._held[ref.cdata] = ref

    def take_over(self, other: Places) -> None:
        """Add those of another, and forget what is gone."""
        together = {**self._held, **other._held}
        self._held = {number: ref for number, ref in together.items() if not ref.expired()}
        self._opaque.update(other._opaque)


def place_of(t: Tensor) -> int:
    """Where a tensor's numbers are; in oneDNN's layout, which shows no memory, they are where the tensor is."""
    number: int = id(t) if _is_opaque(t) else _storage(t)._cdata
    return number


def _is_opaque(t: Tensor) -> bool:
    return t.layout is torch._mkldnn  # type: ignore[attr-defined]


def _storage(t: Tensor) -> Any:
    if t.layout is torch.sparse_coo:
        t = t._values()
    elif t.layout is not torch.strided:
        t = t.values()
    return t.untyped_storage()


class Spread(TorchDispatchMode):
    """Follows the numbers of a batch through what runs while this mode is on the stack.

    Args:
        earlier: Places of numbers that were made of earlier batches, which are followed as well.
        is_quiet: Whether what runs is not to be followed: a private step releases what it makes.
    """

    supports_higher_order_operators = True

    def __init__(self, earlier: Places, is_quiet: Callable[[], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._earlier, self._is_quiet, self.made = earlier, is_quiet, Places()
        self._taken = set[float]()

    def holds(self, t: Tensor) -> bool:
        """Whether a tensor's numbers were made of this batch or of an earlier one."""
        return t in self.made or t in self._earlier

    def _comes_of(self, value: Any) -> bool:
        return self.holds(value) if isinstance(value, Tensor) else type(value) is float and value in self._taken

    def mark(self, made: Iterable[Tensor]) -> None:
        """Say that these were made of the batch."""
        for t in made:
            self.made.add(t)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the kernel, and mark what it makes of the batch."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self._is_quiet():
            return out
        name = func.name().partition("::")[2].partition(".")[0]
        if not name.endswith(_OF_A_SHAPE) and any(map(self._comes_of, pytree.tree_leaves((args, kwargs)))):
            if type(out) is float and float(f"{out:.5g}") != out:  # nobody writes such a number into a program
                self._taken |= {out, -out}
            self.mark(t for t in pytree.tree_leaves(out) if isinstance(t, Tensor))
            self.mark(_written(func, args, kwargs))
        return out


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that a kernel writes into."""
    named = {**dict(zip(_arguments(func), args, strict=False)), **kwargs}
    writes = _writes(func)
    if named.get("training"):  # batch normalisation does not say that it does
        writes = (*writes, "running_mean", "running_var")
    return [t for name in writes for t in pytree.tree_leaves(named.get(name)) if isinstance(t, Tensor)]


@functools.cache
def _arguments(func: Any) -> tuple[str, ...]:
    return tuple(a.name for a in func._schema.arguments) if hasattr(func, "_schema") else ()


@functools.cache
def _writes(func: Any) -> tuple[str, ...]:
    return tuple(
        a.name
        for a in (func._schema.arguments if hasattr(func, "_schema") else ())
        if a.alias_info is not None and a.alias_info.is_write
    )
