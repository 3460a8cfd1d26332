"""Canary persons: where a person with all of their rows is the unit, a canary is a whole person.

Where persons are sampled, somebody with one row shows as much as somebody with many: their rows are averaged and
clipped as one. Where rows are sampled, a canary has as many equal rows as a person may have, which is what moves a
step's sum furthest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from assay.data.persons import Ids, UnitRecords, numbered
from assay.data.records import Key
from assay.data.units import Unit
from assay.errors import ConfigError
from assay.methods.plan import Plan


class PlaceholderPersons(UnitRecords):
    """Persons, and this many placeholders of one row each after them.

    Remembers which of these are in the batch given last.
    """

    def __init__(self, persons: UnitRecords, placeholders: int, unit: Unit) -> None:
        super().__init__(persons.rows, persons.owner, persons.unit)
        self.unit = unit  # of the plan with canaries, which has as many persons more
        self._own, self._placeholders = persons.persons, placeholders
        self.places = self.drawn = torch.zeros(0, dtype=torch.int64)

    def __len__(self) -> int:
        return self._own + self._placeholders

    def counts(self, index: Tensor) -> Tensor:
        """How many rows each has: a placeholder one."""
        placeholder = index >= self._own
        return torch.where(placeholder, 1, super().counts(torch.where(placeholder, 0, index)))

    def gather(self, index: Tensor) -> Any:
        """The rows of these persons; a placeholder's looks like the first row."""
        self.places = torch.nonzero(index >= self._own).flatten()
        self.drawn = index[self.places] - self._own
        return super().gather(index)

    @property
    def draws(self) -> bool:
        """Never: `gather` must see every batch."""
        return False

    def ahead(self, keys: Iterator[Key]) -> Iterator[Any] | None:  # noqa: ARG002
        """Nothing: this process fetches all batches, and sees whose placeholders are in them."""
        return None

    def places_of(self, index: Tensor) -> Tensor:
        """Where the rows of these persons are."""
        rows = [super(PlaceholderPersons, self).places_of(one) for one in index.clamp(max=self._own - 1).split(1)]
        own = [row if int(i) < self._own else row[:1] for row, i in zip(rows, index, strict=True)]
        return torch.cat(own) if own else torch.zeros(0, dtype=torch.int64)


def canary_rows(plan: Plan) -> int:
    """How many rows a canary has: one, or where rows are sampled as many as a person may have."""
    if plan.unit is None or plan.unit.whole or plan.unit.rows is None:
        return 1
    return plan.unit.rows


def with_canaries(ids: Ids | None, plan: Plan, canaries: int) -> Tensor | None:
    """Whose each row is when canaries, each a person of their own, follow the others.

    Args:
        ids: Whose the run's own rows are; None where a record is the unit.
        plan: The run's plan.
        canaries: How many canary persons follow.

    Raises:
        ConfigError: A person is the unit, and whose each row is was not given.
    """
    if plan.unit is None:
        return None
    if ids is None:
        raise ConfigError("units", None, f"an id for each row: the plan protects {plan.unit}")
    own = numbered(ids)
    following = int(own.max()) + 1 + torch.arange(canaries).repeat_interleave(canary_rows(plan))
    return torch.cat([own, following])


def unit_with(plan: Plan, records: int) -> Unit | None:
    """The unit of a plan with this number of records (persons, or rows) in place of its own."""
    unit = plan.unit
    if unit is None:
        return None
    more = records - plan.records
    persons = unit.persons + (more if unit.whole else more // canary_rows(plan))
    return Unit(name=unit.name, persons=persons, rows=unit.rows, sampled=unit.sampled)
