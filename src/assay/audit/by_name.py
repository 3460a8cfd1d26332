"""Audits by name, as `assay audit` makes them: of a run, of a method, of every method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from assay.accounting.epsilon import Adjacency
from assay.audit.again import Again, chosen, play_again, train_central_again
from assay.audit.aside import write_aside
from assay.audit.bounds import check_releases, check_significance
from assay.audit.plans import PlanAudit, audit_plan
from assay.audit.result import Audit, Verdict, sentence, verdict
from assay.audit.rounds import audit_rounds
from assay.audit.storage import write_audit
from assay.audit.survey import federation, survey, with_layers
from assay.audit.trained import TrainingAudit
from assay.data import samplers
from assay.errors import ConfigError
from assay.federated import methods as federated
from assay.federated.kinds import kind_of
from assay.federated.plan import FederatedPlan
from assay.gradients import clip_rules
from assay.methods import given_once, method_of
from assay.methods.plan import Plan
from assay.methods.targets import steps_for
from assay.randomness.streams import OsSeeded, Randomness, Seeded
from assay.runs.directory import RunDirectory
from assay.runs.record import number
from assay.runs.schema import CENTRAL, FEDERATED
from assay.training.inputs import check_not_chosen
from assay.training.planning import planned

_TRAINED_AGAIN = (
    "the run was trained again with canaries in its data, and the model thrown away; the run's own model has seen none"
)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What an audit found, beside the claimed and the verified ε."""

    facts: dict[str, Any]
    """For programs: `claimed`, `verified`, `audited`, `confidence`, `verdict`, `sentence` and more."""
    audit: Audit
    plan: Plan | FederatedPlan
    again: bool = False
    """Whether it trained on the records again. Then no ε covers it, and only the holder of the records may see it."""

    def __repr__(self) -> str:
        """What it found, in a sentence."""
        return f"<Audited: {self.facts['sentence']}>"

    @property
    def epsilon(self) -> float:
        """The audited ε: a lower bound, with `audit.confidence`."""
        return self.audit.epsilon

    @property
    def verdict(self) -> Verdict:
        """What claimed, verified and audited ε say together."""
        return Verdict(self.facts["verdict"])

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        plan = self.plan
        return {**self.facts, "delta": plan.delta, "adjacency": plan.adjacency.value, "covered": not self.again}


def of_run(
    run: Path | str,
    *,
    canaries: int | None = None,
    worlds: int | None = None,
    black_box: bool = False,
    worst_case: bool = False,
    releases: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    data_dir: Path | None = None,
) -> Audited:
    """Audit a run: one of its steps (seconds), or the whole run trained again.

        assay.audit.of_run("runs/mnist").facts["sentence"]

    The audit of a step goes into the record and the statement of a finished run. No ε covers what training again
    shows: that goes into `audits.json`, for the holder of the records.

    Args:
        run: The run's directory.
        canaries: Train the run again with this many canaries.
        worlds: Train the run this often with a mislabelled record (or client), and as often without.
        black_box: With `canaries`: use mislabelled records or clients, seen by the final model's loss only.
        worst_case: With `worlds`: begin with the worst initial weights, and take the worst record
            (`assay.audit.worst_case`). Central runs only.
        releases: Releases of one step to count, with and without the canary each; None for enough.
        confidence: The confidence of the audited ε.
        seed: Fixes the audit's randomness.
        data_dir: Where data sets are, if they have moved since.

    Returns:
        The audited ε and what it says about the claimed and the verified one.

    Raises:
        ConfigError: The run does not allow this audit.
    """
    check_releases(releases)
    check_significance(1 - confidence)
    how = chosen(canaries, worlds, black_box, worst_case, seed, data_dir)
    directory = RunDirectory.open(Path(run))
    spec = directory.read_spec()
    record = directory.read_record() if directory.finished else None
    under = _KINDS[kind_of(spec).name](spec, None if record is None else _taken(record))
    plan, method = under.plan, under.plan.method
    # a finished run's ledger says what was really spent, lost steps included
    verified = plan.epsilon() if record is None else float(record["epsilon"]["verified"])
    if how is None:
        found = under.one_step(
            confidence=confidence, releases=releases, randomness=_randomness(seed), verified=verified
        )
        audit, facts = found.audit, _facts_of(found, method.name, method.variant)
    else:
        claimed = under.claimed()
        audit, said = _judge(under.whole(how, confidence), plan, verified, claimed)
        facts = _facts(method.name, method.variant, claimed, verified, audit, said)
    if record is not None:
        _keep(directory, audit, facts, again=how is not None)
    return Audited(facts=facts, audit=audit, plan=plan, again=how is not None)


def of_method(
    method: str,
    *,
    variant: str | None = None,
    noise_form: str | None = None,
    groups: int | None = None,
    option: Sequence[str] | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    records: int = 60_000,
    batch_size: float = 500,
    epochs: float | None = 30,
    delta: float = 1e-5,
    clip: str | None = None,
    micro_batch: int = 1,
    sampling: str = "poisson",
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    releases: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
) -> Audited:
    """Audit one step of a method without a run.

        assay.audit.of_method("gredp", variant="published").verdict

    Args:
        method: A method of `assay train` or of `assay federate`. The latter is audited in the federation of
            `assay.audit.survey`.
        variant: `sound` or `published`.
        noise_form: For methods in the Fourier domain.
        groups: How many layers are clipped separately.
        option: Other options of the method, key=value.
        epsilon: The target ε; None means 1, unless the noise is given.
        noise_multiplier: The noise, in place of ε.
        records: How many training records the plan has.
        batch_size: The expected batch size.
        epochs: Passes over the records.
        delta: δ.
        clip: The clipping rule; None for the method's default.
        micro_batch: Records averaged before clipping.
        sampling: How batches are drawn.
        adjacency: Which data sets are neighbours.
        releases: Releases of one step to count; None for enough.
        confidence: The confidence of the audited ε.
        seed: Fixes the audit's randomness.

    Returns:
        As `of_run`.

    Raises:
        ConfigError: There is no such method, or a setting is not accepted.
    """
    check_releases(releases)
    check_significance(1 - confidence)
    randomness = _randomness(seed)
    if epsilon is not None and noise_multiplier is not None:
        raise ConfigError("epsilon", epsilon, "--epsilon or --noise-multiplier, not both")
    target = 1.0 if epsilon is None and noise_multiplier is None else epsilon
    if method in federated.available():
        shared = federated.get(method, **given_once(option, {"variant": variant}))
        rounds = federation(shared, delta=delta, noise_multiplier=noise_multiplier or 1.0)
        rounds = rounds if target is None else rounds.calibrated(target)
        found = audit_rounds(rounds, confidence=confidence, releases=releases, randomness=randomness)
        return Audited(facts=_facts_of(found, shared.name, shared.variant), audit=found.audit, plan=rounds)
    known = with_layers(method_of(method, variant, noise_form, groups, option))
    given = {"method": known, "clip": clip_rules.parse(clip or str(known.clip)), "micro_batch": micro_batch}
    start = _one_step_plan(records, batch_size, delta, sampling, adjacency, **given)
    plan = planned(start, epsilon=target, noise_multiplier=noise_multiplier, epochs=epochs)
    found = audit_plan(plan, confidence=confidence, releases=releases, randomness=randomness)
    return Audited(facts=_facts_of(found, known.name, known.variant), audit=found.audit, plan=plan)


def of_every_method(
    *,
    epsilon: float = 1.0,
    records: int = 60_000,
    batch_size: float = 500,
    epochs: float | None = 30,
    delta: float = 1e-5,
    sampling: str = "poisson",
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    releases: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Audit every method and variant at one target ε.

    Args:
        epsilon: The target ε: claimed for published variants, verified for sound ones.
        records: How many training records the plan of central methods has.
        batch_size: Its expected batch size.
        epochs: Its passes over the records.
        delta: δ.
        sampling: How its batches are drawn.
        adjacency: Which data sets are neighbours.
        releases: Releases of one step to count; None for enough.
        confidence: The confidence of each audited ε.
        seed: Fixes the audits' randomness.

    Yields:
        The facts of `Audited`, and the `form` of each method.

    Raises:
        ConfigError: A setting is not accepted.
    """
    check_releases(releases)
    check_significance(1 - confidence)
    start = _one_step_plan(records, batch_size, delta, sampling, adjacency)
    rows = survey(
        replace(start, steps=steps_for(epochs, start.sampler)),
        epsilon=epsilon,
        confidence=confidence,
        releases=releases,
        randomness=_randomness(seed),
    )
    for row in rows:
        yield _facts_of(row.found, row.method, row.variant) | {"form": row.form}


def _one_step_plan(
    records: int, batch_size: float, delta: float, sampling: str, adjacency: Adjacency, **others: Any
) -> Plan:
    """A plan of one step, from which the others follow."""
    return Plan(
        records=records,
        batch_size=batch_size,
        steps=1,
        noise_multiplier=1.0,
        delta=delta,
        sampling=samplers.parse(sampling),
        adjacency=adjacency,
        **others,
    )


def _randomness(seed: int | None) -> Randomness:
    return OsSeeded() if seed is None else Seeded(seed)


class _UnderAudit(NamedTuple):
    """What differs between kinds of runs."""

    plan: Plan | FederatedPlan
    claimed: Callable[[], float]
    one_step: Callable[..., PlanAudit]
    whole: Callable[[Again, float], TrainingAudit]
    """Trains again, so that all bounds together have this confidence."""


def _central(spec: dict[str, Any], steps: int | None) -> _UnderAudit:
    """A central run that took this many steps (None: all)."""
    check_not_chosen(spec)
    plan = Plan.from_json(spec["plan"])
    whole = partial(train_central_again, spec, plan, steps)
    return _UnderAudit(plan, partial(plan.claimed, steps), partial(audit_plan, plan, steps=steps), whole)


def _federated(spec: dict[str, Any], rounds: int | None) -> _UnderAudit:
    """A federated run that took this many rounds (None: all)."""
    plan = FederatedPlan.from_json(spec["plan"])
    plan = plan if rounds is None else replace(plan, rounds=rounds)
    return _UnderAudit(plan, plan.claimed, partial(audit_rounds, plan), partial(play_again, spec, plan))


_KINDS = {CENTRAL: _central, FEDERATED: _federated}


def _taken(record: Mapping[str, Any]) -> int:
    """The steps or rounds of a finished run. The model of a run without any holds nothing that an attack could find."""
    taken = int(record["steps"])
    if taken < 1:
        why = "the ceiling ended this one before its first, so training released nothing and there is nothing to audit"
        raise ConfigError("run", "a run of no steps", f"one that took a step: {why}")
    return taken


def _keep(directory: RunDirectory, found: Audit, facts: Mapping[str, Any], *, again: bool) -> None:
    """Write an audit to record and statement, or beside them if it trained on the records `again`."""
    write = write_aside if again else write_audit
    write(directory, found.to_json() | {"verdict": facts["verdict"], "sentence": facts["sentence"]})


def _judge(found: TrainingAudit, plan: Plan | FederatedPlan, verified: float, claimed: float) -> tuple[Audit, Verdict]:
    """The sharpest bound, with the confidence that all have together, and what it says.

    Only a bound without assumptions proves a bug: sampled steps are not exactly Gaussian. If only other bounds are
    above the verified ε, the run is suspect.
    """
    best, plain = (
        replace(bound, how=f"{bound.how}; {_TRAINED_AGAIN}") for bound in (found.best, found.together(found.plain))
    )
    claimed = claimed if plan.method.published else verified
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
