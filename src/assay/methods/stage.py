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
from typing import Any, Protocol

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from torch import Tensor, nn
from torch.utils.data import Dataset

from assay.accounting.ledger import Ledger
from assay.data.records import Records
from assay.errors import AssayError, ConfigError
from assay.randomness.streams import Randomness, Within
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory

Released = dict[str, Tensor]
"""What a stage released, by name."""
WHOLE = "one whole record"
"""The unit of a part that protects all of a record: its being there or its being another, as the run's adjacency says."""
Loss = Callable[[Any, Any], Tensor]


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

    def parts(self) -> Sequence[Part]:
        """What is protected, one by one."""
        ...

    def check(self, model: nn.Module, records: Records, data: str | None) -> None:
        """Refuse what does not go together with this model and these records, or with private data of this name (None if they have
        none); before anything is written.
        """
        ...

    def release(self, model: nn.Module, records: Records, randomness: Randomness, device: torch.device) -> Released:
        """The answers. Called only after `event_of` the stage was charged."""
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


def released(
    stage: Stage,
    *,
    model: nn.Module,
    records: Records,
    ledger: Ledger,
    randomness: Randomness,
    device: torch.device,
    directory: RunDirectory | None,
) -> Released:
    """What the stage released: charged first and kept with the run, or what a run before a crash has kept.

    With a fixed seed the very same draws are made again, and a charge that is there covers them. Otherwise a charge without an
    answer on disk is lost: somebody may have seen that answer.
    """
    event = event_of(stage)
    if directory is not None and directory.stage.exists():
        if not ledger.paid(event):
            raise AssayError(
                f"{directory.stage} was never charged in {directory.ledger}: the ε of this run is not known"
            )
        return kept(directory)
    ledger.pay(event, draws=randomness.fingerprint)
    found = stage.release(model, records, Within(randomness, "stage"), device)
    if directory is not None:
        rest = {name: value for name, value in found.items() if name not in stage.kept}
        if rest:
            checkpoint.save(directory.records, rest, {}, directory.digest())
        stage.draw(found, directory.path)
        # last: where this file is, the release is whole
        checkpoint.save(directory.stage, {name: found[name] for name in stage.kept}, {}, directory.digest())
    return found


def kept(directory: RunDirectory) -> Released:
    """What the directory of a run holds of its release."""
    there = [path for path in (directory.stage, directory.records) if path.exists()]
    run = directory.digest()
    return {name: value for path in there for name, value in checkpoint.load(path, run)[0].items()}


def scale_inputs(model: nn.Module, scale: Tensor) -> None:
    """From now on the model multiplies its inputs by `scale`, which is saved and loaded with its parameters.

    A model that was trained so before takes the new scale in place of the old one.
    """
    _adapt(model, "input_scale", scale)


def shift_inputs(model: nn.Module, shift: Tensor) -> None:
    """From now on the model subtracts `shift` from its inputs; saved, loaded and replaced as a scale is."""
    _adapt(model, "input_shift", shift)


def adapt_as(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """What a stage had done to the inputs of the model that was saved as `tensors`."""
    for name in _ADAPTATIONS:
        if name in tensors:
            _adapt(model, name, tensors[name])


def check_inputs(model: nn.Module, name: str) -> None:
    """Refuse a model that does something else to its inputs than `name`, which would be added: which of the two comes first is not saved
    with it. The same is replaced.
    """
    for other in _ADAPTATIONS:
        if other != name and other in dict(model.named_buffers(recurse=False)):
            raise ConfigError(
                "model",
                f"{type(model).__name__} with {other}",
                f"a model that takes its inputs as they are: it cannot have {name} as well",
            )


def _adapt(model: nn.Module, name: str, value: Tensor) -> None:
    device = next(model.parameters()).device
    again = name in dict(model.named_buffers(recurse=False))
    model.register_buffer(name, value.to(device=device, dtype=torch.float32))
    if not again:
        model.register_forward_pre_hook(_ADAPTATIONS[name])


def _scaled(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0] * model.input_scale, *inputs[1:])


def _shifted(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0] - model.input_shift, *inputs[1:])


_ADAPTATIONS: Mapping[str, Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]] = {
    "input_scale": _scaled,
    "input_shift": _shifted,
}


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
