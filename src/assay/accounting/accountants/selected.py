"""The best of a random number of repetitions (Papernot and Steinke 2022, arXiv:2110.03620)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.accounting.composition import combined
from assay.accounting.events import REPETITIONS, Accountant, Adjacency, Parts, UnaccountableError
from assay.accounting.losses import Selected


@dataclass(frozen=True, kw_only=True)
class Selection(Accountant):
    """A Poisson number of repetitions, of which the best is released."""

    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:
        """The selection, by Rényi divergences of one repetition."""
        if adjacency is Adjacency.REPLACE_ONE:
            raise UnaccountableError(f"{event} is accounted for under {Adjacency.ADD_OR_REMOVE_ONE} only")
        inner = combined(parts(event.event))
        if inner != ():
            yield None if inner is None else Selected(inner, event.mean), 1


ACCOUNTANTS = (
    Selection(
        name="repeat-and-select",
        event=dp_event.RepeatAndSelectDpEvent,
        numbers={"mean": REPETITIONS},
        inner="event",
        fixed={"shape": math.inf},
    ),
)
