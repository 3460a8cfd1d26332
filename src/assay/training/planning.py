"""The plan of a run from a few numbers: what `assay.fit` does without a plan, and `assay train` with its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from assay import methods
from assay.data.persons import Ids, numbered
from assay.data.records import Loading, Records, pair
from assay.data.units import Unit
from assay.errors import ConfigError
from assay.gradients.clip_rules import ClipRule
from assay.methods import Method
from assay.methods.plan import Plan
from assay.methods.targets import steps_for, within
from assay.training import defaults


def plan_for(
    model: nn.Module,
    train: Dataset[Any],
    *,
    units: Ids | None,
    loading: Loading,
    ranks: int,
    epsilon: float | None,
    delta: float | None,
    epochs: float | None,
    batch_size: float | None,
    noise_multiplier: float | None,
    method: Method | str | None,
    clip: ClipRule | float | str | None,
) -> Plan:
    """The plan that `assay train` would make for these records, with its defaults for what is None.

    Args:
        model: The model that will be trained.
        train: The records.
        units: Whose each row is, if persons are protected; they are then sampled.
        loading: How records are put together.
        ranks: How many ranks train together.
        epsilon: The ε to stay within; None is 1, unless the noise is given.
        delta: δ.
        epochs: Passes over the records.
        batch_size: The expected batch size.
        noise_multiplier: The noise; None for the least that ε allows.
        method: How a step works.
        clip: How gradients are bounded.

    Raises:
        ConfigError: A setting is not accepted, or there are several ranks.
    """
    if ranks > 1:
        raise ConfigError("plan", None, f"a plan on {ranks} ranks: it counts the records of all ranks together")
    records = Records(train, loading=loading)
    if len(records) == 0:
        raise ConfigError("train", "no records", "at least one record")
    unit, counted = None, len(records)
    if units is not None:
        counted = int(numbered(units).max()) + 1
        unit = Unit(name=getattr(train, "unit_column", "person"), persons=counted)
    start = Plan(
        records=counted,
        batch_size=usual_batch_size(counted, table=_is_table(records)) if batch_size is None else batch_size,
        steps=1,
        noise_multiplier=1.0,
        delta=defaults.DELTA if delta is None else delta,
        method=methods.METHODS.method_of(defaults.METHOD if method is None else method).for_model(model),
        clip=clip,
        unit=unit,
    )
    return planned(
        start,
        epsilon=defaults.EPSILON if epsilon is None and noise_multiplier is None else epsilon,
        noise_multiplier=noise_multiplier,
        epochs=defaults.EPOCHS if epochs is None else epochs,
    )


def usual_batch_size(records: int, *, whole: bool = False, table: bool = False) -> int:
    """The expected batch size where nobody gives one.

    Args:
        records: How many of what is sampled there are.
        whole: Whether the sampler takes all records every time.
        table: Whether the records are rows of a table.

    >>> usual_batch_size(60_000), usual_batch_size(1_600), usual_batch_size(60_000, table=True)
    (1024, 200, 4096)
    """
    return (
        records if whole else min(defaults.TABLE_BATCH if table else defaults.BATCH, max(1, records // defaults.SHARE))
    )


def check_either(plan: Plan | None, given: Mapping[str, Any]) -> None:
    """Refuse a plan together with numbers to make one from.

    Args:
        plan: The plan, if there is one.
        given: The numbers by name; None for those that were not given.

    Raises:
        ConfigError: Both were given, or `plan` is not a plan.
    """
    if plan is None:
        return
    if not isinstance(plan, Plan):
        raise ConfigError("plan", plan, "an assay.Plan; or none, and epsilon= and delta= in its place")
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                name,
                value,
                f"nothing beside plan=..., which decides it: put {name} into the plan, or leave the plan out",
            )


def _is_table(records: Records) -> bool:
    """Whether inputs are rows of numbers."""
    try:
        inputs, _ = pair(records.gather(torch.tensor([0])))
    except ConfigError:  # records that are not pairs are refused where they are used
        return False
    return isinstance(inputs, Tensor) and inputs.dim() == 2 and inputs.is_floating_point()


def planned(start: Plan, *, epsilon: float | None, noise_multiplier: float | None, epochs: float | None) -> Plan:
    """The plan for this many epochs.

    Args:
        start: Everything but steps and noise.
        epsilon: The ε to calibrate the noise to; if the noise is given, a ceiling that may end the run early.
        noise_multiplier: The noise, if it is given.
        epochs: How many passes over the records.

    Raises:
        ConfigError: No noise reaches ε, or ε is given beside the noise for a published variant.
    """
    start = replace(start, steps=steps_for(epochs, start.sampler))
    if noise_multiplier is None:
        assert epsilon is not None
        return within(start, epsilon)
    check_ceiling(epsilon, start.method.variant)
    return replace(start, noise_multiplier=noise_multiplier, epsilon_limit=epsilon)


def check_ceiling(epsilon: float | None, variant: str) -> None:
    """Refuse an ε beside a given noise if it could only be a claimed one.

    Raises:
        ConfigError: The variant is not the sound one.
    """
    if epsilon is not None and variant != "sound":
        raise ConfigError(
            "epsilon",
            epsilon,
            f"nothing beside --noise-multiplier with variant {variant}: the noise decides what is claimed, and no "
            "ceiling holds",
        )
