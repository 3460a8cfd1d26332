"""Repeating a call of a model with other records in place of some, and comparing what comes out.

A call is repeated with the randomness and the buffers that it had. A random half of the records is replaced and the
other half is compared; then the halves swap. There are three splits of a random order, by the binary digits of a
record's place in it. Any two of up to eight records are on different sides at least once; of more records, any two are
with probability 7/8 or above. So a function of some records of the batch (its middle, pairs of neighbours) shows as
well as a function of all.

The replacements cover what functions of a batch depend on: which records there are, in which order (rows of the other
half); the number of distinct values (one row for all); magnitude and sign (zeros, rows many times as large); missing
values (NaN in either half). Rows that no data set holds go to CPU code only: there an index out of range raises an
error that can be caught.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from assay.errors import UnsupportedModelError
from assay.gradients.proof.rows import Rows, opened

RandomState = list[Tensor]


def random_state() -> RandomState:
    """The states of torch's generators in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def set_random_state(state: RandomState) -> None:
    """Restore torch's generators."""
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state_all(state[1:])


def drawn_since(state: RandomState) -> bool:
    """Whether random numbers were drawn since then."""
    return not all(torch.equal(a, b) for a, b in zip(state, random_state(), strict=False))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the whole model, and what is needed to repeat it: the randomness and the buffers before the call."""

    args: Any
    kwargs: Any
    random_state: RandomState
    buffers: Mapping[str, Tensor]
    output: Any
    before: nn.Module | None
    """A copy of the model before the call, sharing its parameters; None if it cannot be copied."""
    values: list[Tensor]
    """A copy of the output, which may be changed in place afterwards."""
    drew: bool
    """Whether it drew random numbers."""
    wrote: frozenset[str]
    """The buffers that it changed."""
    used: frozenset[int] | None = None
    """The outputs that the losses depend on, by their places; None if that is not known."""
    rows: Rows | None = None
    """The arguments by record, where that is known."""

    def again(self, model: nn.Module, change: Callable[[Any], Any] = lambda t: t) -> Answer:
        """Repeat this call, with its randomness and its buffers. Afterwards both are restored.

        Args:
            model: The model, or a copy of it.
            change: What is done to each argument.
        """
        args, kwargs = self.changed(change)
        kept = copied(model.named_buffers())
        now = random_state()
        try:
            set_random_state(self.random_state)
            put_back(model, self.buffers)
            with torch.no_grad():
                outputs = tensors(opened(model(*args, **kwargs)))
                return Answer(outputs, copied(model.named_buffers()), self.has_drawn())
        finally:
            set_random_state(now)
            put_back(model, kept)

    def changed(self, change: Callable[[Any], Any]) -> Any:
        """The arguments after a change of each tensor; where they are known by record, of the tensors of rows."""
        if self.rows is None:
            return pytree.tree_map(change, (self.args, self.kwargs))
        return self.rows.closed(pytree.tree_map(change, self.rows.values))

    def has_drawn(self) -> bool:
        """Whether random numbers were drawn since the state of this call."""
        return drawn_since(self.random_state)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call."""

    outputs: list[Tensor]
    buffers: Mapping[str, Tensor]
    drew: bool


def check_untransformed(module: nn.Module, model: nn.Module) -> None:
    """Refuse a call of a module of this model within a function that torch.func transforms.

    Raises:
        UnsupportedModelError: It is one; the message names the module.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        path = next((path for path, other in model.named_modules() if other is module), "")
        raise UnsupportedModelError(
            f"{path or 'the model'} ({type(module).__name__}) is called within a function that torch.func transforms "
            "(vmap, grad, jacrev), where no gradient for each record can be seen: call it on the whole batch. Layers "
            "take any number of dimensions after the first"
        )


def copied(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copies of tensors, by name."""
    return {name: t.detach().clone() for name, t in named}


def changed(before: Mapping[str, Tensor], now: Iterable[tuple[str, Tensor]]) -> frozenset[str]:
    """The names whose tensors changed, appeared or disappeared."""
    left = dict(before)
    different = set()
    for name, t in now:
        old = left.pop(name, None)
        same = old is not None and old.shape == t.shape and old.dtype == t.dtype
        if not (same and old is not None and _equal(old, t.detach())):
            different.add(name)
    return frozenset(different | left.keys())


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether all values are equal; NaN equals itself."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def tensors(value: Any) -> list[Tensor]:
    """All tensors in tuples, lists and dicts; of a packed sequence its data and its sizes."""
    if isinstance(value, Tensor):
        return [value]
    leaves = pytree.tree_leaves(value, is_leaf=lambda v: isinstance(v, PackedSequence))
    parts = chain.from_iterable(v[:2] if isinstance(v, PackedSequence) else (v,) for v in leaves)
    return [t for t in parts if isinstance(t, Tensor)]


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape are equal up to rounding."""
    if not a.is_floating_point():
        return bool((a == b).all())
    if not a.numel():
        return True
    tolerance = 1e3 * torch.finfo(a.dtype).eps
    scale = max(float(piece.abs().nan_to_num(0, 0, 0).max()) for piece in _pieces(a))
    close_by = functools.partial(torch.allclose, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    return all(map(close_by, _pieces(a), _pieces(b)))


_PIECE = 1 << 18  # numbers: a comparison needs several times the memory of what it compares


def _pieces(t: Tensor) -> Sequence[Tensor]:
    """A tensor's rows, some at a time."""
    return t.split(max(1, _PIECE * len(t) // t.numel())) if t.dim() else (t,)


@torch.no_grad()
def put_back(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Restore the buffers that still have their shape."""
    for name, b in model.named_buffers():
        if name in values and values[name].shape == b.shape and not torch.equal(b, values[name]):
            b.copy_(values[name])


def has_extra_state(module: nn.Module) -> bool:
    """Whether a module saves more than parameters and buffers."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def extra_states(model: nn.Module) -> list[tuple[str, bytes]]:
    """What modules save besides parameters and buffers, as bytes; empty if it cannot be pickled."""
    return [(name, extra_state(m)) for name, m in model.named_modules() if has_extra_state(m)]


def extra_state(module: nn.Module) -> bytes:
    """What a module saves besides parameters and buffers, as bytes; empty if it cannot be pickled."""
    try:
        return pickle.dumps(pytree.tree_map(_plain, module.get_extra_state()))
    except Exception:  # anything may be in there
        return b""


def _plain(value: Any) -> Any:
    return value.detach().cpu().tolist() if isinstance(value, Tensor) else value


SPLITS = 3
_MISSING = 0.3  # the share of a record's numbers that are made missing


class Coins(Protocol):
    """The source of random choices: a stream of `assay.randomness.streams`, independent of torch's own generators."""

    def uniform(self, n: int) -> Tensor:
        """Independent uniform numbers in [0, 1), float64, on the CPU."""
        ...


Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Replacement:
    """One way to replace some of the records."""

    kept: Tensor
    """The rows that stay what they are."""
    change: Change
    """Replaces the others in a tensor with one row per record; returns anything else unchanged."""
    base: Change | None = None
    """What the comparison starts from, if not the batch itself."""
    real: bool = True
    """Whether all rows are rows of the batch."""
    gaps: bool = False
    """Whether values are missing: only what is finite on both sides can be compared."""


def kept_alike(plain: Tensor, replaced: Tensor, replacement: Replacement, axis: int = 0) -> bool:
    """Whether two outputs agree in the kept records."""
    if plain.shape != replaced.shape:
        return not replacement.real
    rows = replacement.kept.to(plain.device)
    a, b = plain.index_select(axis, rows), replaced.index_select(axis, rows)
    if replacement.gaps and a.is_floating_point():
        both = a.isfinite() & b.isfinite()
        a, b = a[both], b[both]
    return close(a, b)


def by_record(t: Any, records: int) -> bool:
    """Whether this is a tensor with one row per record."""
    return isinstance(t, Tensor) and t.dim() > 0 and t.shape[0] == records


def splits(records: int, coins: Coins, most: int = SPLITS) -> list[Tensor]:
    """Masks of about half of the records each; there must be two records or more."""
    place = coins.uniform(records).argsort()
    digits = range(min(most, (records - 1).bit_length()))
    return [(place >> digit & 1).bool() for digit in digits]


def a_few(records: int, coins: Coins) -> list[int]:
    """A few random records, fewer or more than there are; never one, because some models drop that dimension."""
    if records <= 2:
        return [0, records - 1, 0]
    return sorted(coins.uniform(records).argsort()[:2].tolist())


def picked(rows: Sequence[int], records: int, t: Any) -> Any:
    """These rows of a tensor with one row per record."""
    return t[list(rows)] if by_record(t, records) else t


def only(one: int, records: int, t: Any) -> Any:
    """The tensor with all records replaced by this one; zeros if it is the only record."""
    if not by_record(t, records):
        return t
    return torch.zeros_like(t) if records == 1 else t[one : one + 1].expand_as(t).clone()


def levelled(t: Any) -> Any:
    """A tensor with one row, which gets its least value everywhere: a word that the model knows, where 0 is none."""
    return t.amin().expand_as(t).clone() if by_record(t, 1) and t.numel() and not t.is_complex() else t


def rounds(
    tensors: Sequence[Tensor], records: int, coins: Coins, *, full: bool, gaps: bool = True
) -> list[list[Replacement]]:
    """The replacements for a batch of two records or more.

    Args:
        tensors: What will be changed. It decides whether synthetic rows are safe, and whether values are missing.
        records: How many records there are.
        coins: Where the choices come from.
        full: All splits, both halves and all kinds; else one random half with rows of the other and one more kind.
        gaps: Whether values may be made missing in what is compared.

    Returns:
        A list for each split.
    """
    rows = [t for t in tensors if by_record(t, records) and t.is_floating_point()]
    on_cpu = all(t.device.type == "cpu" for t in tensors)
    kinds: list[_Kind] = []
    if rows and on_cpu:
        kinds += [_zeros, _large]
        if gaps:
            kinds.append(_missing)
        if any(bool(t.isnan().any()) for t in rows):  # without NaN in the batch, a guard against it is not mixing
            kinds.append(_gaps)
    kinds.append(_one)
    if full:
        masks = splits(records, coins)
        made = []
        for i, mask in enumerate(masks):
            mine = kinds[i :: len(masks)]
            made.append([kind(half, coins) for half in (mask, ~mask) for kind in (others, *mine)])
        return made
    (mask,) = splits(records, coins, 1)
    if _chance(coins, 2):
        mask = ~mask
    return [[others(mask, coins), kinds[_chance(coins, len(kinds))](mask, coins)]]


_Kind = Callable[[Tensor, Coins], Replacement]


def _chance(coins: Coins, n: int) -> int:
    return int(coins.uniform(1) * n)


def others(mask: Tensor, coins: Coins) -> Replacement:
    """Rows of the other half, in random order, in place of these."""
    return Replacement((~mask).nonzero().flatten(), functools.partial(_from, _source(mask, coins)))


def _one(mask: Tensor, coins: Coins) -> Replacement:
    """One row of the other half for all."""
    kept = (~mask).nonzero().flatten()
    source = torch.where(mask, kept[_chance(coins, len(kept))], torch.arange(len(mask)))
    return Replacement(kept, functools.partial(_from, source))


def _zeros(mask: Tensor, coins: Coins) -> Replacement:
    return _scaled(mask, _source(mask, coins), torch.zeros(len(mask), dtype=torch.float64))


def _large(mask: Tensor, coins: Coins) -> Replacement:
    """Rows of the other half, 4 to 16 times as large, half of them with the sign changed."""
    numbers = 4 + 12 * coins.uniform(len(mask))
    return _scaled(mask, _source(mask, coins), torch.where(coins.uniform(len(mask)) < 0.5, -numbers, numbers))


def _missing(mask: Tensor, coins: Coins) -> Replacement:
    """Values are missing in what is compared; the records that could fill them are replaced."""
    kept, source = (~mask).nonzero().flatten(), _source(mask, coins)
    factor = 4 + 12 * coins.uniform(len(mask))
    holes = _Holes(coins)

    def base(t: Any) -> Any:
        return holes.made(t, ~mask)

    def change(t: Any) -> Any:
        return base(_times(mask, source, factor, t))

    return Replacement(kept, change, base, real=False, gaps=True)


def _gaps(mask: Tensor, coins: Coins) -> Replacement:
    """Values are missing in what is replaced."""
    holes = _Holes(coins)
    return Replacement((~mask).nonzero().flatten(), lambda t: holes.made(t, mask), real=False, gaps=True)


def _scaled(mask: Tensor, source: Tensor, factor: Tensor) -> Replacement:
    return Replacement((~mask).nonzero().flatten(), functools.partial(_times, mask, source, factor), real=False)


def _source(mask: Tensor, coins: Coins) -> Tensor:
    """For every record the row that it has afterwards: the same one, or one of the other half."""
    kept = (~mask).nonzero().flatten()
    drawn = kept[(coins.uniform(len(mask)) * len(kept)).long()]
    return torch.where(mask, drawn, torch.arange(len(mask)))


def _from(source: Tensor, t: Any) -> Any:
    return t[source.to(t.device)] if by_record(t, len(source)) else t


def _times(mask: Tensor, source: Tensor, factor: Tensor, t: Any) -> Any:
    t = _from(source, t)
    if not by_record(t, len(mask)) or not t.is_floating_point():
        return t
    shape = (-1, *[1] * (t.dim() - 1))
    # kept rows are not multiplied, so that their NaN and Inf stay
    return torch.where(mask.view(shape).to(t.device), t.nan_to_num() * factor.to(t).view(shape), t)


class _Holes:
    """Makes values missing, always in the same places."""

    def __init__(self, coins: Coins) -> None:
        self._coins, self._places = coins, dict[torch.Size, Tensor]()

    def made(self, t: Any, rows: Tensor) -> Any:
        if not by_record(t, len(rows)) or not t.is_floating_point():
            return t
        shape = t.shape[1:]
        if shape not in self._places:
            self._places[shape] = self._coins.uniform(max(1, shape.numel())).view(shape) < _MISSING
            if shape.numel():
                self._places[shape].view(-1)[_chance(self._coins, shape.numel())] = True
        places = self._places[shape].to(t.device) & rows.view(-1, *[1] * len(shape)).to(t.device)
        return t.masked_fill(places, float("nan"))
