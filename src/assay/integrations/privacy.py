"""What a user of somebody else's loop says about privacy: the plan, or the numbers to make one from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from assay.accounting.budget import Budget
from assay.data.identity import contents as contents_of
from assay.data.persons import Ids
from assay.data.records import Records
from assay.errors import ConfigError
from assay.gradients.clip_rules import ClipRule
from assay.methods import Method
from assay.methods.plan import Plan
from assay.randomness.streams import Seeded, source
from assay.runs.budgeted import Lease
from assay.training.fitting import lease_for
from assay.training.planning import check_either, plan_for


@dataclass(kw_only=True, eq=False, repr=False)
class Privacy:
    """What a user says about privacy. `PrivateTrainer` takes each of these as an argument; `PrivateCallback` is one.

    Attributes:
        plan: Everything that decides ε; then none of the next five is given.
        epsilon: The ε to stay within; 1 by default, unless the noise is given.
        delta: δ, 1e-5 by default.
        noise_multiplier: The noise; by default the least that stays within ε.
        method: How a step works, or its name.
        clip: A clipping rule, its text, or the bound of flat clipping.
        units: Whose each record is, where persons are protected.
        loss_bound: The released training loss counts each record's loss up to here.
        seed: Makes noise and batches reproducible, and the run therefore not private.
        names: Describes model and data in the record.
        force: Replace an earlier run.
        budget: What all runs on these records may spend together, or its name.
        budget_key: The file of the private key, for a budget that is signed.
        contents: What the budget recognises each record by, if not the items of the data set.
    """

    plan: Plan | None = None
    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    method: Method | str | None = None
    clip: ClipRule | float | str | None = None
    units: Ids | None = None
    loss_bound: float | None = None
    seed: int | None = None
    names: Mapping[str, Any] | None = None
    force: bool = False
    budget: Budget | str | Path | None = None
    budget_key: str | Path | None = None
    contents: Iterable[bytes] | None = None

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in ("epsilon", "delta", "noise_multiplier", "method", "clip")}
        check_either(self.plan, numbers)
        if self.loss_bound is not None and not (math.isfinite(self.loss_bound) and self.loss_bound > 0):
            raise ConfigError("loss_bound", self.loss_bound, "a number above 0")
        source(self.seed, False)  # refuses anything but a seed

    def plan_for(self, model: nn.Module, records: Records, *, batch_size: float, epochs: float) -> Plan:
        """The plan of this run: the one that was given, or the least noise that these numbers allow.

        Args:
            model: The model that will be trained.
            records: All records, on every rank.
            batch_size: The expected batch size over all ranks, if no plan was given.
            epochs: Passes over the records, if no plan was given.

        Raises:
            ConfigError: A setting is not accepted.
        """
        plan = self.plan or plan_for(
            model,
            records.dataset,
            units=self.units,
            loading=records.loading,
            ranks=1,  # every rank has all records, so that they are counted once
            epsilon=self.epsilon,
            delta=self.delta,
            epochs=epochs,
            batch_size=batch_size,
            noise_multiplier=self.noise_multiplier,
            method=self.method,
            clip=self.clip,
        )
        return plan.for_model(model)

    def lease(self, plan: Plan, dataset: Dataset[Any], names: Mapping[str, Any], out: Path | None) -> Lease | None:
        """The run's part in its budget, if it has one; nothing is written.

        Args:
            plan: What the run may release.
            dataset: The records.
            names: Describes model and data.
            out: Where the run will be written, if anywhere.

        Raises:
            DataError: The budget is for other records.
            BudgetSpentError: The run does not fit.
        """
        if self.budget is None:
            return None
        draws = None if self.seed is None else Seeded(self.seed).fingerprint
        return lease_for(self.budget, plan, self.contents or contents_of(dataset), names, out, self.budget_key, draws)
