"""The unit of privacy where a person has several rows: who they are, how many rows count, and what is sampled.

Neighbouring data sets differ in one person and all of their rows. There are two ways to train, and a `Unit` says which:

A. *Persons are sampled.* The sampler draws persons. A drawn person brings all rows that are kept for them, their losses
   are averaged, and the gradient of that mean is clipped to C as one.

   Proof. A person is to the sampler what a record is otherwise: one coin, or one place in a batch. Somebody who was not
   drawn adds nothing to a step's sum. Somebody who was drawn adds one vector of norm at most C, whatever the number of
   their rows. What others add does not depend on them. For the engine shows that rows do not mix, which rows of a
   person are kept follows from that person alone, and a batch is divided by a constant. So one person moves the sum by
   at most C, and the steps cost what they cost for records, with persons in place of records. ∎

B. *Rows are sampled*, each by its own coin, and each clipped to C. A person with at most k rows moves the sum
   by as many times C as there are heads among their coins: a mixture of Gaussians with the masses of Binomial(k, q),
   which covers everybody with k rows or fewer (proof: `assay.accounting.accountants.mixture`; Charles et al. 2024,
   arXiv:2407.07737). Without sampling the sum moves by at most k C, so that the noise multiplier of a person is that of
   a row divided by k.

In both ways at most k rows of a person are kept: those with the least keyed hash of their content. Whether a row is
kept depends on that person's rows only, so adding or removing somebody else changes nothing. In way A the limit is a
matter of memory and time, and may be left out; in way B ε rests on it.

The numbers of persons, and in way B of rows, are taken to be public, as the number of records is otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from assay.errors import ConfigError, check_fields


class Sampled(StrEnum):
    """What the sampler draws."""

    PERSONS = "persons"
    ROWS = "rows"

    @classmethod
    def _missing_(cls, value: object) -> Sampled:
        raise ConfigError("unit_sampling", value, "persons or rows")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What ε protects: a person with all of their rows.

    Attributes:
        name: What the persons are called, as in the column that names them: `patient_id`.
        persons: How many there are. Public.
        rows: The most rows of a person that are kept, k; None keeps all of them, where persons are sampled.
        sampled: Whether batches are drawn from persons or from rows.

    Raises:
        ConfigError: A value is out of its range, or rows are sampled without a limit.

    Example:
        >>> str(Unit(name="patient_id", persons=500, rows=4))
        'one patient_id with all of their rows'
    """

    name: str
    persons: int
    rows: int | None = None
    sampled: Sampled = Sampled.PERSONS

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError("unit", self.name, "the name of the column that says whose a row is")
        if self.name == "record":  # ledgers, budgets and totals tell units apart by their names
            raise ConfigError(
                "unit", self.name, "another name than that of the unit of runs that protect single records"
            )
        if not isinstance(self.persons, int) or isinstance(self.persons, bool) or self.persons < 1:
            raise ConfigError("unit.persons", self.persons, "a whole number, 1 or above")
        if not isinstance(self.sampled, Sampled):
            raise ConfigError("unit_sampling", self.sampled, "Sampled.PERSONS or Sampled.ROWS")
        if self.rows is not None and (not isinstance(self.rows, int) or isinstance(self.rows, bool) or self.rows < 1):
            raise ConfigError("unit_rows", self.rows, "a whole number, 1 or above")
        if self.rows is None and self.sampled is Sampled.ROWS:
            raise ConfigError("unit_rows", None, "the most rows of a person that count: ε depends on it")

    def __str__(self) -> str:
        return f"one {self.name} with all of their rows"

    @property
    def whole(self) -> bool:
        """Whether a person is sampled and clipped as one."""
        return self.sampled is Sampled.PERSONS

    def describe(self) -> str:
        """How it works, for the statement."""
        if self.whole:
            kept = "all rows" if self.rows is None else f"at most {self.rows} rows"
            return f"persons are sampled; {kept} of each are used, and the gradient of their mean loss is bounded"
        return (
            f"rows are sampled, at most {self.rows} of each person are used, and ε accounts for all of a person's rows "
            "together (a mixture of Gaussians; Charles et al. 2024)"
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {**asdict(self), "sampled": self.sampled.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Unit:
        """What `to_json` wrote.

        Raises:
            ConfigError: A field is not known, missing or out of its range.
        """
        check_fields("plan.unit", data, [f.name for f in fields(cls)])
        known = dict(data)
        if not {"name", "persons"} <= known.keys():
            raise ConfigError("plan.unit", sorted(known), "an object with name and persons")
        return cls(**{**known, "sampled": Sampled(known.get("sampled", "persons"))})
