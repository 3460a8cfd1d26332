"""The kinds of runs, by `kind` in run.json. `federated` is the first package that knows all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from assay.accounting.ledger import Ledger
from assay.errors import AssayError
from assay.federated import record as federated
from assay.federated.plan import FederatedPlan
from assay.methods.plan import Plan
from assay.runs import checkpoint, schema
from assay.runs.directory import RunDirectory
from assay.runs.record import Sentences
from assay.runs.run import steps_covered
from assay.runs.schema import CENTRAL, FEDERATED
from assay.training import record as central
from assay.training.inputs import is_choice


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is needed to read the directory of a kind of run.

    Attributes:
        name: Its name in run.json and record.json.
        steps: What its advances are called: "steps" or "rounds".
        planned: The key of the plan that holds their number.
        plan: Reads run.json's `plan`.
        sentences: Makes the statement's sentences that only the plan knows, from run.json.
    """

    name: str
    steps: str
    planned: str
    plan: Callable[[dict[str, Any]], Plan | FederatedPlan]
    sentences: Callable[[Mapping[str, Any]], Sentences]


_KINDS = {
    kind.name: kind
    for kind in (
        Kind(name=CENTRAL, steps="steps", planned="steps", plan=Plan.from_json, sentences=central.sentences),
        Kind(
            name=FEDERATED,
            steps="rounds",
            planned="rounds",
            plan=FederatedPlan.from_json,
            sentences=federated.sentences,
        ),
    )
}


def kind_of(spec: Mapping[str, Any]) -> Kind:
    """The kind of a run.

    Args:
        spec: What run.json says. Earlier versions did not name the kind of a central run.

    Returns:
        Its kind.

    Raises:
        AssayError: This version does not know the kind.
    """
    name = spec.get("kind", CENTRAL)
    if name not in _KINDS:
        raise AssayError(f"a run of kind {name!r}: this version of Assay knows {', '.join(_KINDS)}")
    return _KINDS[name]


def epsilon_if_ended(plan: Plan | FederatedPlan, ledger: Ledger) -> float:
    """ε that holds for an unfinished run if it is never resumed, whoever stopped it and why.

    It is that of all steps which the plan and the ceiling would have allowed. The ε of the steps charged so far holds
    only if the moment of the stop does not depend on what was released: whoever looks at accuracies and stops then
    chooses the number of steps by the records (Rogers, Roth, Ullman and Vadhan 2016, "Privacy odometers and filters:
    pay-as-you-go composition", arXiv 1605.08294). Ending early is post-processing of all steps.

    Args:
        plan: The plan in run.json.
        ledger: What was charged. It is not changed.

    Returns:
        0 if nothing was charged, because then nothing was released; never less than the ledger's own ε.
    """
    before = ledger.charges()
    if not before:
        return 0.0
    origin = 0 if before[-1].once else before.pop().origin or 0
    whole = ledger.reading(before)
    if isinstance(plan, FederatedPlan):
        segment = whole.begin(plan.event, plan.rounds)
    else:
        segment = whole.begin(functools.partial(plan.steps_event, start=origin), plan.steps - origin)
    segment.charge(segment.allowed)
    return max(whole.epsilon(), ledger.epsilon())


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """What an unfinished run has spent.

    Attributes:
        kind: The kind of run.
        is_choice: Whether it is a choice of `assay tune`, which cannot be resumed.
        charged: How many steps or rounds are charged.
        planned: How many the plan has.
        delta: δ.
        epsilon: ε of what is charged.
        if_ended: ε if it is never resumed (`epsilon_if_ended`). For a choice, which was charged whole, it is `epsilon`.
    """

    kind: Kind
    is_choice: bool
    charged: int
    planned: int
    delta: float
    epsilon: float
    if_ended: float


def spent_by(directory: RunDirectory) -> Unfinished:
    """What an unfinished run has spent, by its ledger.

    Args:
        directory: The run's directory. Nothing in it is changed.

    Raises:
        LedgerError: The ledger does not fit the plan, or is behind the checkpoint.
    """
    spec = directory.read_spec()
    kind = kind_of(spec)
    plan = kind.plan(spec["plan"])
    ledger = directory.open_ledger(delta=plan.delta, adjacency=plan.adjacency, ceiling=plan.epsilon_limit)
    chosen = is_choice(spec)
    if not chosen:
        ledger.check_fits(plan.fits)
        if directory.checkpoint.exists():
            before = checkpoint.state(directory.checkpoint, directory.digest())
            schema.check(directory.checkpoint, before, schema.checkpoint_of(spec), "state")
            ledger.check_covers(steps_covered(before))
    return Unfinished(
        kind=kind,
        is_choice=chosen,
        charged=ledger.total_steps,
        planned=spec["plan"][kind.planned],
        delta=plan.delta,
        epsilon=ledger.epsilon(),
        if_ended=ledger.epsilon() if chosen else epsilon_if_ended(plan, ledger),
    )


def complete_record(directory: RunDirectory) -> dict[str, Any]:
    """The record of a finished run, with everything that its statement needs.

    Earlier versions did not store the sentences that only the plan knows: these come from run.json.

    Args:
        directory: The run's directory.

    Returns:
        The record.
    """
    record = directory.read_record()
    if "sentences" in record:
        return record
    spec = directory.read_spec()
    return {**record, "sentences": asdict(kind_of(spec).sentences(spec))}
