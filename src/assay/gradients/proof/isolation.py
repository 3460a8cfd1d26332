"""Isolation: what a model, or a loss, makes of a record does not depend on the others, nor on what it has seen before.

It is asked by calling it again: with all other records replaced by one, with another number of records, and with the batch as it was after
another one. Copies of it as it was before its first call are asked (`assay.models.copies`): it may itself have written down on that call what it
keeps to from then on. Their trainable parameters are a little off: behind a layer that begins at zero nothing shows. What a call writes into the model
must not depend on the records: it would leave with the model, without noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.errors import UnsupportedModelError
from assay.models import copies


def mixes(path: str) -> str:
    """The message for a module that mixes records."""
    return (
        f"{path} mixes records: one record's loss depends on other records' activations there. "
        "Per-record clipping cannot bound such a model; replace the layer that mixes (batch statistics, attention "
        "over the batch), or put the record dimension first (batch_first=True)"
    )


def writes(what: str) -> str:
    """The message for what the forward pass writes into the model."""
    return (
        f"the forward pass writes into {what} what it has seen of the records: that would leave with the model without noise. Take it out "
        "(running statistics, data-dependent initialisation), or set it from public data before"
    )


OUT_OF_SIGHT = (
    "the losses come from no call of the whole model on tensors with a row a record, so nothing can be said about whether it mixes records: call "
    "model(...) itself (neither model.forward nor its parts one by one), and let it take and return tensors, or tuples, lists and dicts of them"
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the whole model, and what is needed to repeat it: randomness and buffers as they were before."""

    args: Any
    kwargs: Any
    random_state: Tensor
    buffers: Mapping[str, Tensor]
    output: Any
    before: nn.Module | None
    """The model as it was, sharing its parameters; None where it cannot be copied."""
    values: list[Tensor]
    """The output as it was: what follows may change it in place."""
    drew: bool
    """Whether it drew random numbers."""
    wrote: frozenset[str]
    """The buffers that it changed."""

    def again(self, model: nn.Module, change: Callable[[Any], Any] = lambda t: t) -> _Answer:
        """The same call of such a model, with the randomness and the buffers of this one and its arguments changed; leaves all as it was."""
        args, kwargs = pytree.tree_map(change, (self.args, self.kwargs))
        kept = copied(model.named_buffers())
        now = torch.get_rng_state()
        try:
            torch.set_rng_state(self.random_state)
            put_back(model, self.buffers)
            with torch.no_grad():
                outputs = tensors(model(*args, **kwargs))
                return _Answer(outputs, copied(model.named_buffers()), self.has_drawn())
        finally:
            torch.set_rng_state(now)
            put_back(model, kept)

    def has_drawn(self) -> bool:
        """Whether random numbers were drawn since the state of this call."""
        return not torch.equal(self.random_state, torch.get_rng_state())


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a call gives."""

    outputs: list[Tensor]
    buffers: Mapping[str, Tensor]
    drew: bool


def copied(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The values of tensors, by name."""
    return {name: t.detach().clone() for name, t in named}


def changed(before: Mapping[str, Tensor], now: Iterable[tuple[str, Tensor]]) -> frozenset[str]:
    """The names whose tensors are not what they were, those that came or went included."""
    left = dict(before)
    different = set()
    for name, t in now:
        old = left.pop(name, None)
        same = old is not None and old.shape == t.shape and old.dtype == t.dtype
        if not (same and old is not None and _equal(old, t.detach())):
            different.add(name)
    return frozenset(different | left.keys())


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether nothing was written: what is no number equals itself."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def tensors(value: Any) -> list[Tensor]:
    """All tensors in tuples, lists and dicts."""
    return [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape are the same but for rounding."""
    if not a.is_floating_point():
        return bool((a == b).all())
    tolerance = 1e3 * torch.finfo(a.dtype).eps
    scale = float(a.abs().nan_to_num(0, 0, 0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def check(call: Call, model: nn.Module, records: int) -> None:
    """Refuse a model whose call on so many records is not isolated."""
    if not any(_by_record(t, records) for t in tensors((call.args, call.kwargs))):
        raise UnsupportedModelError(OUT_OF_SIGHT)
    as_it_is = call.again(_one_more(call.before) or model)
    for seen, now in zip(call.values, as_it_is.outputs, strict=True):
        if not call.drew and seen.dtype == now.dtype and not close(seen, now):
            raise UnsupportedModelError(
                "the model computes something else record by record than it does as it is: an argument that all "
                "records share may have as many rows as there are records, or the model remembers earlier batches"
            )
    elsewhere = None if call.before is None else copies.elsewhere(call.before)
    mine = _one_more(elsewhere) or model
    plain = call.again(mine)
    _check_same(plain, call.again(mine))
    for one in sorted({0, records - 1}):
        other = _one_more(elsewhere) or model
        alone = call.again(other, functools.partial(_only, one, records))
        for name in sorted(call.wrote):
            written, theirs = plain.buffers.get(name), alone.buffers.get(name)
            if written is None or theirs is None or written.shape != theirs.shape or not close(written, theirs):
                raise UnsupportedModelError(writes(f"buffer {name}"))
        for with_others, without in zip(plain.outputs, alone.outputs, strict=True):
            if records > 1 and _by_record(with_others, records) and not close(with_others[one], without[one]):
                raise UnsupportedModelError(mixes("the model"))
        _check_same(plain, call.again(other))
    _check_number(call, _one_more(elsewhere), model, records)


def _one_more(model: nn.Module | None) -> nn.Module | None:
    """A copy that shares the parameters; None of None, and where there is none."""
    return None if model is None else copies.of_model(model, sharing=model.parameters())


def _check_same(once: _Answer, again: _Answer) -> None:
    if not all(close(a, b) for a, b in zip(once.outputs, again.outputs, strict=True)):
        raise UnsupportedModelError(
            "the same batch gives another output the second time: the model remembers what it has seen outside its buffers, "
            "or draws random numbers from a generator of its own. What it remembers would mix records"
        )


def _check_number(call: Call, copy: nn.Module | None, model: nn.Module, records: int) -> None:
    """What the model makes of the first and the last record must not change with how many there are.

    Dropout draws other numbers for another number of records: such a model is asked in eval mode, and cannot tell if it draws there, too.
    """
    if call.drew:
        if copy is None:
            return
        copy.eval()
    mine = copy or model
    whole = call.again(mine)
    if whole.drew:
        return
    rows = _rows(records)
    try:
        some = call.again(mine, functools.partial(_picked, rows, records))
    except Exception as error:  # the user's own model, which may fail in any way
        raise UnsupportedModelError(
            f"the model takes {records} records and fails for {len(rows)} of them ({type(error).__name__}: {error}): batches differ in size"
        ) from error
    for many, few in zip(whole.outputs, some.outputs, strict=True):
        if _by_record(many, records) and not (_by_record(few, len(rows)) and close(many[rows], few)):
            raise UnsupportedModelError(
                "what the model makes of a record depends on how many records there are in its batch, and so on whether another one is "
                "among them: use a constant in the place of that number"
            )


def separate(loss: Callable[[Any, Any], Tensor], output: Any, target: Any) -> bool:
    """Refuse a loss whose first or last value changes when all other records are replaced, or when there are fewer, or that remembers what
    it has seen; whether this batch could tell, which takes two records. Ask before the loss has seen any.
    """
    random_state = torch.get_rng_state()

    def asked(of: Callable[[Any, Any], Tensor], change: Callable[[Any], Any] = lambda t: t) -> Tensor:
        torch.set_rng_state(random_state)
        return of(pytree.tree_map(change, output), pytree.tree_map(change, target))

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        mine = copies.of_loss(loss)
        plain, again = asked(mine), asked(mine)
        drew = not torch.equal(random_state, torch.get_rng_state())
        if plain.dim() != 1 or len(plain) < 2:
            return False
        records = len(plain)
        for one in (0, records - 1):
            other = copies.of_loss(loss)
            alone = asked(other, functools.partial(_only, one, records))
            if not (close(plain, again) and close(plain, asked(other))):
                raise UnsupportedModelError(
                    "the same outputs give another loss the second time: the loss remembers what it has seen, and so mixes records (running "
                    "counts), or draws random numbers from a generator that is not torch's own"
                )
            if not close(plain[one], alone[one]):
                raise UnsupportedModelError(
                    "the loss mixes records: one record's value depends on the others in its batch (weights by the batch's own counts, a "
                    "contrast over the batch). Per-record clipping cannot bound that; use constants that are known beforehand"
                )
        rows = _rows(records)
        if not drew and not close(plain[rows], asked(copies.of_loss(loss), functools.partial(_picked, rows, records))):
            raise UnsupportedModelError(
                "the loss of a record depends on how many records there are in its batch, and so on whether another one is among them: give the "
                "plain loss of each (reduction='none'); the step divides by the expected batch size, a constant"
            )
    return True


@torch.no_grad()
def put_back(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Buffers as they were, those that still have their form."""
    for name, b in model.named_buffers():
        if name in values and values[name].shape == b.shape and not torch.equal(b, values[name]):
            b.copy_(values[name])


def _by_record(t: Any, records: int) -> bool:
    return isinstance(t, Tensor) and t.dim() > 0 and t.shape[0] == records


def _only(one: int, records: int, t: Any) -> Any:
    """The same with every other record replaced by one of them; zeros in the place of a record that is alone."""
    if not _by_record(t, records):
        return t
    return torch.zeros_like(t) if records == 1 else t[one : one + 1].expand_as(t).clone()


def _rows(records: int) -> list[int]:
    """The first and the last record, in another number of them: never one, which some models take for none."""
    return [0, records - 1] if records > 2 else [0, records - 1, 0]


def _picked(rows: Sequence[int], records: int, t: Any) -> Any:
    return t[list(rows)] if _by_record(t, records) else t
