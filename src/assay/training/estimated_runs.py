"""Runs with `--schema auto`: what is known before the columns are estimated, and the estimate itself.

`assay.training.estimating` says in which order things are charged and released.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from assay.accounting.budget import folder_of
from assay.accounting.ledger import Ledger
from assay.data.identity import of_keys
from assay.data.persons import rows_kept
from assay.data.tables.drafts import Draft, Private, read_draft, training_rows
from assay.data.tables.names import is_table
from assay.data.tables.schema import Schema
from assay.data.units import Sampled, Unit
from assay.distributed.launch import restarted
from assay.errors import ConfigError
from assay.methods.plan import Plan
from assay.runs.budgeted import FIELD, Lease
from assay.runs.directory import RunDirectory
from assay.training import defaults
from assay.training.estimating import Estimated, Terms, cost_of, estimate
from assay.training.fitting import lease_for
from assay.training.options import Settings
from assay.training.planning import planned
from assay.training.preflight import check_ranks
from assay.training.settings import pick_device


def plan_with_estimate(settings: Settings, ranks: int) -> Plan:
    """The plan of a run whose columns are to be estimated, checked; nothing is charged or estimated.

    Raises:
        ConfigError: A setting is not accepted.
        BudgetSpentError: The run does not fit into its budget.
    """
    private, _, plan, _ = _before_estimate(settings)
    check_ranks(plan, ranks, shard=settings.shard)
    if settings.budget is not None:
        _lease_before(settings, plan, private, None)
    return plan


def estimate_for(o: Settings, out: Path | None, *, force: bool) -> Estimated:
    """Charge and make the estimate of a table's columns; for ranks that were started again, the one of their run."""
    if restarted() and out is not None and (run := RunDirectory(out)).spec.exists():
        spec = run.read_spec()
        columns = Plan.from_json(spec["plan"]).columns
        if columns is not None:
            begun = Plan.from_json(spec["plan"])
            return Estimated(
                schema=Schema.from_json(spec["names"]["schema"]),
                columns=columns,
                units=begun.records if begun.unit is None else begun.unit.persons,
                counted=begun.records,
                lease=spec.get(FIELD),
            )
    private, draft, plan, terms = _before_estimate(o)
    assert plan.columns is not None
    pick_device(o.device)

    def reserve(digest: str, ledger: Ledger) -> Mapping[str, Any]:
        mine = _lease_before(o, plan, private, out)
        mine.begin(plan, None if out is None else RunDirectory(out), ledger, digest=digest)
        return mine.to_json()

    return estimate(
        private,
        draft,
        plan.records,
        plan.columns,
        terms,
        o.training.randomness(),
        out=out,
        force=force,
        reserve=None if o.budget is None else reserve,
    )


def _lease_before(o: Settings, plan: Plan, private: Private, out: Path | None) -> Lease:
    assert o.budget is not None
    contents = of_keys(private.keys, o.unit)
    draws = o.training.randomness().fingerprint
    return lease_for(o.budget, plan, contents, {"data": o.data, "operator": o.operator}, out, o.budget_key, draws)


def _before_estimate(o: Settings) -> tuple[Private, Draft, Plan, Terms]:
    """All that is known of a run before its columns are estimated, from public facts; and the rows.

    Raises:
        ConfigError: Something is asked for that an estimate does not go together with.
    """
    assert o.schema is not None
    for name, value, accepted in (
        ("records", o.records, "all records"),
        ("validation", o.validation or None, "no records set aside"),
        ("features", o.features, "no features"),
        ("method", o.method if o.chosen_method.needs_layers else None, "a method that needs no layers"),
    ):
        if value is not None:
            raise ConfigError(name, value, f"{accepted} with --schema auto")
    if not is_table(o.data):
        raise ConfigError("schema", str(o.schema), "a table (.csv, .tsv, .parquet), whose columns can be estimated")
    path = Path(o.data).expanduser()
    draft = read_draft(path, o.schema, o.target, o.unit)
    if not draft.wanted:
        raise ConfigError("schema", str(o.schema), "a column that is to be estimated; none is left")
    private = training_rows(path, draft, o.unit)
    if o.epsilon is None and o.noise_multiplier is not None:
        raise ConfigError("epsilon", None, "a number with --schema auto: a share of it is for the estimate")
    terms = Terms(
        epsilon=defaults.EPSILON if o.epsilon is None else o.epsilon,
        delta=o.delta,
        adjacency=o.adjacency,
        budget=None if o.budget is None else str(folder_of(o.budget).absolute()),
        data=o.data,
        unit=o.unit,
    )
    columns = cost_of(draft, private.units, terms)
    unit, counted = None, private.units
    if o.unit is not None:
        sampled = Sampled(o.unit_sampling)
        unit = Unit(name=o.unit, persons=private.units, rows=o.unit_rows, sampled=sampled)
        if not unit.whole:
            counted = rows_kept(torch.from_numpy(private.owner), unit.rows)
    plan = planned(
        o.plan(counted, unit, columns, table=True),
        epsilon=terms.epsilon,
        noise_multiplier=o.noise_multiplier,
        epochs=o.epochs,
    )
    if plan.stage is not None and not plan.stage.takes_fewer:
        raise ConfigError("method", o.method, "one that releases nothing before training, with --schema auto")
    return private, draft, plan, terms
