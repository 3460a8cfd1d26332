"""`assay epsilon` and `assay calibrate`: ε without training anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.accounting.adjacency import Adjacency
from assay.cli import options
from assay.cli.output import console, note
from assay.cli.show import print_json
from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.federated.plan import FederatedPlan
    from assay.methods.plan import Plan
    from assay.methods.ways import Way


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(epsilon)
    app.command()(calibrate)


def epsilon(
    records: options.Records,
    batch_size: options.BatchSize,
    noise_multiplier: Annotated[float, typer.Option(help="Noise standard deviation over the clipping bound.")],
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    delta: options.Delta = 1e-5,
    method: options.Method = "dpsgd",
    variant: options.Variant = None,
    noise_form: options.NoiseForm = None,
    groups: options.Groups = None,
    option: options.Setting = None,
    clip: options.Clip = None,
    micro_batch: options.MicroBatch = 1,
    center: options.Center = None,
    noise_schedule: options.Schedule = "constant",
    sampling: options.Sampling = "poisson",
    adjacency: options.Adjacent = Adjacency.ADD_OR_REMOVE_ONE,
    json: options.Json = False,
) -> None:
    """What a run would spend: claimed by the method's paper, and verified."""
    from assay.accounting import schedules
    from assay.data import samplers
    from assay.gradients import clip_rules
    from assay.methods.by_name import method_of
    from assay.methods.perturb.mean import parse as parse_center
    from assay.methods.plan import Plan, steps_for

    chosen = method_of(method, variant, noise_form, groups, option)
    if (epochs is None) == (steps is None):
        raise ConfigError("steps", steps, "either --steps or --epochs")
    sampler = samplers.parse(sampling)
    count = steps if steps is not None else steps_for(epochs, sampler(records, batch_size))
    plan = Plan(
        records=records,
        batch_size=batch_size,
        steps=count,
        noise_multiplier=noise_multiplier,
        delta=delta,
        sampling=samplers.parse(sampling),
        adjacency=adjacency,
        method=chosen,
        clip=clip_rules.parse(clip or str(chosen.clip)),
        micro_batch=micro_batch,
        center=None if center is None else parse_center(center),
        noise_schedule=schedules.parse(noise_schedule),
    )
    report_plan(plan, json)


def calibrate(
    records: options.Records,
    epsilon: Annotated[float, typer.Option(help="The ε to stay within.")],
    batch_size: Annotated[float | None, typer.Option(help="Expected batch size; left out, it is found.")] = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    noise_multiplier: options.Noise = None,
    delta: options.Delta = 1e-5,
    method: options.Method = "dpsgd",
    variant: options.Variant = None,
    noise_form: options.NoiseForm = None,
    groups: options.Groups = None,
    option: options.Setting = None,
    clip: options.Clip = None,
    micro_batch: options.MicroBatch = 1,
    center: options.Center = None,
    noise_schedule: options.Schedule = "constant",
    sampling: options.Sampling = "poisson",
    adjacency: options.Adjacent = Adjacency.ADD_OR_REMOVE_ONE,
    unit: Annotated[
        str | None,
        typer.Option(help="What persons are called, such as patient_id: compare the two ways to protect a person."),
    ] = None,
    persons: Annotated[int | None, typer.Option(help="With --unit: how many persons the records belong to.")] = None,
    unit_rows: options.UnitRows = None,
    json: options.Json = False,
) -> None:
    """Find the noise (or the steps, or the batch size: whichever is left out) whose verified ε is the one given; of a published
    variant, whose claimed ε is."""
    from assay.accounting import schedules
    from assay.data import samplers
    from assay.gradients import clip_rules
    from assay.methods.by_name import method_of
    from assay.methods.perturb.mean import parse as parse_center
    from assay.methods.plan import Plan, steps_for
    from assay.methods.ways import compare

    chosen = method_of(method, variant, noise_form, groups, option)
    if unit is not None:
        if None in (persons, unit_rows, batch_size) or noise_multiplier is not None:
            given = {"persons": persons, "unit_rows": unit_rows, "batch_size": batch_size}
            raise ConfigError(
                "unit", given, "--persons, --unit-rows and --batch-size (in rows) beside it; the noise is found"
            )
        sampler = samplers.parse(sampling)
        start = Plan(
            records=records,
            batch_size=batch_size or 1,
            steps=steps_for(epochs, sampler(records, batch_size or 1)) if steps is None else steps,
            noise_multiplier=1.0,
            delta=delta,
            sampling=sampler,
            adjacency=adjacency,
            method=chosen,
            clip=clip_rules.parse(clip or str(chosen.clip)),
            micro_batch=micro_batch,
            noise_schedule=schedules.parse(noise_schedule),
        )
        report_ways(compare(start, unit=unit, persons=persons or 0, most=unit_rows or 0, epsilon=epsilon), json)
        return
    plan = Plan.calibrated(
        epsilon=epsilon,
        delta=delta,
        records=records,
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        noise_multiplier=noise_multiplier,
        sampling=samplers.parse(sampling),
        adjacency=adjacency,
        method=chosen,
        clip=clip_rules.parse(clip or str(chosen.clip)),
        micro_batch=micro_batch,
        center=None if center is None else parse_center(center),
        noise_schedule=schedules.parse(noise_schedule),
    )
    report_plan(plan, json)


def report_ways(ways: Sequence[Way], as_json: bool) -> None:
    """Two ways to protect a person, the better one first."""
    best = ways[0]
    unit = best.plan.unit
    assert unit is not None
    note_delta(best.plan.delta, unit.persons)
    if as_json:
        print_json({"unit": str(unit), "better": best.sampled.value, "ways": [way.to_json() for way in ways]})
        return
    out = console()
    out.print(f"unit of privacy: {unit}; {unit.persons} persons, at most {unit.rows} rows each")
    for way in ways:
        out.print(
            f"{way.sampled.value} sampled: {way.plan.steps} steps, batches of {way.plan.batch_size:.4g} {way.sampled.value}, "
            f"noise multiplier {way.plan.noise_multiplier:.4g}, noise in the averaged gradient {way.noise:.4g} C"
        )
    out.print(f"less noise: --unit-sampling {best.sampled.value}")


def note_delta(delta: float, units: int) -> None:
    """Say it where δ is too large for so many records or clients."""
    from assay.runs.statement import large_delta

    if (said := large_delta(delta, units)) is not None:
        note(said)


def report_plan(plan: Plan, as_json: bool) -> None:
    """What a plan would spend."""
    note_delta(plan.delta, plan.protected)
    facts = {
        "steps": plan.steps,
        "sampling_rate": plan.sampler.rate,
        "batch_size": plan.batch_size,
        "micro_batch": plan.micro_batch,
    }
    words = f"{plan.steps} steps, batches of {plan.batch_size:g} expected\n{plan.sampler.describe()}"
    report_spending(plan, facts, words, as_json)


def report_spending(plan: Plan | FederatedPlan, more: Mapping[str, Any], words: str, as_json: bool) -> None:
    """The ε of a plan, and `more` or, in words, `words` about it."""
    from assay.runs.record import number
    from assay.runs.statement import shown

    facts = {
        "claimed": number(plan.claimed()),
        "verified": number(plan.epsilon()),
        "delta": plan.delta,
        "noise_multiplier": plan.noise_multiplier,
        "adjacency": plan.adjacency.value,
        "method": plan.method.name,
        "variant": plan.method.variant,
        **more,
    }
    if as_json:
        print_json(facts)
        return
    out = console()
    out.print(f"ε verified  {shown(facts['verified'])}   at δ = {plan.delta:g}, {plan.adjacency.value}")
    out.print(f"ε claimed   {shown(facts['claimed'])}   (what the paper's accountant would report)")
    out.print(f"{plan.method.name} ({plan.method.variant}): noise multiplier {plan.noise_multiplier:.6g}, {words}")
