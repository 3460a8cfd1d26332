"""Isolation: what a model computes for a record depends neither on the others nor on earlier batches.

The model is called again: with random records replaced (`assay.gradients.proof.calls`), with more or fewer
records, and with the same batch after another one. We call copies from before the call (`assay.models.copies`), because
the model itself may have stored something during the call. On the first batch we perturb the copies' trainable
parameters, because a zero-initialised layer would hide mixing before it. What a call writes into the model must not
depend on the records: it would be released with the model, without noise. That holds for buffers, for extra state
(`get_extra_state`), and for attributes that the model uses, in train or in eval mode.

A model may fail on rows that no data set holds (zeros, large or missing values); those are skipped. It must accept rows
of the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.gradients.proof.calls import (
    Answer,
    Call,
    Coins,
    Replacement,
    a_few,
    by_record,
    close,
    copied,
    extra_states,
    kept_alike,
    levelled,
    only,
    picked,
    put_back,
    random_state,
    rounds,
    set_random_state,
    tensors,
)
from assay.gradients.proof.rows import Rows, Where, opened
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
        f"the {during} pass writes into {what} what it has seen of the records: that would leave with the model "
        "without noise. Take it out (running statistics, data-dependent initialisation, statistics of gradients), or "
        "set it from public data before"
    )


OUT_OF_SIGHT = (
    "the losses come from no call of the whole model on tensors with one row per record (batch_first=True), so nothing "
    "can be said about whether it mixes records: call model(...) itself (neither model.forward nor its layers one by "
    "one), and let it take and return tensors, or tuples, lists and dicts of them"
)


_ROUNDING = 1e3
_SMALL_BATCH = 8  # records; half of them would be too few to tell
_DIFFERENCE = 1e-2  # a number of records in place of two or three makes a larger one


def check(call: Call, model: nn.Module, records: int, coins: Coins, where: Where, *, full: bool = True) -> None:
    """Refuse a model whose call is not isolated.

    Args:
        call: The call to repeat.
        model: The model, for calls if it cannot be copied.
        records: How many records the call has.
        coins: Where random choices come from.
        where: Where the records are in the arguments, as far as earlier batches have shown it.
        full: All replacements, as on the first batch, or one random half.

    Raises:
        UnsupportedModelError: It is not; the message says what the model does.
    """
    rows = Rows((call.args, call.kwargs), records, where)
    call, inputs = replace(call, rows=rows), tensors(rows.values)
    if not any(by_record(t, records) for t in inputs):
        raise UnsupportedModelError(OUT_OF_SIGHT)
    start = call.before
    if full:
        as_it_is = call.again(_one_more(start) or model)
        for seen, now in zip(call.values, as_it_is.outputs, strict=False):
            alike = seen.shape == now.shape and (call.drew or seen.dtype != now.dtype or close(seen, now))
            if not alike:
                raise UnsupportedModelError(
                    "the model computes something else record by record than it does as it is: an argument that all "
                    "records share may have as many rows as there are records, or the model remembers earlier batches"
                )
        start = None if start is None else copies.elsewhere(start)
    one = int(coins.uniform(1) * records)
    must = records > 1  # every model takes rows of its own batch, but maybe no zeros
    alone = Replacement(torch.tensor([one]), functools.partial(only, one, records))
    asked = [[alone]] if full or records == 1 else []
    if records == 1:
        asked.append([Replacement(torch.tensor([0]), levelled)])
    else:
        asked += rounds(inputs, records, coins, full=full)
    others = [_one_more(start) for _ in asked]  # copied before the first call, which may store what it sees
    last = _one_more(start) if full else None
    mine = start or model
    plain = call.again(mine)
    _check_same(plain, call.again(mine))
    axes = _axes(call, start, plain.outputs, records, coins)
    compared = axes if records > 1 else [None] * len(axes)
    for replacements, other in zip(asked, others, strict=True):
        for replacement in replacements:
            _check_replaced(call, other or model, plain, replacement, compared, must=must and replacement is alone)
        if other is not None:
            _check_left(call, mine, other)
        _check_same(plain, call.again(other or model))
    if full:
        _check_number(call, last, model, records, coins, axes)


def _axes(
    call: Call, start: nn.Module | None, outputs: Sequence[Tensor], records: int, coins: Coins
) -> list[int | None]:
    """The dimension of the records in each output: the one that is smaller for fewer records.

    An output that the losses do not depend on may have none (the states of two layers, for two records). Everywhere
    else the records are first where the size allows it.
    """
    first = [next((i for i, size in enumerate(t.shape[:2]) if size == records), None) for t in outputs]
    copy = _one_more(start)
    if copy is None:
        return first
    rows = a_few(records, coins)
    try:
        few = call.again(copy, functools.partial(picked, rows, records)).outputs
    except Exception:  # the user's own model; `_check_number` says what is wrong
        return first
    if len(few) != len(outputs):
        return first
    moved = [_axis(many.shape, some.shape, records, len(rows)) for many, some in zip(outputs, few, strict=True)]
    unused = [i not in call.used for i in range(len(outputs))] if call.used is not None else [False] * len(outputs)
    return [
        axis if axis is not None or skip else at_first
        for axis, at_first, skip in zip(moved, first, unused, strict=True)
    ]


def _axis(many: torch.Size, few: torch.Size, records: int, fewer: int) -> int | None:
    if len(many) != len(few):
        return None
    moved = [i for i, sizes in enumerate(zip(many, few, strict=True)) if sizes == (records, fewer)]
    return moved[0] if moved else None


def check_unmoved(call: Call, now: nn.Module) -> None:
    """Refuse a model that computes something else after the backward pass than before its forward pass.

    Args:
        call: The call to repeat.
        now: A copy of the model as it is now.

    Raises:
        UnsupportedModelError: It does.
    """
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
    call: Call, other: nn.Module, plain: Answer, replacement: Replacement, axes: Sequence[int | None], *, must: bool
) -> None:
    """Refuse a model whose outputs for the kept records, or writes, change when the others are replaced."""
    try:
        base = plain if replacement.base is None else call.again(other, replacement.base)
        answer = call.again(other, replacement.change)
    except UnsupportedModelError:
        raise
    except Exception:  # the user's model need not accept such records (lengths in no order, a value out of range)
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
    for with_others, without, axis in zip(base.outputs, answer.outputs, axes, strict=True):
        if axis is not None and not kept_alike(with_others, without, replacement, axis):
            raise UnsupportedModelError(mixes("the model"))


def _check_left(call: Call, mine: nn.Module, other: nn.Module) -> None:
    """Refuse a model if two copies that saw different records differ in eval mode, or in their extra state."""
    for (name, a), (_, b) in zip(extra_states(mine), extra_states(other), strict=True):
        if a != b:
            raise UnsupportedModelError(writes(f"the extra state of {name or 'the model'}"))
    try:
        alike = _alike(_in_eval(call, mine), _in_eval(call, other))
    except Exception:  # the user's own model, which need not take these arguments in eval mode
        return
    if not alike:
        raise UnsupportedModelError(writes("the model (an attribute that it uses in eval mode)"))


def _in_eval(call: Call, copy: nn.Module) -> Answer:
    modes = [(m, m.training) for m in copy.modules()]
    copy.eval()
    try:
        return call.again(copy)
    finally:
        for m, training in modes:
            m.training = training


def _alike(once: Answer, again: Answer) -> bool:
    return all(a.shape == b.shape and close(a, b) for a, b in zip(once.outputs, again.outputs, strict=True))


def _one_more(model: nn.Module | None) -> nn.Module | None:
    """A copy that shares the parameters; None if there is no model, or it cannot be copied."""
    return None if model is None else copies.of_model(model, sharing=model.parameters())


def _check_same(once: Answer, again: Answer) -> None:
    if not _alike(once, again):
        raise UnsupportedModelError(
            "the same batch gives another output the second time: the model remembers what it has seen outside its "
            "buffers, or draws random numbers from a generator of its own. What it remembers would mix records"
        )


def _check_number(
    call: Call,
    copy: nn.Module | None,
    model: nn.Module,
    records: int,
    coins: Coins,
    axes: Sequence[int | None],
) -> None:
    """Refuse a model whose output for a record depends on how many records there are.

    Dropout draws other numbers for another number of records, so such a model is called in eval mode. If it draws
    numbers there as well, nothing can be said.
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
            f"the model takes {records} records and fails for {len(rows)} of them ({type(error).__name__}: {error}): "
            "batches differ in size"
        ) from error
    at = torch.tensor(rows)
    for many, few, axis in zip(whole.outputs, some.outputs, axes, strict=True):
        if axis is None:
            continue
        kept = many.index_select(axis, at.to(many.device))
        if kept.shape != few.shape or not close(kept, few):
            raise UnsupportedModelError(
                "what the model makes of a record depends on how many records there are in its batch, and so on "
                "whether another one is among them: use a constant in place of that number"
            )
    _check_number_backwards(call, copy, records, rows, axes, coins)


def _check_number_backwards(
    call: Call, copy: nn.Module | None, records: int, rows: list[int], axes: Sequence[int | None], coins: Coins
) -> None:
    """Refuse a model whose gradients for a few records' outputs depend on how many other records there are.

    The others are half of a larger batch, because the graph of the whole batch is in memory already. It calls copies,
    because a backward pass may write. Nothing can be said about a model that cannot be copied, computes without
    autograd or forbids `torch.autograd.grad`.
    """
    one, other = _one_more(copy), _one_more(copy)
    if one is None or other is None:
        return
    others = [i for i in coins.uniform(records).argsort().tolist() if i not in rows]
    many = list(range(records)) if records <= _SMALL_BATCH else rows + others[: records // 2]
    try:
        among = _gradients(call, one, [many.index(i) for i in rows], axes, functools.partial(picked, many, records))
        alone = _gradients(call, other, range(len(rows)), axes, functools.partial(picked, rows, records))
    except Exception:  # the user's own model, which may fail in any way
        return
    pairs = [(a.to_dense(), b.to_dense()) for a, b in zip(among, alone, strict=True) if a is not None and b is not None]
    largest = max((float(a.abs().max()) for a, _ in pairs if a.numel()), default=0.0)
    for theirs, own in pairs:
        if not theirs.numel():
            continue
        # Some parameters (the bias of a softmax's keys) have a true gradient of 0, where only rounding is compared.
        rounding = _ROUNDING * float(torch.finfo(theirs.dtype).eps) * largest
        if float((theirs - own).abs().max()) > max(rounding, _DIFFERENCE * float(theirs.abs().max())):
            raise UnsupportedModelError(
                "the backward pass mixes records: the gradients of some records depend on how many others there are (a "
                "hook or a function of its own that scales gradients by the batch). Per-record clipping cannot bound "
                "that"
            )


def _gradients(
    call: Call, model: nn.Module, rows: Sequence[int], axes: Sequence[int | None], change: Callable[[Any], Any]
) -> list[Tensor | None]:
    """The gradients of these rows' outputs with respect to each trained parameter; no `.grad` is written."""
    args, kwargs = call.changed(change)
    buffers = copied(model.named_buffers())
    now = random_state()
    try:
        set_random_state(call.random_state)
        put_back(model, call.buffers)
        with torch.enable_grad():
            outputs = zip(tensors(opened(model(*args, **kwargs))), axes, strict=True)
            at = torch.tensor(rows)
            asked_of = [(t, axis) for t, axis in outputs if axis is not None and t.requires_grad]
            kept = [t.index_select(axis, at.to(t.device)) for t, axis in asked_of]
            total = torch.stack([_weighted(t) for t in kept]).sum()
        asked = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return list(torch.autograd.grad(total, asked, allow_unused=True))
    finally:
        set_random_state(now)
        put_back(model, buffers)


def _weighted(output: Tensor) -> Tensor:
    """A sum in which no two numbers count alike, so that none cancel."""
    flat = output.flatten().double()
    return (flat * (1 + torch.arange(len(flat), dtype=torch.float64, device=flat.device) / max(1, len(flat)))).sum()
