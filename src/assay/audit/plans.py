"""The audit of a plan without training: one step is audited, and its μ is composed as the plan composes.

Assumption: the step's noise is Gaussian in the direction that was tested. Then the step is no more private than a
Gaussian release of multiplier 1/μ. The plan's sampler and accountant turn that into the ε of a run. This composition is
that of the run itself, for the record that it reveals most.

Where a method draws again until a test accepts, the accepted updates are audited as well (`assay.audit.accepted`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent

from assay.accounting.epsilon import Adjacency, Bound, bound, epsilon
from assay.accounting.groups import enlarged
from assay.audit.accepted import TESTS, epsilon_of_accepted
from assay.audit.local import ReleasesRecords, audit_records
from assay.audit.result import Audit, Verdict, verdict
from assay.audit.single_step import StepAudit, audit_step
from assay.audit.specimen import Specimen
from assay.errors import ConfigError
from assay.federated.plan import FederatedPlan
from assay.methods.plan import Plan
from assay.randomness.streams import OsSeeded, Randomness

_ABOVE = 1.01  # the accountant's ε may exceed the true one by this factor; a lower bound must not


@dataclass(frozen=True, kw_only=True)
class PlanAudit:
    """Claimed, verified and audited ε of a plan side by side."""

    claimed: float
    verified: float
    audit: Audit
    step: StepAudit
    published: bool

    @property
    def verdict(self) -> Verdict:
        """What the three say together. A sound variant is held to its verified ε, whatever its paper would claim."""
        return verdict(self.claimed if self.published else self.verified, self.verified, self.audit.epsilon)


def audit_plan(
    plan: Plan,
    *,
    confidence: float = 0.95,
    releases: int | None = None,
    randomness: Randomness | None = None,
    verified: float | None = None,
    steps: int | None = None,
) -> PlanAudit:
    """Audit one step of the plan's chain and compose its μ over the plan's steps. Takes seconds.

    A method that clips layer by layer is audited with as many layers as it was set for, or with four.

    Args:
        plan: The plan.
        confidence: The confidence of the audited ε.
        releases: Releases of one step to count; None for enough.
        randomness: Where random numbers come from.
        verified: What a run under the plan has really spent (its ledger's ε); None for the plan's ε.
        steps: How many of the plan's steps the run took; None for all.

    Returns:
        Claimed, verified and audited ε.

    Raises:
        ConfigError: The noise of the step is not Gaussian.
    """
    specimen = Specimen.for_plan(plan)
    plan = plan.for_layers(specimen.names)
    if isinstance(plan.step_event, NoOpDpEvent) and isinstance(plan.stage, ReleasesRecords):
        step = audit_records(
            plan.stage,
            delta=plan.delta,
            confidence=confidence,
            releases=releases,
            randomness=randomness or OsSeeded(),
        )
        audit = Audit(
            epsilon=step.epsilon,
            delta=plan.delta,
            confidence=confidence,
            estimator="releases of single records, Clopper-Pearson",
            canaries=1,
            how=f"{step.releases} releases of {step.canary}",
        )
        return side_by_side(plan, audit, step, verified, plan.claimed(steps))
    if not isinstance(plan.step_event, GaussianDpEvent | NonPrivateDpEvent):
        raise ConfigError(
            "method",
            plan.method.name,
            "one with Gaussian noise: the audit of one step is composed as Gaussian noise is",
        )
    selects = plan.selection is not None and plan.selection.most is not None
    wrong = (1 - confidence) / (2 if selects else 1)  # half of it for the tests
    step = audit_step(
        plan.chain().on(specimen.parameters),
        specimen,
        delta=plan.delta,
        confidence=1 - wrong if selects else confidence,
        releases=releases,
        randomness=randomness,
    )
    shown, how = composed(plan, step.mu, steps), ""
    if selects:
        found = epsilon_of_accepted(plan, step.mu, randomness or OsSeeded(), significance=wrong, steps=steps)
        if found > shown:
            shown, how = found, f"; the updates that its tests accept, by {TESTS} of them"
    audit = Audit(
        epsilon=shown,
        delta=plan.delta,
        confidence=confidence,
        estimator="single step, Clopper-Pearson, Gaussian family; composed by the plan's accountant",
        canaries=1,
        how=f"{step.releases} releases of one step with and without a canary ({step.canary}): μ ≥ {step.mu:.4g}{how}",
        assumption="" if step.mu == math.inf else "the noise is Gaussian in the direction tested",
    )
    return side_by_side(plan, audit, step, verified, plan.claimed(steps))


def side_by_side(
    plan: Plan | FederatedPlan, audit: Audit, step: StepAudit, verified: float | None, claimed: float
) -> PlanAudit:
    """The claimed and the verified ε of a plan, or of a run under it, beside its audit."""
    return PlanAudit(
        claimed=claimed,
        verified=plan.epsilon() if verified is None else verified,
        audit=audit,
        step=step,
        published=plan.method.published,
    )


def composed(plan: Plan, mu: float, steps: int | None = None) -> float:
    """The least ε of the plan's run, or of its first `steps`, if each step is no more private than μ-GDP.

    Under a falling noise schedule, μ is that of the first step, which has the most noise. Where a method claims for the
    steps that it keeps, as many steps count as it keeps at most: others may not be released.
    """
    steps = plan.steps if steps is None else steps
    if plan.selection is not None and plan.selection.most is not None:
        steps = min(steps, plan.selection.most)
    if mu == 0:
        return 0.0
    if mu == math.inf:
        return math.inf
    # Where a record is replaced, the accountant doubles what a step shows. A canary in a micro-batch has already
    # reversed its clipped average, which is all that a replacement can do. The same holds for a clipped sum.
    reversed_ = plan.micro_batch > 1 or bool(plan.chain().before)
    doubled = reversed_ and plan.adjacency is Adjacency.REPLACE_ONE
    event = plan.sampler.at_least(GaussianDpEvent((2 if doubled else 1) / mu), steps)
    if plan.unit is not None and not plan.unit.whole and plan.unit.rows is not None and not plan.sampler.by_epoch:
        # A person whose rows all point where the canary does: each is sampled by its own coin, and their shifts add up.
        # For shuffled epochs only a bound from above is known of that; one row shows no more than all of them.
        event = enlarged(event, plan.unit.rows) or event
    return shown_by(event, plan.delta, plan.sampler.shown_under or plan.adjacency)


def shown_by(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    """A lower bound on the ε of this event; 0 where the accountant does not know how tight its ε is."""
    known = bound(event, delta, adjacency) in (Bound.EXACT, Bound.PLD)
    return epsilon(event, delta, adjacency) / _ABOVE if known else 0.0
