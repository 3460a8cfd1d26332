"""Per-record gradients of any module: it runs for each record with a separate copy of the parameters.

This is correct for every module that treats records separately, and slower than a rule. `torch.func.vmap` runs the
copies together. What it cannot batch (recurrent layers, data-dependent control flow, an operation without a batching
rule) runs in a loop. Randomness inside the module (dropout) is drawn once, in the one forward pass.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree

from assay.errors import UnsupportedModelError
from assay.gradients.proof import calls

_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


@dataclass(slots=True)
class PerRecordCall:
    """An `ExpandRule` for modules without a rule.

    It remembers whether vmap can batch the module, and which arguments all records share: in a later batch such an
    argument (a mask) may happen to have as many rows as there are records.
    """

    batchable: bool = True
    shared: dict[tuple[int, int], bool] = field(default_factory=dict)
    """By the number of arguments and the place of this one; known from the first batch with several records."""
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    """The dimension of the records in each argument, where it is not the first one in all of them; by the same."""
    returned: dict[tuple[int, int], int] = field(default_factory=dict)
    """The same for what the module returns."""

    def locate(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], records: int) -> None:
        """Take in each argument the first dimension of this size, after the very first, for that of the records."""
        leaves = _leaves(module, args, kwargs)
        for i, (leaf, axis) in enumerate(leaves):
            if axis is not None:
                at = next((d for d, size in enumerate(leaf.shape) if size == records and d > 0), 0)
                self.places.setdefault((len(leaves), i), at)

    def records(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """The number of records in the first tensor argument.

        Raises:
            UnsupportedModelError: No argument has a record dimension.
        """
        for leaf, axis in self._leaves(module, args, kwargs):
            if isinstance(leaf, Tensor) and axis is not None:
                return leaf.shape[axis]
        raise UnsupportedModelError(f"{type(module).__name__} was called without a tensor that has a record dimension")

    def forward(
        self,
        module: nn.Module,
        params: Mapping[str, Tensor | None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        records: int,
    ) -> Any:
        """Run every record alone with its own copy of the parameters, and stack the outputs."""
        leaves = self._settled(module, self._leaves(module, args, kwargs), records)
        _, structure = pytree.tree_flatten((args, kwargs))
        values = [leaf for leaf, _ in leaves]
        axes = [axis for _, axis in leaves]
        outputs: dict[str, Any] = {}

        def one(own: Mapping[str, Tensor], *mine: Any) -> tuple[Tensor, ...]:
            whole = [v if axis is None else v.unsqueeze(axis) for v, axis in zip(mine, axes, strict=True)]
            a, k = pytree.tree_unflatten(whole, structure)
            out = functional_call(module, everywhere(module, own), a, k, tie_weights=False)
            flat, outputs["structure"] = pytree.tree_flatten(out)
            outputs["axes"] = self._output_axes(module, flat)
            return tuple(v.squeeze(axis) for v, axis in zip(flat, outputs["axes"], strict=True) if axis is not None)

        own = {name: value for name, value in params.items() if value is not None}
        tensors = None
        if self.batchable and not isinstance(module, _RECURRENT):
            try:
                with rules_only():
                    tensors = vmap(one, in_dims=(0, *axes), out_dims=0, randomness="different")(own, *values)
            except (RuntimeError, NotImplementedError, ValueError):
                self.batchable = False  # a property of the module, not of this batch: do not try again
        if tensors is None:
            copies = {name: value.unbind(0) for name, value in own.items()}
            parts = [None if axis is None else value.unbind(axis) for value, axis in zip(values, axes, strict=True)]
            # a call that moves a buffer by one iteration (spectral normalisation) must not move it once for each record
            start = calls.copied(module.named_buffers())
            rows = []
            for i in range(records):
                calls.put_back(module, start)
                rows.append(
                    one(
                        {name: copy[i] for name, copy in copies.items()},
                        *(v if part is None else part[i] for v, part in zip(values, parts, strict=True)),
                    )
                )
            tensors = tuple(torch.stack(column) for column in zip(*rows, strict=True))
        together = iter(tensors)
        flat = [None if axis is None else next(together).movedim(0, axis) for axis in outputs["axes"]]
        return pytree.tree_unflatten(flat, outputs["structure"])

    def _leaves(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, int | None]]:
        found = _leaves(module, args, kwargs)
        if not self.places:
            return found
        if any(axis is not None and (len(found), i) not in self.places for i, (_, axis) in enumerate(found)):
            raise UnsupportedModelError(
                f"{type(module).__name__} has its records in other dimensions than the first, and is called with other "
                "arguments than in the first batch: put the record dimension first (batch_first=True)"
            )
        return [(leaf, self.places.get((len(found), i))) for i, (leaf, _) in enumerate(found)]

    def _output_axes(self, module: nn.Module, flat: list[Any]) -> list[int | None]:
        """The axis of the records in each output of a call with one record."""
        axes = _output_axes(module, flat)
        if not self.places:
            return axes
        return [
            None if axis is None else self.returned.setdefault((len(flat), i), _single(v.shape))
            for i, (v, axis) in enumerate(zip(flat, axes, strict=True))
        ]

    def _settled(
        self, module: nn.Module, leaves: list[tuple[Any, int | None]], records: int
    ) -> list[tuple[Any, int | None]]:
        """The leaves with the axis of their records, as in the first batch; None for what all records share."""
        found: list[tuple[Any, int | None]] = []
        for i, (leaf, axis) in enumerate(leaves):
            if axis is None:
                found.append((leaf, None))
                continue
            apart = leaf.dim() > axis and leaf.shape[axis] == records
            shared = self.shared.get((len(leaves), i), not apart)
            if records > 1:
                self.shared[len(leaves), i] = shared
            if not shared and not apart:
                raise UnsupportedModelError(
                    f"{type(module).__name__} was called with a tensor of shape {tuple(leaf.shape)} for {records} "
                    "records, where one of as many rows as records was expected: it is not the same for all records in "
                    "every batch. Expand it to all records"
                )
            found.append((leaf, None if shared else axis))
        return found


@contextmanager
def rules_only() -> Iterator[None]:
    """Let vmap refuse an operation that it has no rule for: its own loop copies every argument for every record.

    The time of that loop grows with the square of the number of records; that of ours does not.
    """
    functorch: Any = torch._C._functorch  # torch declares no types for these
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


def everywhere(module: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`values` by every name that their tensors have in `module`, each place once.

    torch's `tie_weights` names a module that stands in two places twice, and then restores the replacement in place of
    the original.
    """
    names = {id(t): name for name, t in [*module.named_parameters(), *module.named_buffers()]}
    out: dict[str, Tensor] = {}
    for path, inner in module.named_modules():
        for name, t in [*inner._parameters.items(), *inner._buffers.items()]:
            if t is not None and names.get(id(t)) in values:
                out[f"{path}.{name}" if path else name] = values[names[id(t)]]
    return out


def _record_axis(module: nn.Module, name: str, value: Tensor) -> int | None:
    """The axis of the records in an argument, by the module's `batch_first`."""
    first = 0 if getattr(module, "batch_first", True) else 1
    if isinstance(module, _RECURRENT):
        return first if name == "input" else 1
    if isinstance(module, nn.MultiheadAttention):
        if name == "attn_mask":
            if value.dim() == 3:
                raise UnsupportedModelError(
                    "MultiheadAttention: attn_mask must be [T, S]; a mask per record and head is not supported"
                )
            return None
        return first if name in {"query", "key", "value"} else 0
    return 0


@functools.lru_cache(maxsize=256)
def _names(forward: Callable[..., Any]) -> list[str]:
    """The names of a forward's arguments, without the module itself."""
    return list(inspect.signature(forward).parameters)[1:]


def _leaves(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, int | None]]:
    """Every leaf of the arguments with the axis that its records would have; None for what is not a tensor."""
    names = _names(type(module).forward)
    named = [(names[min(i, len(names) - 1)] if names else "", a) for i, a in enumerate(args)] + list(kwargs.items())
    found: list[tuple[Any, int | None]] = []
    for name, value in named:
        for leaf in pytree.tree_leaves(value):
            axis = _record_axis(module, name, leaf) if isinstance(leaf, Tensor) and leaf.dim() > 0 else None
            found.append((leaf, axis))
    return found


def _single(shape: torch.Size) -> int:
    """The dimension of size one; the second one if there are several."""
    ones = [d for d, size in enumerate(shape) if size == 1]
    return 1 if 1 in ones or not ones else ones[0]


def _output_axes(module: nn.Module, flat: list[Any]) -> list[int | None]:
    """The axis of the records in each output."""
    first = 0 if getattr(module, "batch_first", True) else 1
    if isinstance(module, _RECURRENT):
        return [first, *[1] * (len(flat) - 1)]
    if isinstance(module, nn.MultiheadAttention):
        return [first, *(0 if isinstance(v, Tensor) else None for v in flat[1:])]
    return [0 if isinstance(v, Tensor) else None for v in flat]
