"""Isolation: what a model, or a loss, makes of a record does not depend on the others, nor on what it has seen before.

It is asked by calling it again: with random parts of the batch replaced (`assay.gradients.proof.replacements`), with another number of records, and with the
batch as it was after another one. Copies of it as it was before the call are asked (`assay.models.copies`): it may itself have written down on that
call what it keeps to from then on. On the first batch we move the copies' trainable parameters a little, because a layer that begins at zero would
hide what is mixed before it. What a call writes into the model must not depend on the records: it would leave with the model, without noise.
That holds for buffers, for extra state (`get_extra_state`), and for attributes by which the model computes, in train or in eval mode.

Whatever fails on rows that no data set holds (zeros, large or missing values) is left out; rows of the batch itself it must take.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.errors import UnsupportedModelError
from assay.gradients.proof.replacements import Coins, Replacement, a_few, by_record, only, picked, rounds
from assay.models import copies


def mixes(path: str) -> str:
    """The message for a module that mixes records."""
    return (
        f"{path} mixes records: one record's loss depends on other records' activations there. "
        "Per-record clipping cannot bound such a model; replace the layer that mixes (batch statistics, attention "
        "over the batch), or put the record dimension first (batch_first=True)"
    )


def writes(what: str, during: str = "forward") -> str:
    """The message for what a pass writes into the model."""
    return (
        f"the {during} pass writes into {what} what it has seen of the records: that would leave with the model without noise. Take it out "
        "(running statistics, data-dependent initialisation, statistics of gradients), or set it from public data before"
    )


OUT_OF_SIGHT = (
    "the losses come from no call of the whole model on tensors with a row a record, so nothing can be said about whether it mixes records: call "
    "model(...) itself (neither model.forward nor its parts one by one), and let it take and return tensors, or tuples, lists and dicts of them"
)


LOSS_MIXES = (
    "the loss mixes records: one record's value depends on the others in its batch (weights by the batch's own counts, a "
    "contrast or a ranking over the batch). Per-record clipping cannot bound that; use constants that are known beforehand"
)

RandomState = list[Tensor]


def random_state() -> RandomState:
    """The state of torch's generators that are in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def set_random_state(state: RandomState) -> None:
    """Put torch's generators back."""
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state_all(state[1:])


def drawn_since(state: RandomState) -> bool:
    """Whether random numbers were drawn since then."""
    return not all(torch.equal(a, b) for a, b in zip(state, random_state(), strict=False))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the whole model, and what is needed to repeat it: randomness and buffers as they were before."""

    args: Any
    kwargs: Any
    random_state: RandomState
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
        now = random_state()
        try:
            set_random_state(self.random_state)
            put_back(model, self.buffers)
            with torch.no_grad():
                outputs = tensors(model(*args, **kwargs))
                return _Answer(outputs, copied(model.named_buffers()), self.has_drawn())
        finally:
            set_random_state(now)
            put_back(model, kept)

    def has_drawn(self) -> bool:
        """Whether random numbers were drawn since the state of this call."""
        return drawn_since(self.random_state)


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


_ROUNDING = 1e3
_DIFFERENCE = 1e-2  # a number of records in place of two or three makes a larger one


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape are the same but for rounding."""
    if not a.is_floating_point():
        return bool((a == b).all())
    tolerance = 1e3 * torch.finfo(a.dtype).eps
    scale = float(a.abs().nan_to_num(0, 0, 0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def check(call: Call, model: nn.Module, records: int, coins: Coins, *, full: bool = True) -> None:
    """Refuse a model whose call on so many records is not isolated; on the first batch in `full`, later with one random part replaced.

    Raises:
        UnsupportedModelError: saying what the model does.
    """
    inputs = tensors((call.args, call.kwargs))
    if not any(by_record(t, records) for t in inputs):
        raise UnsupportedModelError(OUT_OF_SIGHT)
    start = call.before
    if full:
        as_it_is = call.again(_one_more(start) or model)
        for seen, now in zip(call.values, as_it_is.outputs, strict=False):
            if not call.drew and seen.dtype == now.dtype and not close(seen, now):
                raise UnsupportedModelError(
                    "the model computes something else record by record than it does as it is: an argument that all "
                    "records share may have as many rows as there are records, or the model remembers earlier batches"
                )
        start = None if start is None else copies.elsewhere(start)
    one = int(coins.uniform(1) * records)
    alone = Replacement(torch.tensor([one]), functools.partial(only, one, records))
    asked = [[alone]] if full or records == 1 else []
    if records > 1:
        asked += rounds(inputs, records, coins, full=full)
    others = [_one_more(start) for _ in asked]  # before the first is asked, which may keep what it sees
    last = _one_more(start) if full else None
    mine = start or model
    plain = call.again(mine)
    _check_same(plain, call.again(mine))
    for replacements, other in zip(asked, others, strict=True):
        for replacement in replacements:
            _check_replaced(call, other or model, plain, replacement, records, must=replacement is alone)
        if other is not None:
            _check_left(call, mine, other)
        _check_same(plain, call.again(other or model))
    if full:
        _check_number(call, last, model, records, coins)


def check_unmoved(call: Call, now: nn.Module) -> None:
    """Refuse a model that computes something else after the backward pass than before its forward pass; `now` is a copy of it as it is."""
    if call.before is None:
        return
    then = _one_more(call.before)
    if then is None:
        return
    try:
        modes = [(call.again(then), call.again(now)), (_in_eval(call, then), _in_eval(call, now))]
    except Exception:  # the user's own model, which need not take these arguments in eval mode
        modes = [(call.again(then), call.again(now))]
    if not all(_alike(a, b) for a, b in modes):
        raise UnsupportedModelError(writes("the model (an attribute of a module)", "backward"))


def _check_replaced(
    call: Call, other: nn.Module, plain: _Answer, replacement: Replacement, records: int, *, must: bool
) -> None:
    """What the model makes of the records that are kept, and what it writes, is the same when the others are replaced."""
    try:
        base = plain if replacement.base is None else call.again(other, replacement.base)
        answer = call.again(other, replacement.change)
    except UnsupportedModelError:
        raise
    except (
        Exception
    ):  # the user's own model, which need not take such records (lengths in no order, a value out of range)
        if must:
            raise
        return
    names = plain.buffers.keys() | answer.buffers.keys() if replacement.real else call.wrote
    for name in sorted(names):
        written, theirs = base.buffers.get(name), answer.buffers.get(name)
        if replacement.gaps or (written is theirs is None):
            continue
        if written is None or theirs is None or written.shape != theirs.shape or not close(written, theirs):
            raise UnsupportedModelError(writes(f"buffer {name}"))
    if records == 1:
        return
    for with_others, without in zip(base.outputs, answer.outputs, strict=True):
        if by_record(with_others, records) and not _kept_alike(with_others, without, replacement):
            raise UnsupportedModelError(mixes("the model"))


def _kept_alike(plain: Tensor, replaced: Tensor, replacement: Replacement) -> bool:
    """Whether two outputs agree in the rows that are kept."""
    if plain.shape != replaced.shape:
        return not replacement.real
    rows = replacement.kept.to(plain.device)
    a, b = plain[rows], replaced[rows]
    if replacement.gaps and a.is_floating_point():
        both = a.isfinite() & b.isfinite()
        a, b = a[both], b[both]
    return close(a, b)


def _check_left(call: Call, mine: nn.Module, other: nn.Module) -> None:
    """Two copies that have seen different records compute the same in eval mode and have the same extra state."""
    for (name, a), (_, b) in zip(extra_states(mine), extra_states(other), strict=True):
        if a != b:
            raise UnsupportedModelError(writes(f"the extra state of {name or 'the model'}"))
    try:
        alike = _alike(_in_eval(call, mine), _in_eval(call, other))
    except Exception:  # the user's own model, which need not take these arguments in eval mode
        return
    if not alike:
        raise UnsupportedModelError(writes("the model (an attribute that it uses in eval mode)"))


def _in_eval(call: Call, copy: nn.Module) -> _Answer:
    modes = [(m, m.training) for m in copy.modules()]
    copy.eval()
    try:
        return call.again(copy)
    finally:
        for m, training in modes:
            m.training = training


def has_extra_state(module: nn.Module) -> bool:
    """Whether a module saves more than parameters and buffers."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def extra_states(model: nn.Module) -> list[tuple[str, bytes]]:
    """What modules save besides parameters and buffers, as bytes; nothing where it cannot be written down."""
    return [(name, extra_state(m)) for name, m in model.named_modules() if has_extra_state(m)]


def extra_state(module: nn.Module) -> bytes:
    """What a module saves besides parameters and buffers."""
    try:
        return pickle.dumps(pytree.tree_map(_plain, module.get_extra_state()))
    except Exception:  # anything may be in there
        return b""


def _plain(value: Any) -> Any:
    return value.detach().cpu().tolist() if isinstance(value, Tensor) else value


def _alike(once: _Answer, again: _Answer) -> bool:
    return all(a.shape == b.shape and close(a, b) for a, b in zip(once.outputs, again.outputs, strict=True))


def _one_more(model: nn.Module | None) -> nn.Module | None:
    """A copy that shares the parameters; None of None, and where there is none."""
    return None if model is None else copies.of_model(model, sharing=model.parameters())


def _check_same(once: _Answer, again: _Answer) -> None:
    if not _alike(once, again):
        raise UnsupportedModelError(
            "the same batch gives another output the second time: the model remembers what it has seen outside its buffers, "
            "or draws random numbers from a generator of its own. What it remembers would mix records"
        )


def _check_number(call: Call, copy: nn.Module | None, model: nn.Module, records: int, coins: Coins) -> None:
    """What the model makes of two records must not change with how many there are.

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
    rows = a_few(records, coins)
    try:
        some = call.again(mine, functools.partial(picked, rows, records))
    except Exception as error:  # the user's own model, which may fail in any way
        raise UnsupportedModelError(
            f"the model takes {records} records and fails for {len(rows)} of them ({type(error).__name__}: {error}): batches differ in size"
        ) from error
    for many, few in zip(whole.outputs, some.outputs, strict=True):
        if by_record(many, records) and not (by_record(few, len(rows)) and close(many[rows], few)):
            raise UnsupportedModelError(
                "what the model makes of a record depends on how many records there are in its batch, and so on whether another one is "
                "among them: use a constant in the place of that number"
            )
    _check_number_backwards(call, copy, records, torch.tensor(rows))


def _check_number_backwards(call: Call, copy: nn.Module | None, records: int, rows: Tensor) -> None:
    """Nor must the gradients of a few records' outputs change with how many others there are whose outputs do not count.

    Copies are asked, because a backward pass may write. Where gradients cannot be asked for (a model that cannot be
    copied, computes without autograd or forbids `torch.autograd.grad`), this says nothing.
    """
    one, other = _one_more(copy), _one_more(copy)
    if one is None or other is None:
        return
    try:
        among = _gradients(call, one, rows, records, lambda t: t)
        few_of_them = functools.partial(picked, rows.tolist(), records)
        alone = _gradients(call, other, torch.arange(len(rows)), len(rows), few_of_them)
    except Exception:  # the user's own model, which may fail in any way
        return
    pairs = [(a.to_dense(), b.to_dense()) for a, b in zip(among, alone, strict=True) if a is not None and b is not None]
    largest = max((float(a.abs().max()) for a, _ in pairs if a.numel()), default=0.0)
    for many, few in pairs:
        if not many.numel():
            continue
        # Of some parameters (the bias of a softmax's keys) the true gradient is 0, and only rounding is left to compare.
        rounding = _ROUNDING * float(torch.finfo(many.dtype).eps) * largest
        if float((many - few).abs().max()) > max(rounding, _DIFFERENCE * float(many.abs().max())):
            raise UnsupportedModelError(
                "the backward pass mixes records: the gradients of some records depend on how many others there are (a "
                "hook or a function of its own that scales gradients by the batch). Per-record clipping cannot bound that"
            )


def _gradients(
    call: Call, model: nn.Module, rows: Tensor, records: int, change: Callable[[Any], Any]
) -> list[Tensor | None]:
    """The gradients of the outputs of these rows by each trained parameter. Nothing is accumulated anywhere."""
    args, kwargs = pytree.tree_map(change, (call.args, call.kwargs))
    kept = copied(model.named_buffers())
    now = random_state()
    try:
        set_random_state(call.random_state)
        put_back(model, call.buffers)
        with torch.enable_grad():
            outputs = [t for t in tensors(model(*args, **kwargs)) if by_record(t, records) and t.requires_grad]
            total = torch.stack([_weighted(t[rows]) for t in outputs]).sum()
        asked = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return list(torch.autograd.grad(total, asked, allow_unused=True))
    finally:
        set_random_state(now)
        put_back(model, kept)


def _weighted(output: Tensor) -> Tensor:
    """A sum in which no two numbers count alike, so that none cancel."""
    flat = output.flatten().double()
    return (flat * (1 + torch.arange(len(flat), dtype=torch.float64, device=flat.device) / max(1, len(flat)))).sum()


def separate(loss: Callable[[Any, Any], Tensor], output: Any, target: Any, coins: Coins) -> bool:
    """Refuse a loss in which a record's value changes when others are replaced, or when there are fewer, or that remembers what it has seen.

    Ask on the first batch before the loss has seen any record.

    Returns:
        Whether this batch could tell, which takes two records.

    Raises:
        UnsupportedModelError: saying what the loss does.
    """
    state = random_state()

    def asked(of: Callable[[Any, Any], Tensor], change: Callable[[Any], Any] = lambda t: t) -> Tensor:
        set_random_state(state)
        return of(pytree.tree_map(change, output), pytree.tree_map(change, target))

    try:
        with torch.no_grad():
            mine = copies.of_loss(loss)
            plain, again = asked(mine), asked(mine)
            drew = drawn_since(state)
            if plain.dim() != 1 or len(plain) < 2:
                return False
            records, same = len(plain), close(plain, again)
            for replacements in rounds(tensors((output, target)), records, coins, full=True, gaps=False):
                other = copies.of_loss(loss)
                alone = all(
                    _kept_alike(plain, asked(other, r.change), r)
                    for r in replacements
                    if r.real or _takes(asked, other, r)
                )
                if not (same and close(plain, asked(other))):
                    raise UnsupportedModelError(
                        "the same outputs give another loss the second time: the loss remembers what it has seen, and so mixes records (running "
                        "counts), or draws random numbers from a generator that is not torch's own"
                    )
                if not alone:
                    raise UnsupportedModelError(LOSS_MIXES)
            rows = a_few(records, coins)
            if not drew and not close(
                plain[rows], asked(copies.of_loss(loss), functools.partial(picked, rows, records))
            ):
                raise UnsupportedModelError(
                    "the loss of a record depends on how many records there are in its batch, and so on whether another one is among them: give the "
                    "plain loss of each (reduction='none'); the step divides by the expected batch size, a constant"
                )
    finally:
        set_random_state(state)
    return True


def _takes(asked: Callable[..., Tensor], loss: Callable[[Any, Any], Tensor], replacement: Replacement) -> bool:
    """Whether a loss takes such values: it is the user's own, and a probability above 1 may be an error."""
    try:
        asked(loss, replacement.change)
    except Exception:
        return False
    return True


@torch.no_grad()
def put_back(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Buffers as they were, those that still have their form."""
    for name, b in model.named_buffers():
        if name in values and values[name].shape == b.shape and not torch.equal(b, values[name]):
            b.copy_(values[name])
