"""`assay epsilon` and `assay calibrate`: ε without training anything."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.accounting.adjacency import Adjacency
from assay.cli import options
from assay.cli.output import console, note_delta, print_json
from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.federated.plan import FederatedPlan
    from assay.methods.plan import Plan
    from assay.methods.ways import Way


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(_with_settings(epsilon))
    app.command()(_with_settings(calibrate))


def epsilon(
    records: options.Records,
    batch_size: options.BatchSize,
    noise_multiplier: Annotated[float, typer.Option(help="Noise standard deviation over the clipping bound.")],
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    json: options.Json = False,
    *,
    settings: Any,
) -> None:
    """What a run would spend: claimed by the method's paper, and verified."""
    from assay.methods.plan import Plan
    from assay.methods.targets import steps_for

    if (epochs is None) == (steps is None):
        raise ConfigError("steps", steps, "either --steps or --epochs")
    count = steps if steps is not None else steps_for(epochs, settings["sampling"](records, batch_size))
    report_plan(
        Plan(records=records, batch_size=batch_size, steps=count, noise_multiplier=noise_multiplier, **settings), json
    )


def calibrate(
    records: options.Records,
    epsilon: Annotated[float, typer.Option(help="The ε to stay within.")],
    batch_size: Annotated[float | None, typer.Option(help="Expected batch size; left out, it is found.")] = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    noise_multiplier: options.Noise = None,
    unit: Annotated[
        str | None,
        typer.Option(help="What persons are called, such as patient_id: compare the two ways to protect a person."),
    ] = None,
    persons: Annotated[int | None, typer.Option(help="With --unit: how many persons the records belong to.")] = None,
    unit_rows: options.UnitRows = None,
    json: options.Json = False,
    *,
    settings: Any,
) -> None:
    """Find the noise, the steps or the batch size, whichever is left out, for a given verified ε.

    For a published variant the given ε is the claimed one.
    """
    from assay.methods.plan import Plan
    from assay.methods.ways import ways_of

    if unit is not None:
        ways = ways_of(
            unit,
            records=records,
            persons=persons,
            most=unit_rows,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            noise_multiplier=noise_multiplier,
            epsilon=epsilon,
            settings=settings,
        )
        report_ways(ways, json)
        return
    plan = Plan.calibrated(
        epsilon=epsilon,
        records=records,
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        noise_multiplier=noise_multiplier,
        **settings,
    )
    report_plan(plan, json)


def _settings(
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
) -> dict[str, Any]:
    """The arguments of a plan that both commands take."""
    from assay.accounting import schedules
    from assay.data import samplers
    from assay.gradients import clip_rules
    from assay.methods import method_of
    from assay.methods.perturb.mean import parse as parse_center

    chosen = method_of(method, variant, noise_form, groups, option)
    return {
        "delta": delta,
        "sampling": samplers.parse(sampling),
        "adjacency": adjacency,
        "method": chosen,
        "clip": clip_rules.parse(clip or str(chosen.clip)),
        "micro_batch": micro_batch,
        "center": None if center is None else parse_center(center),
        "noise_schedule": schedules.parse(noise_schedule),
    }


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `_settings`, whose result it gets as `settings`."""
    first, common = (inspect.signature(f, eval_str=True).parameters for f in (command, _settings))
    parameters = [p for p in (*first.values(), *common.values()) if p.name != "settings"]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        shared = _settings(**{name: given.pop(name) for name in common})
        command(**given, settings=shared)

    # typer reads both of these
    run.__dict__["__signature__"] = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in parameters])
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def report_ways(ways: Sequence[Way], as_json: bool) -> None:
    """Print two ways to protect a person, the better one first."""
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
            f"{way.sampled.value} sampled: {way.plan.steps} steps, batches of {way.plan.batch_size:.4g} "
            f"{way.sampled.value}, noise multiplier {way.plan.noise_multiplier:.4g}, noise in the averaged gradient "
            f"{way.noise:.4g} C"
        )
    out.print(f"less noise: --unit-sampling {best.sampled.value}")


def report_plan(plan: Plan, as_json: bool) -> None:
    """Print what a plan would spend."""
    note_delta(plan.delta, plan.protected)
    facts = {
        "steps": plan.steps,
        "sampling_rate": plan.sampler.rate,
        "batch_size": plan.batch_size,
        "micro_batch": plan.micro_batch,
    }
    unit = "" if plan.unit is None else f"\nunit of privacy: {plan.unit}, one of {plan.protected} persons"
    words = f"{plan.steps} steps, batches of {plan.batch_size:g} expected\n{plan.batches_in_words}{unit}"
    report_spending(plan, facts, words, as_json)


def report_spending(plan: Plan | FederatedPlan, more: Mapping[str, Any], words: str, as_json: bool) -> None:
    """Print the ε of a plan, and more about it: `more` in JSON, `words` for people."""
    from assay._util.figures import shown
    from assay.accounting.tradeoff import tradeoff
    from assay.runs.record import number
    from assay.runs.signoff import sentence

    found = tradeoff(plan.event(), plan.delta, plan.adjacency).to_json()
    facts = {
        "claimed": number(plan.claimed()),
        "verified": number(plan.epsilon()),
        "delta": plan.delta,
        "noise_multiplier": plan.noise_multiplier,
        "adjacency": plan.adjacency.value,
        "method": plan.method.name,
        "variant": plan.method.variant,
        **more,
        "tradeoff": found,
    }
    if as_json:
        print_json(facts)
        return
    out = console()
    out.print(f"ε verified  {shown(facts['verified'])}   at δ = {plan.delta:g}, {plan.adjacency.value}")
    out.print(f"ε claimed   {shown(facts['claimed'])}   (what the paper's accountant would report)")
    out.print(f"{plan.method.name} ({plan.method.variant}): noise multiplier {plan.noise_multiplier:.6g}, {words}")
    out.print(sentence(found))
