"""`assay audit`: a lower bound on ε beside the claimed and the verified one, and what the three say together."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from assay.accounting.epsilon import Adjacency
from assay.audit import Audit, Verdict, clients, sentence, verdict
from assay.audit.aside import NOT_COVERED, write_aside
from assay.audit.bounds import check_releases, check_significance
from assay.audit.plans import PlanAudit, audit_plan
from assay.audit.rounds import audit_rounds
from assay.audit.storage import write_audit
from assay.audit.survey import federation, survey, with_layers
from assay.audit.training import TrainingAudit, black_box, mislabelled, white_box
from assay.audit.worlds import trained_in_two_worlds
from assay.cli import options
from assay.cli.inputs import check_not_chosen, of_run, planned
from assay.cli.show import print_json
from assay.data import sampling as samplers
from assay.errors import ConfigError
from assay.federated import methods as federated
from assay.federated.client import open_site
from assay.federated.kinds import kind_of
from assay.federated.local import Training
from assay.federated.plan import FederatedPlan
from assay.federated.server import site_settings
from assay.gradients import clipping
from assay.methods.plan import Plan, steps_for
from assay.randomness.streams import OsSeeded, Randomness, Seeded
from assay.runs.directory import RunDirectory
from assay.runs.record import number
from assay.runs.statement import shown
from assay.training.settings import training_from_json

_TRAINED_AGAIN = (
    "the run was trained again with canaries in its data, and the model thrown away; the run's own model has seen none"
)
_OF_A_PLAN = (
    "variant", "noise_form", "groups", "option", "epsilon", "noise_multiplier", "records", "batch_size", "epochs", "delta", "clip",
    "micro_batch", "sampling", "adjacency",
)  # fmt: skip
_RECORDS_OF_A_CANARY = 20  # of a canary client that is seen by its loss


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(audit)


def audit(
    context: typer.Context,
    run: Annotated[Path | None, typer.Argument(help="The directory of a run; or name a --method, or --all.")] = None,
    method: Annotated[
        str | None, typer.Option(help="Audit a method without a run; `assay methods` lists them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Audit every method and variant, and print a table.")] = False,
    variant: options.Variant = None,
    noise_form: options.NoiseForm = None,
    groups: options.Groups = None,
    option: options.Setting = None,
    epsilon: Annotated[float | None, typer.Option(help="Without a run: the target ε. (default: 1)")] = None,
    noise_multiplier: options.Noise = None,
    records: options.Records = 60_000,
    batch_size: options.BatchSize = 500,
    epochs: options.Epochs = 30,
    delta: options.Delta = 1e-5,
    clip: options.Clip = None,
    micro_batch: options.MicroBatch = 1,
    sampling: options.Sampling = "poisson",
    adjacency: options.Adjacent = Adjacency.ADD_OR_REMOVE_ONE,
    canaries: Annotated[
        int | None,
        typer.Option(help="With a run: train again with this many canaries, instead of auditing one step."),
    ] = None,
    black_box_: Annotated[
        bool,
        typer.Option(
            "--black-box", help="With --canaries: mislabelled records or clients, seen by the final model's loss only."
        ),
    ] = False,
    worlds: Annotated[
        int | None,
        typer.Option(
            help="With a run: train it so often with a mislabelled record (or client), and as often without, and compare."
        ),
    ] = None,
    releases: Annotated[
        int | None,
        typer.Option(help="Releases of one step to count, with and without the canary each. (default: enough)"),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the audited ε.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Fix the audit's own randomness.")] = None,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Attack one step of a method or a run (seconds), or a whole run trained again with canaries. A finished run's record and
    statement take up the result of one step; what training again shows no ε covers, and is kept in audits.json for the holder of the records.
    """
    check_releases(releases)
    if [run is not None, method is not None, every].count(True) != 1:
        raise ConfigError(
            "run", None if run is None else str(run), "exactly one of: the directory of a run, --method, --all"
        )
    check_significance(1 - confidence)
    randomness = OsSeeded() if seed is None else Seeded(seed)
    if run is not None:
        _check_as_it_was(context)
        again = _again(canaries, worlds, black_box_, seed, data_dir)
        directory = RunDirectory.open(run)
        audit_it = _AUDITS[kind_of(directory.read_spec()).name]
        audit_it(directory, again, releases, confidence, randomness, json)
        return
    for field, asked in (("canaries", canaries), ("worlds", worlds), ("black_box", black_box_ or None)):
        if asked is not None:
            raise ConfigError(field, asked, "nothing, unless a run is named to train again")
    start = Plan(
        records=records,
        batch_size=batch_size,
        steps=1,
        noise_multiplier=1.0,
        delta=delta,
        sampling=samplers.parse(sampling),
        adjacency=adjacency,
    )
    if every:
        rows = survey(
            replace(start, steps=steps_for(epochs, start.sampler)),
            epsilon=1.0 if epsilon is None else epsilon,
            confidence=confidence,
            releases=releases,
            randomness=randomness,
        )
        _table([_facts_of(row.found, row.method, row.variant) | {"form": row.form} for row in rows], json)
        return
    assert method is not None
    if epsilon is not None and noise_multiplier is not None:
        raise ConfigError("epsilon", epsilon, "--epsilon or --noise-multiplier, not both")
    target = 1.0 if epsilon is None and noise_multiplier is None else epsilon
    if method in federated.available():
        known = federated.get(method, **options.settings(option, {"variant": variant}))
        rounds = federation(known, delta=delta, noise_multiplier=noise_multiplier or 1.0)
        rounds = rounds if target is None else rounds.calibrated(target)
        found = audit_rounds(rounds, confidence=confidence, releases=releases, randomness=randomness)
        _report(_facts_of(found, known.name, known.variant), found.audit, rounds, json)
        return
    chosen = with_layers(options.method(method, variant, noise_form, groups, option))
    rule = clipping.parse(clip or str(chosen.clip))
    plan = planned(
        replace(start, method=chosen, clip=rule, micro_batch=micro_batch),
        epsilon=target,
        noise_multiplier=noise_multiplier,
        epochs=epochs,
    )
    found = audit_plan(plan, confidence=confidence, releases=releases, randomness=randomness)
    _report(_facts_of(found, chosen.name, chosen.variant), found.audit, plan, json)


def _check_as_it_was(context: typer.Context) -> None:
    """Refuse options of a plan beside a run: it is audited as it was run."""
    for name in _OF_A_PLAN:
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE":
            raise ConfigError(name, context.params[name], "nothing beside a run, which is audited as it was run")


@dataclass(frozen=True, kw_only=True)
class _Again:
    """How a run is trained again: with so many canaries, or so often in two worlds."""

    canaries: int | None
    worlds: int | None
    black_box: bool
    seed: int | None
    data_dir: Path | None

    @property
    def coins(self) -> int:
        """The seed of coins and coordinates."""
        return secrets.randbits(62) if self.seed is None else self.seed


def _again(
    canaries: int | None, worlds: int | None, black: bool, seed: int | None, data_dir: Path | None
) -> _Again | None:
    if canaries is not None and worlds is not None:
        raise ConfigError("worlds", worlds, "--canaries or --worlds, not both")
    if black and canaries is None:
        raise ConfigError("black_box", black, "--black-box together with --canaries")
    if canaries is None and worlds is None:
        return None
    return _Again(canaries=canaries, worlds=worlds, black_box=black, seed=seed, data_dir=data_dir)


def _audit_central(
    directory: RunDirectory,
    how: _Again | None,
    releases: int | None,
    confidence: float,
    randomness: Randomness,
    as_json: bool,
) -> None:
    spec = directory.read_spec()
    check_not_chosen(spec)
    plan = Plan.from_json(spec["plan"])
    steps = None
    if directory.finished:  # what was really spent, lost steps included
        record = directory.read_record()
        verified, steps = float(record["epsilon"]["verified"]), _taken(record)
    else:
        verified = plan.epsilon()
    if how is None:
        found = audit_plan(
            plan, confidence=confidence, releases=releases, randomness=randomness, verified=verified, steps=steps
        )
        result, facts = found.audit, _facts_of(found, plan.method.name, plan.method.variant)
    else:
        claimed = plan.claimed(steps)
        result, said = _judged(_trained_again(spec, plan, how, _each(confidence), steps), plan, verified, claimed)
        facts = _facts(plan.method.name, plan.method.variant, claimed, verified, result, said)
    if directory.finished:
        _keep(directory, result, facts, again=how is not None)
    _report(facts, result, plan, as_json, again=how is not None)


def _audit_federated(
    directory: RunDirectory,
    how: _Again | None,
    releases: int | None,
    confidence: float,
    randomness: Randomness,
    as_json: bool,
) -> None:
    spec = directory.read_spec()
    plan = FederatedPlan.from_json(spec["plan"])
    verified = None
    if directory.finished:
        record = directory.read_record()
        verified, plan = float(record["epsilon"]["verified"]), replace(plan, rounds=_taken(record))
    if how is None:
        found = audit_rounds(plan, confidence=confidence, releases=releases, randomness=randomness, verified=verified)
        result, facts = found.audit, _facts_of(found, plan.method.name, plan.method.variant)
    else:
        verified = plan.epsilon() if verified is None else verified
        result, said = _judged(_played_again(spec, plan, how, _each(confidence)), plan, verified, plan.claimed())
        facts = _facts(plan.method.name, plan.method.variant, plan.claimed(), verified, result, said)
    if directory.finished:
        _keep(directory, result, facts, again=how is not None)
    _report(facts, result, plan, as_json, again=how is not None)


_AUDITS = {"central": _audit_central, "federated": _audit_federated}
"""By the kind of the run."""


def _taken(record: Mapping[str, Any]) -> int:
    """The steps or rounds of a finished run. One whose ceiling allowed none has nothing in its model that an attack could look for."""
    taken = int(record["steps"])
    if taken < 1:
        raise ConfigError(
            "run",
            "a run of no steps",
            "one that took a step: the ceiling ended this one before its first, so training released nothing and there is nothing to audit",
        )
    return taken


def _keep(directory: RunDirectory, found: Audit, facts: Mapping[str, Any], *, again: bool) -> None:
    """Into the record and the statement of a finished run; what trained on its records `again` is kept aside."""
    write = write_aside if again else write_audit
    write(directory, found.to_json() | {"verdict": facts["verdict"], "sentence": facts["sentence"]})


def _trained_again(
    spec: dict[str, Any], plan: Plan, how: _Again, confidence: float, steps: int | None
) -> TrainingAudit:
    """The run of this description once more with canaries, or many times in two worlds: so many of its plan's steps."""
    bundle, network = of_run(spec, how.data_dir, how.seed, instead="see assay.audit.training for others")
    settings: dict[str, Any] = {
        "training": training_from_json({**spec["training"], "seed": how.seed}),
        "confidence": confidence,
        "steps": steps,
    }
    if how.worlds is not None:
        x, y = mislabelled(bundle.test, 1, bundle.classes).tensors
        return trained_in_two_worlds(network, bundle.train, plan, (x[0], y[0]), runs=how.worlds, **settings)
    assert how.canaries is not None
    if not how.black_box:
        return white_box(network, bundle.train, plan, canaries=how.canaries, seed=how.coins, **settings)
    canaries = mislabelled(bundle.test, how.canaries, bundle.classes)
    return black_box(network, bundle.train, plan, canaries, seed=how.coins, **settings)


def _played_again(spec: dict[str, Any], plan: FederatedPlan, how: _Again, confidence: float) -> TrainingAudit:
    """The same of a federated run, all its clients in this process whatever ran them before."""
    bundle, network = of_run(spec, how.data_dir, how.seed, instead="see assay.audit.clients for others")
    if how.data_dir is not None:
        spec["names"] = {**spec["names"], "data_dir": str(how.data_dir)}
    spec["training"] = {**spec["training"], "seed": how.seed}
    held = open_site(site_settings(spec, None)).records
    settings: dict[str, Any] = {"training": Training(**spec["training"]), "confidence": confidence}
    if how.canaries is not None and not how.black_box:
        return clients.white_box(network, held, plan, canaries=how.canaries, seed=how.coins, **settings)
    count = 1 if how.canaries is None else how.canaries
    each = 1 if plan.unit == "record" else max(1, min(_RECORDS_OF_A_CANARY, len(bundle.test) // count))
    canaries = clients.mislabelled_clients(bundle.test, count, bundle.classes, each)
    if how.worlds is not None:
        return clients.played_in_two_worlds(network, held, plan, canaries[0], runs=how.worlds, **settings)
    return clients.black_box(network, held, plan, canaries, seed=how.coins, **settings)


def _each(confidence: float) -> float:
    """The confidence of each of two bounds that hold together with this one: the chances of being wrong add up."""
    return (1 + confidence) / 2


def _judged(found: TrainingAudit, plan: Plan | FederatedPlan, verified: float, claimed: float) -> tuple[Audit, Verdict]:
    """The sharper of two bounds, with the confidence that both have together, and what it says.

    Only a bound that assumes nothing is proof of a bug: sampled steps are not exactly Gaussian. What is above the verified ε by the other alone is suspect.
    """
    both = round(2 * found.plain.confidence - 1, 12)
    how = f"the larger of two bounds with {100 * found.plain.confidence:g} % confidence each; {_TRAINED_AGAIN}"
    plain, gaussian = (
        replace(bound, confidence=both, how=f"{bound.how}; {how}") for bound in (found.plain, found.gaussian)
    )
    claimed = claimed if plan.method.variant == "published" else verified
    best = max(gaussian, plain, key=lambda audit: audit.epsilon)
    said, proven = (verdict(claimed, verified, bound.epsilon) for bound in (best, plain))
    if said is not Verdict.BUG:
        return best, said
    return (best, Verdict.SUSPECT) if proven is Verdict.CONSISTENT else (plain, proven)


def _facts_of(found: PlanAudit, method: str, variant: str) -> dict[str, Any]:
    step = {
        "mu": number(found.step.mu),
        "epsilon": number(found.step.epsilon),
        "epsilon_without_assumptions": number(found.step.epsilon_any),
        "canary": found.step.canary,
        "releases": found.step.releases,
    }
    return _facts(method, variant, found.claimed, found.verified, found.audit, found.verdict) | {"step": step}


def _facts(method: str, variant: str, claimed: float, verified: float, found: Audit, said: Verdict) -> dict[str, Any]:
    return {
        "method": method,
        "variant": variant,
        "claimed": number(claimed),
        "verified": number(verified),
        "audited": number(found.epsilon),
        "confidence": found.confidence,
        "verdict": said.value,
        "sentence": sentence(said, found.epsilon, found.confidence),
        "audit": found.to_json(),
    }


def _table(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"methods": rows})
        return
    table = Table("method", "variant", "ε claimed", "ε verified", "ε audited", "verdict", box=None, pad_edge=False)
    for row in rows:
        name = f"{row['method']} ({row['form']})" if row["form"] else row["method"]
        numbers = [
            shown(row[key], lower_bound=key == "audited").removesuffix(" (no privacy)")
            for key in ("claimed", "verified", "audited")
        ]
        table.add_row(name, row["variant"], *numbers, row["verdict"])
    Console().print(table)


def _report(
    facts: Mapping[str, Any], found: Audit, plan: Plan | FederatedPlan, as_json: bool, *, again: bool = False
) -> None:
    if as_json:
        print_json({**facts, "delta": plan.delta, "adjacency": plan.adjacency.value, "covered": not again})
        return
    console = Console(soft_wrap=True, highlight=False)
    console.print(facts["sentence"], markup=False, style="bold")
    console.print(f"ε claimed   {shown(facts['claimed'])}   (what the paper's accountant would report)")
    console.print(f"ε verified  {shown(facts['verified'])}   at δ = {plan.delta:g}, {plan.adjacency.value}")
    console.print(
        f"ε audited   {shown(facts['audited'], lower_bound=True)}   at least, with {100 * found.confidence:g} % confidence"
    )
    console.print(f"{found.estimator}: {found.how}", markup=False)
    if found.assumption:
        console.print(f"assuming that {found.assumption}", markup=False)
    if again:
        console.print(f"{NOT_COVERED}: of a finished run they are in audits.json only.")
