"""`record.json`: a finished run for programs. Versioned; the fields are documented in docs/record.md.

An infinite number is the string "inf", because JSON has no other way to say it and it must not look missing.
"""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

from dp_accounting.dp_event import DpEvent

from assay._util.process import commit
from assay.accounting.epsilon import Adjacency, bound, epsilon_curve, gdp_mu, rdp_epsilon
from assay.accounting.ledger import Ledger
from assay.accounting.tradeoff import tradeoff
from assay.runs.schema import RECORD_SCHEMA


class Priced(Protocol):
    """What a record needs of a plan, central or federated: its targets and its paper's claim."""

    @property
    def delta(self) -> float: ...
    @property
    def adjacency(self) -> Adjacency: ...
    @property
    def epsilon_limit(self) -> float | None: ...
    @property
    def epsilon_claimed(self) -> float | None: ...
    def claimed(self) -> float: ...
    def groups(self, event: DpEvent, /) -> Mapping[int, float]: ...
    def event(self) -> DpEvent: ...
    def fits(self, steps: int, origin: int | None, event: DpEvent, once: bool, /) -> bool: ...


def number(value: float | None) -> float | str | None:
    """A number as JSON can hold it: "inf" for infinity, None for an unknown one.

    >>> number(math.inf)
    'inf'
    """
    if value is None or math.isnan(value):
        return None
    return "inf" if math.isinf(value) else float(value)


def environment() -> dict[str, Any]:
    """The versions and the platform of this process; from a checkout of Assay also its commit."""
    import torch

    return {
        "assay": version("assay-dp"),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dp_accounting": version("dp-accounting"),
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


def epsilon_facts(plan: Priced, ledger: Ledger, accountant: str, claimed: float | None = None) -> dict[str, Any]:
    """ε as a record holds it.

    Args:
        plan: What was promised.
        ledger: What was spent. The verified ε comes from it alone.
        accountant: The accountant's name.
        claimed: The claimed ε, if the run ended before its plan; None asks the plan's method.

    Returns:
        The field `epsilon` of the record; not yet audited.
    """
    event, verified = ledger.event(), ledger.epsilon()
    deltas = sorted({plan.delta, *(10.0**-k for k in range(3, 10))}, reverse=True)
    return {
        "target": plan.epsilon_limit if plan.epsilon_claimed is None else plan.epsilon_claimed,
        "target_is": "verified" if plan.epsilon_claimed is None else "claimed",
        "claimed": number(plan.claimed() if claimed is None else claimed),
        "verified": number(verified),
        "audited": None,
        "delta": plan.delta,
        "adjacency": plan.adjacency.value,
        "accountant": accountant,
        "bound": bound(event, plan.delta, plan.adjacency).value,
        "rdp": number(rdp_epsilon(event, plan.delta, plan.adjacency)),
        "gdp_mu": number(gdp_mu(verified, plan.delta)),
        "curve": [{"delta": d, "epsilon": number(e)} for d, e in epsilon_curve(event, deltas, plan.adjacency)],
        "tradeoff": tradeoff(event, plan.delta, plan.adjacency).to_json(),
        "groups": [{"size": size, "epsilon": number(eps)} for size, eps in plan.groups(event).items()],
    }


def status(taken: int, planned: int, stopped: bool) -> str:
    """How a run ended: "done", "budget-spent", or "stopped" by a callback."""
    if stopped:
        return "stopped"
    return "done" if taken >= planned else "budget-spent"


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """What the statement says that only the plan knows. The record stores it, so that a statement needs nothing else.

    Attributes:
        randomness: Where the random numbers come from.
        method: What the method is, and whether it is sound as published.
        protected: Who is protected against what; items of a list.
        mechanism: How the noise was added; items of a list.
        accountant: How ε was computed, where the kind of bound does not say it.
        caveat: What is added to the name of a tight bound.
        covered: What ε covers.
        public: What is taken as public.
        uncovered: Further items of what is not covered.
        assumed: What the guarantee assumes; items of a list.
    """

    randomness: str
    method: str
    protected: list[str]
    mechanism: list[str]
    covered: str
    public: str
    assumed: list[str]
    uncovered: list[str] = field(default_factory=list)
    accountant: str = ""
    caveat: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a kind of run contributes to its record; docs/record.md explains each field."""

    kind: str
    method: str
    variant: str
    options: Mapping[str, Any]
    unit: str
    records: int
    planned: int
    noise_multiplier: float
    clip: str
    sampling: Mapping[str, Any]
    sentences: Sentences
    accountant: str = "PLD"
    claimed: float | None = None
    encode: Sequence[str] = ()
    denoise: Sequence[str] = ()
    parts: Sequence[Mapping[str, Any]] = ()
    noise_schedule: str = "constant"
    micro_batch: int = 1
    center: str | None = None
    columns: str | None = None
    exact: bool = False
    persons: Mapping[str, Any] | None = None
    federated: Mapping[str, Any] | None = None


def build_record(
    *,
    plan: Priced,
    ledger: Ledger,
    facts: Facts,
    names: Mapping[str, Any],
    training: Mapping[str, Any],
    steps: int,
    stopped: bool = False,
    history: list[dict[str, Any]],
    result: Mapping[str, float | None],
    seconds: float,
) -> dict[str, Any]:
    """The record of a finished run, of whatever kind. ε comes from the ledger alone.

    Args:
        plan: What was promised.
        ledger: What was spent.
        facts: What this kind of run contributes.
        names: Describes model and data.
        training: The settings that do not decide ε.
        steps: The steps or rounds behind the model.
        stopped: Whether a callback ended the run: claimed and verified ε are then those of the whole plan.
        history: An entry for each epoch.
        result: Accuracy and loss of the final model.
        seconds: How long the run took.

    Returns:
        What `record.json` holds.
    """
    return {
        "schema": RECORD_SCHEMA,
        "kind": facts.kind,
        "status": status(steps, facts.planned, stopped),
        "method": facts.method,
        "variant": facts.variant,
        "options": dict(facts.options),
        "encode": list(facts.encode),
        "denoise": list(facts.denoise),
        "model": names.get("model", "unnamed"),
        "model_by": names.get("model_by"),
        "init": names.get("init"),
        "init_sha256": names.get("init_sha256"),
        "init_anew": names.get("init_anew", []),
        "train_layers": names.get("train_layers"),
        "data": names.get("data", "unnamed"),
        "features": names.get("features"),
        "circulant": names.get("circulant"),
        "inputs": names.get("inputs"),
        "unit": facts.unit,
        "records": facts.records,
        "persons": None if facts.persons is None else dict(facts.persons),
        "validation_of": names.get("validation_of"),
        "split": names.get("split"),
        "task": names.get("task"),
        "target": names.get("target"),
        "table_schema": names.get("schema"),
        "epsilon": epsilon_facts(plan, ledger, facts.accountant, facts.claimed),
        "parts": [dict(part) for part in facts.parts],
        "audit": None,
        "noise_multiplier": facts.noise_multiplier,
        "noise_schedule": facts.noise_schedule,
        "exact": facts.exact,
        "clip": facts.clip,
        "micro_batch": facts.micro_batch,
        "center": facts.center,
        "columns": facts.columns,
        "sampling": dict(facts.sampling),
        "steps": steps,
        "steps_charged": ledger.total_steps,
        "history": history,
        "result": {key: number(value) for key, value in result.items()},
        "tuning": names.get("tuning"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "operator": names.get("operator"),
        "budget": None,
        "seed": training["seed"],
        "training": dict(training),
        "federated": None if facts.federated is None else dict(facts.federated),
        "notes": names.get("notes", ""),
        "sentences": asdict(facts.sentences),
        "environment": environment(),
        "timing": {"seconds": round(seconds, 3), "seconds_per_step": round(seconds / max(1, steps), 6)},
    }
