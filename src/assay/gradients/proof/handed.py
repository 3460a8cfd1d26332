"""What a loop does with a batch, before the model and after it, must keep records apart, too.

A loop may mix records where the model does not show it: mixup, centring by the batch's mean, targets that are mixed,
weights by the classes of the batch. So on its first batches, and on random later ones, what the loop does is written
down (`assay.gradients.proof.tape`) and repeated with rows of some records in place of others. The losses of the
records that stayed must be what they were, and so must the gradients that they send back to the model. A loop may put
its records in another order, if each enters one loss.

What was kept of an earlier batch (a memory bank, a running mean) is replaced as well: no loss may change with it. And a
number by which losses are multiplied or divided may not be in proportion to the number of records, which one record
changes for all others.

Where records are padded to the longest of their batch, what the loop does is also repeated with less padding. That
depends on one record, the longest, and no other record's loss may change with it.

What it does not see: numbers that the loop takes out of torch and brings back (NumPy, `tolist`), and mixing on batches
that nobody looks at.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from torch import Tensor, nn

from assay.data.apart import Padded
from assay.gradients.proof.calls import Coins, only, others, splits
from assay.gradients.proof.path import Path
from assay.gradients.proof.spread import Places
from assay.gradients.proof.tape import Tape, with_rows

FIRST = 4
"""How many batches of a loop are looked at, one after the other."""
_SIZES, _FOR_SIZES = 3, 16  # how many sizes of batches are compared, and how many batches are looked at for them
_FOR_TWO = 64  # how many batches are looked at until there were enough with two records or more
_SAMPLED, _AT_MOST = 16, 1024  # records that are each put in all places: usually, and where losses may be doubled
_EVERY = 256  # then one of this many, at random: it costs as much as one step

_EARLIER_ONES = Places()  # what loops hold of the batches that were looked at, of all steps

_ELSEWHERE = (
    "nothing was done with the batch that batches() gave, so these are losses of other records: ε is true only for "
    "batches that the plan's sampler drew"
)
_MIXED = (
    "a record of the batch enters the losses of several: something between batches() and backward() mixes records "
    "(mixup, CutMix, centring or scaling by the batch, targets that are mixed, weights by the classes of the batch). "
    "Clipping cannot bound what one record then does. Change each record by itself, in the data set or with `augment`, "
    "or use constants"
)
_MIXED_BACK = (
    "the gradients of the losses depend on the other records of the batch, although the losses do not (an autograd "
    "function of its own, a scale that only gradients see): clipping cannot bound what one record then does to the "
    "others. Use constants, or numbers of the record itself"
)
_UNSEEN_BACK = (
    "the gradients of the losses are not those of what the loop computes: a hook (register_hook), or an autograd "
    "function of its own, changes them between the model and the losses, and nobody can see whether by other records. "
    "Put it into the model, where its backward pass is checked, or take it out"
)
_MOVED = (
    "the losses are in another order than the rows of the batch: the rows of a person, or the views of a record, are "
    "told by their places. Keep the order that batches() gave"
)
_EARLIER = (
    "the losses depend on records of an earlier batch (a memory bank, a running mean, kept targets, weights that the "
    "loop trains on them by itself), or on a gradient of this one: clipping cannot bound what those records do here. "
    "Use constants, or what step.backward has released"
)
_WRITTEN = (
    "the loop writes into {} what it made of the batch (class centres, a codebook, running statistics): that would "
    "leave with the model without noise. Compute it from public data or from what step.backward has released"
)
_PADDED = (
    "a record's loss changes with the length of the longest record in its batch: the model, or the loop, does not "
    "leave out the padding (a mean or a maximum over all positions, the last position, attention without a mask, "
    "positions counted from padding on the left). One long record would enter the losses of all others, which clipping "
    "cannot bound. Mask the padding, or pad all records to one length, a constant"
)
_COUNTED = (
    "the losses are multiplied or divided by a number that is in proportion to the number of records in the batch, and "
    "so tells whether another one is among them: give the plain loss of each (reduction='none'); the step divides by "
    "the expected batch size, a constant"
)


class LoopWatch:
    """Looks at what a loop does with its batches.

    Args:
        model: The model.
        copied: Gives a copy of the model; None where it cannot be copied.
        coins: Which records are replaced, and on which batches.
    """

    def __init__(self, model: nn.Module, copied: Callable[[], nn.Module | None], coins: Coins) -> None:
        self._model, self._copied, self._coins = model, copied, coins
        self._left = self._seen = self._shown = 0
        self._tapes: list[Tape] = []  # the one that is running, if any
        weakref.finalize(self, _stop, self._tapes).atexit = False
        self._factors: list[tuple[int, list[tuple[str, float]]]] = []
        self._warned = False

    def is_due(self) -> bool:
        """Whether the next batch is looked at. Call once for each batch."""
        self._seen += 1
        sizes, multiplied = {size for size, _ in self._factors}, any(factors for _, factors in self._factors)
        early = self._shown < FIRST and self._seen <= _FOR_TWO
        if early or (self._seen <= _FOR_SIZES and multiplied and len(sizes) < _SIZES):
            self._left = self._gap()
            return True
        self._left -= 1
        if self._left > 0:
            return False
        self._left = self._gap()
        return True

    def _gap(self) -> int:
        return 1 + int(math.log1p(-float(self._coins.uniform(1))) / math.log1p(-1 / _EVERY))

    def hand_out(self, batch: Any, rows: int) -> Tape:
        """A tape of what the loop does with this batch, which begins at once."""
        self.stop()
        tape = Tape(batch, rows, self._model, self._copied, _EARLIER_ONES)
        tape.start()
        self._tapes.append(tape)
        return tape

    def pause(self) -> None:
        """Do not listen for a while."""
        for tape in self._tapes:
            tape.stop()

    def resume(self) -> None:
        """Listen again."""
        for tape in self._tapes:
            tape.start()

    def go_on(self) -> None:
        """Listen to what the loop does after `backward`: it must not write records into the model."""
        for tape in self._tapes:
            tape.end_path()
            _EARLIER_ONES.take_over(tape.made)
        self.resume()

    def stop(self) -> None:
        """End the tape that is running, if any."""
        _stop(self._tapes)

    def leave(self, interpreter_ends: Callable[[], bool] = sys.is_finalizing) -> None:
        """The loop was left. End the tape that is running, unless the losses of its batch may still come."""
        # Python closes a loop that an exception left at its own end, when the names of this module are gone
        if not interpreter_ends() and all(tape.ended for tape in self._tapes):
            self.stop()

    def written(self) -> str | None:
        """End the tape that is running. Why the loop must be refused for what it wrote into the model, if anything."""
        found = [tape.written_into_model() for tape in self._tapes]
        self.stop()
        return next((_WRITTEN.format(what) for what in found if what is not None), None)

    def fault(
        self,
        tape: Tape,
        losses: Tensor,
        *,
        in_order: bool,
        padded: Callable[[], Sequence[Padded]] = tuple,
        check_used: Callable[[Sequence[Tensor]], None] = lambda _: None,
    ) -> str | None:
        """Why these losses must be refused: several depend on one record, or rows have left their places.

        Args:
            tape: What the loop did.
            losses: One for each row of the batch.
            in_order: Whether loss i must be that of row i, because rows belong together by their places.
            padded: Gives the batch with as much padding as it has, and with less, where there is any.
            check_used: Refuses tensors that the loop makes losses with, beside the batch and the model, if it must.

        Returns:
            A message, or None where nothing is wrong.
        """
        if not tape.holds_rows or len(losses) < 2:
            return None
        self._shown += 1
        if not tape.touched:
            return _ELSEWHERE
        if (what := tape.written_into_model()) is not None:
            return _WRITTEN.format(what)
        if tape.blind or not tape.made_of_batch(losses):
            self._warn("torch does not show how inputs or losses are made of the batch (NumPy, vmap, scripted code)")
            return None
        path = tape.path_to(losses)
        check_used(path.constants)
        self._factors.append((len(losses), path.factors))
        try:
            found = self._compared(path, tape, losses.detach(), in_order=in_order) or self._with_less_padding(
                path, padded(), len(losses)
            )
        except Exception as error:  # the user's own code, which need not take other records
            self._warn(f"what it does cannot be repeated with other records ({type(error).__name__}: {error})")
            found = None
        if found is None and any(t in tape.unseen for t in path.constants):
            self._warn("torch does not show how something of it is made of the batch (vmap, torch.func, scripted code)")
        return found or (_COUNTED if _in_proportion(self._factors) else None)

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"Assay cannot see whether this loop mixes records before or after the model: {why}. See "
                '"What is seen of your own loop" in the threat model',
                stacklevel=2,
            )

    def _compared(self, path: Path, tape: Tape, losses: Tensor, *, in_order: bool) -> str | None:
        whole = path.again()
        plain = whole.losses
        size = _largest(plain - plain[plain.isfinite()].mean())  # a constant in all losses changes no gradient
        near = 0.1 if path.in_half_precision else 1e-2
        alike = functools.partial(math.isclose, rel_tol=1e-4, abs_tol=1e-5 * size)
        if any(_is_earlier(t) or t in tape.gradients for t in path.constants):
            other = path.again(others=lambda t: _disturbed(t) if _is_earlier(t) or t in tape.gradients else t)
            if not (_close(plain, other.losses) and alike(whole.sent_back(), other.sent_back())):
                return _EARLIER
        told = bool(_equal(plain, losses, near * 0.1).all())  # the same random numbers, for a start
        if told and not math.isclose(tape.sent_back, whole.sent_back(to=tape.last), rel_tol=near, abs_tol=1e-3 * size):
            return _UNSEEN_BACK
        (mask,) = splits(len(plain), self._coins, 1)
        halves = (mask, ~mask) if self._shown <= FIRST else (mask,)
        for half in halves:
            replaced = others(half, self._coins)
            again = path.again(replaced.change)
            if not _close(plain[replaced.kept], again.losses[replaced.kept]):
                break
            if not alike(whole.sent_back(~half), again.sent_back(~half)):
                return _MIXED_BACK
        else:
            return None
        if _sorted_by_content(path, self._coins) or _in_another_order(path, plain, self._coins):
            return _MOVED if in_order else None
        return _MIXED

    def _with_less_padding(self, path: Path, padded: Sequence[Padded], size: int) -> str | None:
        """Whether a loss changes with how far its record is padded."""
        alike = functools.partial(_equal_but_for_length, in_half=path.in_half_precision)
        for among_all, among_some, kept in padded:
            one, other = (path.of(with_rows(batch, size)) for batch in (among_all, among_some))
            if one.drew or other.drew:  # random numbers of another shape are others
                return None
            before, after = one.losses, other.losses
            if bool(alike(before, after)[kept].all()):
                continue
            there = all(bool(alike(before, row.expand_as(before)).any()) for row in after)
            reordered = there and (
                _sorted_by_content(path, self._coins) or _in_another_order(path, path.again().losses, self._coins)
            )
            if not reordered:
                return _PADDED
        return None


def _stop(tapes: list[Tape]) -> None:
    while tapes:
        tape = tapes.pop()
        tape.stop()
        _EARLIER_ONES.take_over(tape.made)


def _is_earlier(t: Tensor) -> bool:
    return t in _EARLIER_ONES


def _disturbed(t: Tensor) -> Tensor:
    """Another value, for what was kept of an earlier batch, or is a gradient of this one."""
    if t.is_floating_point():
        return 1.5 * t + 0.25 * (1 + t.abs().mean())
    return ~t if t.dtype is torch.bool else t.flip(0) if t.dim() else t + 1


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether two vectors of losses are equal up to rounding: the shapes are the same, and so are the kernels."""
    if a.shape != b.shape:
        return False
    return bool(_equal(a, b).all())


def _largest(t: Tensor) -> float:
    return float(t.abs().nan_to_num(0, 0, 0).max())


def _equal(a: Tensor, b: Tensor, tolerance: float = 1e-5, least: float = 0.0) -> Tensor:
    eps = torch.finfo(a.dtype).eps
    a, b = a.double(), b.double()
    same = (a - b).abs() <= max(tolerance, 4 * eps) * (a.abs() + 0.1 * _largest(a)) + least
    return same | (a == b) | (a.isnan() & b.isnan())


def _equal_but_for_length(a: Tensor, b: Tensor, *, in_half: bool) -> Tensor:
    """As `_equal`, where other lengths took other kernels: deep models add up what these round."""
    return _equal(a, b, 0.05 if in_half else 1e-4, 1e-3 if in_half else 2e-6)


def _in_another_order(path: Path, plain: Tensor, coins: Coins) -> bool:
    """Whether each loss changes with one record only, and no two with the same one.

    Every record has a secret word of bits, one for each repetition. A loss that depends on one record changes only in
    the repetitions that replace it. One that depends on several changes in others, too: with 24 + 3 log2 n repetitions
    it fits the word of one of n records with probability below 0.001.
    """
    records = len(plain)
    words = torch.stack([coins.uniform(records) < 0.5 for _ in range(24 + 3 * (records - 1).bit_length())])
    words = words[words.any(1) & ~words.all(1)]
    told = torch.stack([~_equal(plain, path.again(others(mask, coins).change).losses).cpu() for mask in words])
    told = told[:, told.any(0)]  # a loss that never changes shows nothing
    alone = told.T.double() @ (~words).double() == 0  # [losses, records]: it never changed without the record
    # a loss that seldom changes may fit the words of several records: what counts is whether each can have its own
    return bool((maximum_bipartite_matching(csr_array(alone.numpy()), perm_type="column") >= 0).all())


def _sorted_by_content(path: Path, coins: Coins) -> bool:
    """Whether the losses are those of single records, in whatever order (sorted by length).

    If all rows are those of one record, all losses must be one number. Before, it must have been there once for each
    copy of that record, and once for each other record that gives it: of losses that are made of several (all divided
    by the largest), records give numbers that are there less often. A number that is there more often may be that of
    records that were not asked yet.
    """
    before = path.again(in_eval=True).losses
    records = coins.uniform(len(before)).argsort()[:_AT_MOST].tolist()
    found: list[Tensor] = []
    asked = min(len(records), _SAMPLED)
    while len(found) < asked:
        record = records[len(found)]
        alone = path.again(functools.partial(only, record, len(before)), in_eval=True).losses
        if not _close(alone[:1].expand_as(alone), alone):
            return False
        found.append(alone[:1])
        giving = int(_equal(alone[:1].expand(len(found)), torch.cat(found)).sum())
        giving = max(giving, path.copies(record))
        if int(_equal(alone[:1].expand_as(before), before).sum()) < giving:
            return False
        if int(_equal(alone[:1].expand_as(before), before, 0.0).sum()) > giving:
            asked = len(records)
    return True


def _in_proportion(factors: list[tuple[int, list[tuple[str, float]]]]) -> bool:
    """Whether a factor is the number of records times, or divided into, the same constant on every batch."""
    names = [[name for name, _ in one] for _, one in factors]
    sizes = [size for size, _ in factors]
    if len(factors) < FIRST or len(set(sizes)) < _SIZES or any(one != names[0] for one in names):
        return False
    for place in range(len(names[0])):
        values = [one[place][1] for _, one in factors]
        pairs = list(zip(values, sizes, strict=True))
        for found in ([v * n for v, n in pairs], [v / n for v, n in pairs]):
            if found[0] != 0 and all(math.isclose(v, found[0], rel_tol=1e-6) for v in found):
                return True
    return False
