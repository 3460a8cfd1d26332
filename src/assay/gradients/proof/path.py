"""The way from a batch to its losses, as a tape noted it, to be gone again with other records.

That changes nothing: random numbers are those of the first time, what is written in place is a copy, and no `.grad` is
written. What the losses send back to the outputs of the model is computed as well: code may change gradients and leave
values as they are.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.gradients.proof import calls


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for a value that the tape knows."""

    number: int


@dataclass(frozen=True, slots=True)
class Sliced:
    """Stands for a slice whose ends may be slots."""

    ends: tuple[Any, Any, Any]


@dataclass(slots=True)
class Entry:
    """One call of a function, with slots in place of what the tape knows."""

    run: Callable[..., Any] | None
    """None stands for the model; its arguments are (args, kwargs, attributes), the last by module and name."""
    given: list[Any]
    """The leaves of its arguments."""
    form: pytree.TreeSpec
    """How these make up (args, kwargs)."""
    outputs: list[int | None]
    """The slot of each leaf of the result; None for one that nobody will ask for."""
    random_state: calls.RandomState | None
    """What it drew from, if it drew random numbers."""
    autocast: torch.dtype | None
    of_batch: bool
    """Whether it is given something of the batch."""
    records_gradients: bool
    needs: frozenset[int]
    """The slots of its arguments."""
    memory: frozenset[int]
    """Where the numbers of its arguments and outputs are."""
    writes: frozenset[int]
    """Where it writes."""
    factors: list[tuple[str, float]]
    """Python's numbers that it multiplies or divides by."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Stands for a generator of the loop's own, as it was."""

    state: Tensor
    device: torch.device

    def generator(self) -> torch.Generator:
        """Another generator that draws the same numbers."""
        return torch.Generator(self.device).set_state(self.state)


@dataclass(frozen=True, slots=True)
class Gone:
    """What came of going a path."""

    losses: Tensor
    drew: bool
    """Whether random numbers were drawn."""
    _graph: Tensor
    _made: Mapping[int, Tensor]

    def sent_back(self, by: Tensor | None = None, to: Container[int] | None = None) -> float:
        """How large a gradient losses send back to what the model put out.

        Args:
            by: A mask of the losses that count; all by default.
            to: The slots of the outputs that count; all by default.
        """
        losses = self._graph if by is None else self._graph[by.to(self._graph.device)]
        return sent_back(losses, [t for slot, t in self._made.items() if to is None or slot in to])


def sent_back(losses: Tensor, outputs: Sequence[Any]) -> float:
    """The norm of the gradient that losses send back to these outputs of a model, of what of it is finite."""
    if not outputs or not losses.requires_grad:
        return 0.0
    found = torch.autograd.grad(losses.sum(), outputs, retain_graph=True, allow_unused=True)
    return math.hypot(*(float(g.double().nan_to_num(0, 0, 0).norm()) for g in found if g is not None))


@dataclass(frozen=True, slots=True)
class Path:
    """The way from a batch to its losses, to be gone again with other records."""

    _losses: int
    _entries: Sequence[Entry]
    _batch: Mapping[int, Tensor]
    _constants: Mapping[int, Tensor]
    _model: nn.Module
    _copied: Callable[[], nn.Module | None]

    @property
    def factors(self) -> list[tuple[str, float]]:
        """Python's numbers that something is multiplied or divided by on the way, in order."""
        return [factor for entry in self._entries for factor in entry.factors]

    @property
    def constants(self) -> list[Tensor]:
        """The tensors that were there before the batch."""
        needed = frozenset[int]().union(*(entry.needs for entry in self._entries))
        return [t for number, t in self._constants.items() if number in needed]

    def copies(self, record: int) -> int:
        """How many rows of the batch are equal to this one, itself included."""
        same = [(flat == flat[record]).all(1).cpu() for flat in (t.reshape(len(t), -1) for t in self._batch.values())]
        return int(torch.stack(same).all(0).sum())

    def again(
        self,
        rows: calls.Change = lambda t: t,
        others: calls.Change = lambda t: t,
        *,
        in_eval: bool = False,
    ) -> Gone:
        """The losses, if the batch had had other rows. Nothing that the loop holds is changed.

        Args:
            rows: Gives the rows of each tensor of the batch.
            others: Gives the value of each tensor that was there before the batch.
            in_eval: Call the model in eval mode, where dropout is off.

        Raises:
            Exception: The loop cannot be repeated; anything may fail in code that is not ours.
        """
        return self._gone({number: rows(t) for number, t in self._batch.items()}, others, in_eval=in_eval)

    def of(self, batch: Sequence[Tensor]) -> Gone:
        """The losses of another batch with the model in eval mode.

        Args:
            batch: Its tensors, in the order of those that the tape was given.

        Raises:
            Exception: As `again`.
        """
        return self._gone(dict(zip(self._batch, batch, strict=True)), in_eval=True)

    @property
    def in_half_precision(self) -> bool:
        """Whether something is computed in fewer digits than float32 has."""
        autocast = any(entry.autocast is not None for entry in self._entries)
        return autocast or any(p.dtype in (torch.float16, torch.bfloat16) for p in self._model.parameters())

    def _gone(self, batch: Mapping[int, Tensor], others: calls.Change = lambda t: t, *, in_eval: bool) -> Gone:
        values: dict[int, Any] = {number: t.clone() for number, t in batch.items()}
        made: dict[int, Tensor] = {}
        drew = False
        writes = any(entry.writes for entry in self._entries)

        def value(of: Any) -> Any:
            if isinstance(of, Drawing):
                return of.generator()
            if isinstance(of, Sliced):
                return slice(*map(value, of.ends))
            if not isinstance(of, Slot):
                return of
            if of.number not in values:
                constant = others(self._constants[of.number]).detach()
                values[of.number] = constant.clone() if writes else constant
            return values[of.number]

        copied = self._copied()
        model = copied or self._model
        modes = [(m, m.training) for m in model.modules()]
        now, buffers = calls.random_state(), calls.copied(model.named_buffers())
        try:
            if in_eval:
                model.eval()
            for entry in self._entries:
                args, kwargs = pytree.tree_unflatten(map(value, entry.given), entry.form)
                if entry.random_state is not None:
                    calls.set_random_state(entry.random_state)
                if entry.run is None:
                    args, kwargs = _prepared(model if copied else None, *args)
                through = entry.run is not None or (copied is not None and _asks(args, kwargs))
                with _precision(entry.autocast, args), torch.set_grad_enabled(entry.records_gradients and through):
                    out = (entry.run or model)(*args, **kwargs)
                drew |= entry.random_state is not None and calls.drawn_since(entry.random_state)
                found = {n: one for n, one in zip(entry.outputs, pytree.tree_leaves(out), strict=True) if n is not None}
                if entry.run is None and entry.of_batch and entry.records_gradients:
                    found = {number: _watched(made, number, one) for number, one in found.items()}
                values |= found
            losses: Tensor = values[self._losses]
            return Gone(losses.detach(), drew, losses, made)
        finally:
            calls.set_random_state(now)
            calls.put_back(model, buffers)
            for module, mode in modes:
                module.training = mode


def _prepared(copied: nn.Module | None, args: Any, kwargs: Any, attributes: Any) -> tuple[Any, Any]:
    """The arguments of a call of the model, after its attributes were set."""
    for (path, name), held in attributes.items():
        if copied is not None:
            vars(copied.get_submodule(path))[name] = held
    return args, kwargs


def _asks(args: Any, kwargs: Any) -> bool:
    """Whether a gradient by the arguments is asked for (adversarial examples)."""
    return any(t.requires_grad for t in calls.tensors((args, kwargs)))


def _watched(made: dict[int, Tensor], number: int, out: Any) -> Any:
    """An output of the model, to which what comes back is known."""
    if not isinstance(out, Tensor) or not out.is_floating_point():
        return out
    made[number] = out if out.requires_grad else out.detach().requires_grad_()
    with torch.enable_grad():
        return made[number].clone()  # which may be changed in place


def _precision(autocast: torch.dtype | None, args: Any) -> contextlib.AbstractContextManager[Any]:
    if autocast is None:
        return contextlib.nullcontext()
    device = next((t.device.type for t in calls.tensors(args)), "cpu")
    return torch.autocast(device, dtype=autocast)
