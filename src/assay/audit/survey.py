"""Audits of every form of every method: claimed, verified and audited ε side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from assay import methods
from assay.audit.plans import PlanAudit, audit_plan
from assay.audit.rounds import audit_rounds
from assay.federated import methods as federated
from assay.federated.plan import FederatedPlan
from assay.gradients import clipping as clip
from assay.methods.plan import Plan
from assay.randomness.streams import Randomness

_LAYERS = 5  # LeNet-5's, for methods that clip layer by layer

# Forms that papers publish besides each method's variants with default options.
_MORE: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("gredp", {"variant": "published", "noise_form": "real"}, {}),
    ("spectral", {"variant": "published", "noise_form": "real"}, {}),
    ("discrete", {"variant": "published"}, {"micro_batch": 4}),
    ("discrete", {}, {"micro_batch": 4}),
    ("afrrs", {"variant": "published", "objective": "record"}, {}),
    ("lssgd", {"variant": "published"}, {"clip": clip.Assumed(bound=1.0)}),
)


def with_layers(method: methods.Method) -> methods.Method:
    """The method, with five layers if it clips layer by layer and their number is not set."""
    return method.for_layers([f"layer{i}" for i in range(_LAYERS)]) if method.needs_layers else method


def federation(method: federated.FederatedMethod, *, delta: float, noise_multiplier: float = 1.0) -> FederatedPlan:
    """The federation for audits of federated methods, as in the DP-FedAGS paper.

    It has 100 clients, 10 in each round, 200 rounds, and logistic regression on MNIST.
    """
    return FederatedPlan(
        clients=100,
        per_round=10,
        rounds=200,
        size=7850,
        noise_multiplier=noise_multiplier,
        delta=delta,
        noise=method.noises[0],
        method=method,
    )


@dataclass(frozen=True, kw_only=True)
class Surveyed:
    """A form of a method and what its audit says."""

    method: str
    variant: str
    form: str
    found: PlanAudit


def survey(
    like: Plan,
    *,
    epsilon: float,
    confidence: float,
    releases: int | None = None,
    randomness: Randomness | None = None,
) -> Iterator[Surveyed]:
    """Audit every method and variant at this target ε (claimed for published variants, verified for sound ones).

    Args:
        like: The plan for central methods; federated ones have a `federation`.
        epsilon: The target.
        confidence: The confidence of each audit.
        releases: How many releases each audit counts; None for enough.
        randomness: Where random numbers come from.

    Yields:
        Each form with its audit.
    """
    forms: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        (name, {"variant": variant}, {})
        for name, method in methods.available().items()
        for variant in (method.VARIANTS if "variant" in type(method).OPTIONS else ("sound",))
    ]
    for name, options, changes in (*forms, *_MORE):
        method = with_layers(methods.get(name, **options))
        plan = replace(like, method=method, **{"clip": method.clip, **changes}).within(epsilon)
        said = [f"{key.replace('_', ' ')} {value}" for key, value in (options | changes).items() if key != "variant"]
        yield Surveyed(
            method=name,
            variant=method.variant,
            form=", ".join(said),
            found=audit_plan(plan, confidence=confidence, releases=releases, randomness=randomness),
        )
    for name, known in federated.available().items():
        for variant in methods.VARIANTS if "variant" in type(known).OPTIONS else ("sound",):
            chosen = federated.get(name, variant=variant)
            rounds = federation(chosen, delta=like.delta).calibrated(epsilon)
            yield Surveyed(
                method=name,
                variant=variant,
                form=f"{rounds.noise} noise",
                found=audit_rounds(rounds, confidence=confidence, releases=releases, randomness=randomness),
            )
