"""Keeps a step or takes it back, as the test of the plan's method says (`assay.methods.selecting`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.data.records import Records, pair
from assay.errors import ConfigError, UnsupportedModelError
from assay.methods.selecting import Selection
from assay.training.preflight import check_paid
from assay.training.step import PrivateStep

_AT_ONCE = 1024
_SINGLES = 32


class SelectiveStep(PrivateStep):
    """The private step of a loop that makes the tests of the plan's method. Other loops are refused such a plan."""

    selects: ClassVar[bool] = True


class Selector:
    """Remembers the parameters before each step, and decides whether those after it stay.

    Guarantee: of each test one number leaves, with noise, after the ledger was charged for the step and its test
    together. What is done with it is post-processing. The number of kept steps is a function of these numbers.

    Args:
        selection: The test.
        step: The private step, whose ledger is charged for both.
        records: The records of the run, all of them in this process.
        losses: One loss for each record of a batch, by the model as it is.
        model: The model.
        at_once: The most records in memory at once.

    Raises:
        ConfigError: There are several ranks.
    """

    def __init__(
        self,
        selection: Selection,
        step: PrivateStep,
        records: Records,
        losses: Callable[[Any, Any], Tensor],
        model: nn.Module,
        at_once: int | None,
    ) -> None:
        if step.world.size > 1:
            raise ConfigError(
                "method", step.plan.method.name, "one without a test after each step, where several ranks train"
            )
        if len(records) != selection.sampler.records:
            raise ConfigError("dataset", f"{len(records)} records", f"the {selection.sampler.records} of the plan")
        self.selection, self.kept = selection, 0
        self._step, self._records, self._losses, self._model = step, records, losses, model
        self._at_once, self._proven = at_once or _AT_ONCE, not selection.single

    @torch.no_grad()
    def around(self, move: Callable[[], Any]) -> bool:
        """Let the optimizer move the parameters, make the test, and take the move back if it fails.

        Args:
            move: Takes the optimizer's step. Its state stays: it is made of released values.

        Returns:
            Whether the parameters stay as moved.

        Raises:
            UnsupportedModelError: The model in eval mode, or the loss, mixes records.
        """
        step, number = self._step, self._step.taken - 1
        batch = self._batch(number)
        parameters = list(step.engine.parameters.values())
        former = [p.detach().clone() for p in parameters]
        before = self._measured(batch)
        if not self._proven:
            self._check_apart(batch, before)
        move()
        measured = self.selection.measure(before, self._measured(batch))
        released = self.selection.release(measured, number, step.randomness)
        check_paid(released.event, self.selection.once)
        limit = self.selection.most
        if self.selection.keeps(released) and (limit is None or self.kept < limit):
            self.kept += 1
            return True
        for parameter, old in zip(parameters, former, strict=True):
            parameter.copy_(old)
        return False

    def _batch(self, number: int) -> list[tuple[Any, Any]]:
        """The records of a test, in parts. What the data set draws is the same before and after the step."""
        index = self.selection.draw(number, self._step.randomness)
        parts = index.split(self._at_once) if len(index) else ()
        if not self._records.draws:
            return [pair(self._records.gather(part)) for part in parts]
        seeds = self._step.randomness.stream("selection loading", number).integers(2**62, len(parts)).tolist()
        return [pair(self._records.gather_seeded(part, seed)) for part, seed in zip(parts, seeds, strict=True)]

    def _measured(self, batch: Iterable[tuple[Any, Any]]) -> Tensor:
        """One loss for each record."""
        self._model.eval()
        found = [self._losses(inputs, targets).detach().double().cpu() for inputs, targets in batch]
        self._model.train()
        return torch.cat([torch.zeros(0, dtype=torch.float64), *found])

    def _check_apart(self, batch: Sequence[tuple[Any, Any]], losses: Tensor) -> None:
        """Refuse a model that mixes records in eval mode: the engine has seen it in train mode alone."""
        if len(losses) < 2:
            return
        inputs, targets = batch[0]
        count = min(_SINGLES, len(losses), self._at_once)
        singles = [pytree.tree_map(lambda t, i=i: t[i : i + 1], (inputs, targets)) for i in range(count)]
        if not torch.allclose(self._measured(singles), losses[:count], rtol=1e-3, atol=1e-4, equal_nan=True):
            raise UnsupportedModelError(
                "the model in eval mode, or the loss, gives a record another loss where it is alone in its batch: each "
                "record's change of loss must be bounded by itself"
            )
        self._proven = True
