"""`record.json`: a finished run for programs. Versioned; the fields are documented in docs/record.md.

A number that is infinite is the string "inf": JSON has no other way to say it, and nobody must read it as missing.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Protocol

import torch

from assay import methods
from assay.accounting.epsilon import Adjacency, bound, epsilon_curve, gdp_mu, rdp_epsilon
from assay.accounting.epsilon import epsilon as epsilon_of
from assay.accounting.ledger import Ledger
from assay.methods import denoise, encode
from assay.methods.plan import Plan
from assay.methods.stage import rows

SCHEMA = "assay.record/1"


class Priced(Protocol):
    """What a record asks of a plan, central or federated: its targets and its paper's claim."""

    @property
    def delta(self) -> float: ...
    @property
    def adjacency(self) -> Adjacency: ...
    @property
    def epsilon_limit(self) -> float | None: ...
    @property
    def epsilon_claimed(self) -> float | None: ...
    def claimed(self) -> float: ...


def number(value: float | None) -> float | str | None:
    """A number as JSON can hold it: "inf" for infinity, None for what is not known."""
    if value is None or math.isnan(value):
        return None
    return "inf" if math.isinf(value) else float(value)


def environment() -> dict[str, Any]:
    """What the run was made with."""
    return {
        "assay": version("assay-dp"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dp_accounting": version("dp-accounting"),
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


def epsilon_facts(plan: Priced, ledger: Ledger, accountant: str, claimed: float | None = None) -> dict[str, Any]:
    """ε as a record holds it: verified from the ledger alone, claimed by the plan's method (`claimed`, if the run ended before its
    plan did), not yet audited.
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
    }


def finished_record(
    *,
    plan: Plan,
    ledger: Ledger,
    training: Mapping[str, Any],
    names: Mapping[str, Any],
    steps: int,
    history: list[dict[str, Any]],
    result: Mapping[str, float | None],
    seconds: float,
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of a finished run. ε comes from the ledger alone."""
    return {
        "schema": SCHEMA,
        "status": "done" if steps >= plan.steps else "budget-spent",
        "method": plan.method.name,
        "variant": plan.method.variant,
        "options": methods.options(plan.method),
        "encode": [encode.describe(part) for part in plan.encode],
        "denoise": [denoise.describe(part) for part in plan.denoise],
        "model": names.get("model", "unnamed"),
        "init": names.get("init"),
        "init_sha256": names.get("init_sha256"),
        "init_anew": names.get("init_anew", []),
        "train_layers": names.get("train_layers"),
        "data": names.get("data", "unnamed"),
        "features": names.get("features"),
        "unit": names.get("unit", "one record"),
        "records": plan.records,
        "validation_of": names.get("validation_of"),
        "epsilon": epsilon_facts(plan, ledger, "PLD", plan.claimed(min(steps, plan.steps))),
        "parts": []
        if plan.stage is None
        else rows(plan.stage.parts(), lambda event: epsilon_of(event, plan.delta, plan.adjacency), number),
        "audit": None,
        "noise_multiplier": plan.noise_multiplier,
        "noise_schedule": plan.noise_schedule,
        "exact": plan.exact,
        "clip": str(plan.clip),
        "micro_batch": plan.micro_batch,
        "center": plan.center,
        "sampling": {
            "kind": plan.sampling,
            "rate": plan.sampler.rate,
            "expected_batch_size": plan.batch_size,
        },
        "steps": steps,
        "steps_charged": ledger.total_steps,
        "history": history,
        "result": {key: number(value) for key, value in result.items()},
        "tuning": names.get("tuning"),
        "seed": training["seed"],
        "training": dict(training),
        "notes": names.get("notes", ""),
        "environment": dict(environment),
        "timing": {"seconds": round(seconds, 3), "seconds_per_step": round(seconds / max(1, steps), 6)},
    }
