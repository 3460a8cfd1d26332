"""A stage: what a method does with the records before the first step of training.

A stage releases something about the records, once. Its cost is known beforehand, belongs to the plan's ε, and stands in the
ledger as a segment of its own, on disk, before the stage sees a record. What it released is kept with the run, so that a run
that goes on after a crash uses the same answer; a crash between charge and answer makes it pay again.

What follows from the release is post-processing: the records that training sees, their loss, what the model does first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from assay.data.records import Records
    from assay.methods.plan import Plan
    from assay.randomness.streams import Randomness

Released: TypeAlias = "dict[str, Tensor]"
"""What a stage released, by name."""
WHOLE = "one whole record"
"""The unit of a part that protects all of a record: its being there or its being another, as the run's adjacency says."""
Loss: TypeAlias = "Callable[[Any, Any], Tensor]"
PrivateTraining: TypeAlias = "Callable[[nn.Module, Records, Plan, torch.optim.Optimizer, Randomness], None]"
"""Trains a network on the records under a plan of its own, with this optimizer and randomness."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Something that has noise of its own: a row of the statement.

    `unit` says what the noise protects, `claimed` is the paper's ε for it, `event` its verified cost over the whole run, and
    `reason` why there is no ε, if there is none. `pure` is the part's ε at δ = 0, where it has one: the accountant takes an ε beyond
    1000 for none. `each_step` marks what is released by the steps and not by the stage.
    """

    name: str
    unit: str
    claimed: float | None
    event: DpEvent
    reason: str = ""
    pure: float = math.inf
    each_step: bool = False


class Stage(Protocol):
    """What happens to the records before training. All that `release` returns is covered by the parts' events."""

    @property
    def kept(self) -> tuple[str, ...]:
        """What of the release stays in the directory of a finished run; the rest is for going on after a crash only."""
        ...

    @property
    def takes_views(self) -> bool:
        """Whether training may see random views of a record (`assay.training.augment`) in place of the record itself."""
        ...

    @property
    def takes_fewer(self) -> bool:
        """Whether `release` takes fewer records than its plan counts: an audit leaves one out, and constants stay."""
        ...

    def parts(self) -> Sequence[Part]:
        """What is protected, one by one."""
        ...

    def check(self, model: nn.Module, records: Records, data: str | None) -> None:
        """Refuse what does not go together with this model and these records, or with private data of this name (None if they have
        none); before anything is written.
        """
        ...

    def release(
        self,
        model: nn.Module,
        records: Records,
        randomness: Randomness,
        device: torch.device,
        train_privately: PrivateTraining,
    ) -> Released:
        """The answers. Called only after `event_of` the stage was charged.

        `train_privately` trains a network that the stage needs: methods stand below training and cannot import it.
        """
        ...

    def install(self, model: nn.Module, released: Released) -> None:
        """What the model needs in order to work on plain records: scaled inputs, initial values."""
        ...

    def records(self, data: Dataset[Any], released: Released) -> Dataset[Any]:
        """The records to train on."""
        ...

    def loss(self, own: Loss) -> Loss:
        """The loss to train with, in place of the run's own."""
        ...

    def draw(self, released: Released, folder: Path) -> None:
        """Pictures of what was released."""
        ...

    def describe(self) -> list[str]:
        """For the statement: what is done, a line each."""
        ...


def event_of(stage: Stage) -> DpEvent:
    """What the stage itself costs."""
    return ComposedDpEvent([part.event for part in stage.parts() if not part.each_step])


def rows(
    parts: Sequence[Part], epsilon: Callable[[DpEvent], float], number: Callable[[float | None], Any]
) -> list[Mapping[str, Any]]:
    """The parts as the record holds them."""
    return [
        {
            "name": part.name,
            "unit": part.unit,
            "claimed": number(part.claimed),
            "verified": number(min(part.pure, epsilon(part.event))),
            "reason": part.reason,
        }
        for part in parts
    ]
