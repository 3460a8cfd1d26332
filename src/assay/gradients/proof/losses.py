"""What is asked of losses: one for each record, and of the loss itself that it keeps records apart.

It is called with other records, with fewer, and twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from assay.errors import ConfigError, UnsupportedModelError
from assay.gradients.proof.calls import (
    Coins,
    Replacement,
    a_few,
    by_record,
    close,
    drawn_since,
    kept_alike,
    picked,
    random_state,
    rounds,
    set_random_state,
    tensors,
)
from assay.models import copies

_TIMES = 512
_LIMIT = 6.5  # false alarms: at most 2 exp(-6.5² / 2) < 2e-9 for each record

LOSS_MIXES = (
    "the loss mixes records: one record's value depends on the others in its batch (weights by the batch's own counts, "
    "a contrast or a ranking over the batch). Per-record clipping cannot bound that; use constants that are known "
    "beforehand"
)


def check_one_each(losses: Tensor) -> None:
    """Refuse losses that are not one value per record with a gradient. Nothing else is checked.

    Raises:
        ConfigError: Saying what was given.
    """
    if losses.dim() != 1:
        raise ConfigError(
            "loss",
            f"tensor of shape {tuple(losses.shape)}",
            "one value per record, shape [batch]: use reduction='none' (and average over everything but the first "
            "dimension)",
        )
    if not losses.requires_grad:
        raise ConfigError(
            "loss",
            "a tensor without gradient",
            "a loss computed from the model's output with gradients enabled",
        )


def separate(loss: Callable[[Any, Any], Tensor], output: Any, target: Any, coins: Coins) -> bool:
    """Refuse a loss that mixes records: by the others' values, by their number, or by what it remembers.

    Call it on the first batch, before the loss has seen any record.

    Args:
        loss: Takes an output and a target, and returns one value per record.
        output: The model's output for a batch.
        target: The targets of the batch.
        coins: Where random choices come from.

    Returns:
        Whether this batch could tell, which takes two records.

    Raises:
        UnsupportedModelError: The loss mixes records; the message says how.
    """
    state = random_state()

    def asked(of: Callable[[Any, Any], Tensor], change: Callable[[Any], Any] = lambda t: t) -> list[Tensor]:
        """The losses, and what they send back to each output by record: a loss may change gradients alone."""
        set_random_state(state)
        made: list[Tensor] = []
        given = pytree.tree_map(lambda t: _watched(made, change(t)), output)
        found = of(given, pytree.tree_map(change, target))
        made = [t for t in made if found.requires_grad and found.dim() == 1 and by_record(t, len(found))]
        sent = torch.autograd.grad(found.sum(), made, allow_unused=True) if made else ()
        return [found.detach(), *(torch.zeros_like(t) if g is None else g for t, g in zip(made, sent, strict=True))]

    try:
        with torch.enable_grad():
            mine = copies.of_loss(loss)
            plain, again = asked(mine), asked(mine)
            drew = drawn_since(state)
            if plain[0].dim() != 1 or len(plain[0]) < 2:
                return False
            records, same = len(plain[0]), _all(close, plain, again)
            for replacements in rounds(tensors((output, target)), records, coins, full=True, gaps=False):
                other = copies.of_loss(loss)
                alone = all(
                    _all(functools.partial(kept_alike, replacement=r), plain, asked(other, r.change))
                    for r in replacements
                    if r.real or _takes(asked, other, r)
                )
                if not (same and _all(close, plain, asked(other))):
                    raise UnsupportedModelError(
                        "the same outputs give another loss the second time: the loss remembers what it has seen, and "
                        "so mixes records (running counts), or draws random numbers from a generator that is not "
                        "torch's own"
                    )
                if not alone:
                    raise UnsupportedModelError(LOSS_MIXES)
            rows = a_few(records, coins)
            if _number_tells(loss, output, target, rows, plain, drew=drew, asked=asked):
                raise UnsupportedModelError(
                    "the loss of a record depends on how many records there are in its batch, and so on whether "
                    "another one is among them: give the plain loss of each (reduction='none'); the step divides by "
                    "the expected batch size, a constant"
                )
    finally:
        set_random_state(state)
    return True


def _watched(made: list[Tensor], t: Any) -> Any:
    """An output of the model, to which what comes back is known."""
    if not isinstance(t, Tensor) or not t.is_floating_point():
        return t
    made.append(t.detach().requires_grad_())
    return made[-1].clone()  # which may be changed in place


def _all(alike: Callable[[Tensor, Tensor], bool], some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(alike, some, others))


def _number_tells(
    loss: Callable[[Any, Any], Tensor],
    output: Any,
    target: Any,
    rows: list[int],
    plain: list[Tensor],
    *,
    drew: bool,
    asked: Callable[..., list[Tensor]],
) -> bool:
    """Whether the losses of these rows are others without the other records."""
    few_of_them = functools.partial(picked, rows, len(plain[0]))
    if not drew:
        return not _all(close, [t[rows] for t in plain], asked(copies.of_loss(loss), few_of_them))
    few = pytree.tree_map(few_of_them, (output, target))
    mine: Callable[[Any, Any], Tensor] = copies.of_loss(loss)
    seeds: list[int] = []

    def noted(output: Any, target: Any) -> Tensor:
        seeds.append(torch.initial_seed())  # after `asked` has put the state back
        return mine(output, target)

    asked(noted)
    if torch.initial_seed() not in seeds:
        raise UnsupportedModelError(
            "the loss seeds torch's generators: what it draws for a record would be known, and would depend on the "
            "others in its batch. Take torch.manual_seed out of it"
        )
    with torch.no_grad():
        return _differs(lambda: mine(output, target)[rows], lambda: mine(*few))


def _takes(asked: Callable[..., list[Tensor]], loss: Callable[[Any, Any], Tensor], replacement: Replacement) -> bool:
    """Whether a loss accepts such values: for a user's loss, a probability above 1 may be an error."""
    try:
        asked(loss, replacement.change)
    except Exception:
        return False
    return True


def _differs(among: Callable[[], Tensor], alone: Callable[[], Tensor]) -> bool:
    """Whether losses that draw random numbers have another mean among other records than alone.

    Each is drawn many times. If the two have the same distribution, the differences d of a record are symmetric: given
    their sizes, their signs are fair coins. So their sum exceeds x times the root of their sum of squares with
    probability at most 2 exp(-x²/2) (Hoeffding 1963, "Probability inequalities for sums of bounded random variables",
    doi:10.1080/01621459.1963.10500830). A dependence that is faint beside the random numbers is missed.

    Args:
        among: Draws the losses of the records, with all others in the batch.
        alone: Draws them without the others.

    Returns:
        Whether they differ; False where a loss is not finite.
    """
    d = torch.stack([among().double() - alone().double() for _ in range(_TIMES)])
    scale = float(among().double().abs().max())
    beyond = d.sum(0).abs() > _LIMIT * d.square().sum(0).sqrt()
    seen = d.mean(0).abs() > 1e-4 * scale  # rounding depends on the number of records, too, and is not symmetric
    return bool((beyond & seen).any())
