"""The audit of a federated plan without training: one round of its exchange is audited, and its μ is composed.

Two worlds differ in one client. What the attacker sees depends on the noise. With `central` noise it is what the server
releases. With `local` noise it is the client's message, including numbers beside the update. With `distributed` noise
it is the sum of as many shares as open a round. A pilot set of rounds finds the canary and the linear test that
separate the worlds best; fresh rounds count the test's errors. Where some number moves with the client and carries no
noise, no finite ε holds.

Assumption: the noise is Gaussian, or as narrow, in the direction tested. Then a turn is no more private than a Gaussian
release of that μ, and turns compose as in the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent
from numpy.typing import NDArray
from torch import Tensor

from assay.audit import bounds
from assay.audit.plans import PlanAudit, shown_by, side_by_side
from assay.audit.result import Audit
from assay.audit.scores import errors_at
from assay.audit.single_step import BARE, BARE_RELEASES, StepAudit, discriminant, no_privacy, tail_threshold
from assay.errors import ConfigError
from assay.federated.exchange import Work
from assay.federated.layout import Layout
from assay.federated.plan import FederatedPlan
from assay.federated.wire import Message
from assay.randomness.streams import OsSeeded, Randomness

_LAYOUT = Layout({"weight": (3, 4), "bias": (3,)})
_LARGE = 1000.0  # updates of canaries over the bound: every method clips them
_PILOT, _FRESH, _FRESH_SUMS = 500, 6_000, 2_000  # a sum of shares takes as long as there are clients in it
Worlds = tuple[list[Tensor], list[Tensor]]


def audit_rounds(
    plan: FederatedPlan,
    *,
    confidence: float = 0.95,
    releases: int | None = None,
    randomness: Randomness | None = None,
    verified: float | None = None,
) -> PlanAudit:
    """Audit one round of the plan's method on a tiny model, and compose its μ over the plan's turns.

    Args:
        plan: The plan. For the unit `record`, audit `dpsgd` instead: clients run DP-SGD.
        confidence: The confidence of the audited ε.
        releases: Rounds to count in each world; None for enough.
        randomness: Where random numbers come from.
        verified: What a run under the plan has really spent; None for the plan's ε.

    Returns:
        Claimed, verified and audited ε.

    Raises:
        ConfigError: The plan protects records, or there are too few releases.
    """
    if plan.unit == "record":
        raise ConfigError("unit", plan.unit, "client: records are protected by DP-SGD at the clients (audit dpsgd)")
    small = replace(plan, size=_LAYOUT.size)
    bounds.check_releases(releases)
    enough = _FRESH_SUMS if plan.noise == "distributed" else _FRESH
    fresh = enough if releases is None else releases
    step = _audit_round(small, confidence, fresh, randomness or OsSeeded())
    audit = Audit(
        epsilon=composed(plan, step.mu),
        delta=plan.delta,
        confidence=confidence,
        estimator="single round, Clopper-Pearson, Gaussian family; composed by the plan's accountant",
        canaries=1,
        how=f"{step.releases} rounds in two worlds that differ in one client ({step.canary}): μ ≥ {step.mu:.4g}",
        assumption="" if step.mu == math.inf else "the noise is Gaussian in the direction tested",
    )
    return side_by_side(plan, audit, step, verified, plan.claimed())


def composed(plan: FederatedPlan, mu: float) -> float:
    """The least ε of the plan's run if each turn of a client is no more private than μ-GDP."""
    if mu in (0.0, math.inf):
        return mu
    if plan.hidden:
        event = plan.sampler.compose(GaussianDpEvent(1 / mu), plan.rounds)
    else:  # multipliers are relative to one client's bound, and replacing a client moves the sum by twice that
        event = SelfComposedDpEvent(GaussianDpEvent(2 / mu), plan.turns)
    return shown_by(event, plan.delta, plan.adjacency)


def _audit_round(plan: FederatedPlan, confidence: float, fresh: int, randomness: Randomness) -> StepAudit:
    significance = 1 - confidence
    bounds.check_significance(significance)
    seen = _Rounds(plan, randomness)
    cases = []
    for name, worlds in _canaries(plan):
        pilot = [seen.draw(world, _PILOT) for world in worlds]
        moved = pilot[1].mean(0) - pilot[0].mean(0)
        if plan.hidden:  # the server adds the noise: without it, this is exactly how far the worlds are apart
            bare = _Rounds(replace(plan, noise_multiplier=0.0), randomness)
            moved = bare.draw(worlds[1], 1)[0] - bare.draw(worlds[0], 1)[0]
        covariance = (torch.cov(pilot[0].T) + torch.cov(pilot[1].T)) / 2
        middle = (pilot[1].mean(0) + pilot[0].mean(0)) / 2
        cases.append((name, worlds, moved, middle, covariance, *discriminant(moved, covariance)))
    name, worlds, moved, middle, covariance, test, expected = max(cases, key=lambda case: case[-1])
    fresh = min(fresh, BARE_RELEASES) if expected == math.inf else fresh
    scores = [(seen.draw(world, fresh) @ test).numpy() for world in worlds]
    apart = float(np.mean(scores[1]) - np.mean(scores[0]))
    if max(float(np.ptp(s)) for s in scores) < 2 * BARE * abs(apart):
        return no_privacy(plan.delta, confidence, f"{name}, in a number without noise", float(moved.norm()), fresh)
    std = max(math.sqrt(max(0.0, float(test @ covariance @ test))), BARE * abs(apart))
    centre = float(middle @ test)  # from the pilot: what is counted must not choose the threshold
    mu = bounds.mu_lower(errors_at(scores[1], scores[0], centre), significance=significance)
    gap = float(moved @ test)
    tail = centre - gap / 2 + std * tail_threshold(gap / std, fresh, plan.delta, significance)
    return StepAudit(
        mu=mu,
        epsilon=bounds.epsilon_of_mu(mu, plan.delta),
        epsilon_any=bounds.epsilon_lower(
            errors_at(scores[1], scores[0], tail), delta=plan.delta, significance=significance
        ),
        delta=plan.delta,
        confidence=confidence,
        canary=name,
        sensitivity=float(moved.norm()),
        releases=2 * fresh,
    )


def _canaries(plan: FederatedPlan) -> Iterator[tuple[str, Worlds]]:
    """A client that is present or absent where that is hidden, otherwise one whose update is reversed."""
    others = [torch.zeros(_LAYOUT.size, dtype=torch.float64)] * (plan.answers - 1 if plan.noise == "distributed" else 0)
    directions = {"one coordinate": torch.eye(_LAYOUT.size)[0], "all coordinates": torch.ones(_LAYOUT.size)}
    for name, direction in directions.items():
        update = (_LARGE * plan.clip * direction / direction.norm()).double()
        yield name, ([], [update]) if plan.hidden else ([-update, *others], [update, *others])


class _Rounds:
    """Rounds of the plan's exchange, each with fresh randomness."""

    def __init__(self, plan: FederatedPlan, randomness: Randomness) -> None:
        self._plan, self._randomness, self._next = plan, randomness, 0
        self._exchange = plan.method.exchange(plan, _LAYOUT)
        self._before = {name: value.clone() for name, value in self._exchange.state().items()}
        self._instructions = self._exchange.instructions(0)

    def draw(self, updates: list[Tensor], n: int) -> Tensor:
        """What is seen of n rounds in which clients have these updates, [n, numbers]."""
        return torch.stack([self._round(updates) for _ in range(n)])

    def _round(self, updates: list[Tensor]) -> Tensor:
        i, self._next = self._next, self._next + 1
        messages = [self._message(update, client, i) for client, update in enumerate(updates)]
        if self._plan.noise == "local":
            (only,) = messages
            arrays = [np.asarray(array, dtype=np.float64) for array in only.arrays.values()]
            return torch.from_numpy(np.concatenate([*arrays, _numbers(only)]))
        self._exchange.restore(self._before)
        stream = self._randomness.stream("audit server", i)
        update = self._exchange.combine(messages, self._instructions, 0, stream)
        assert update is not None
        return torch.cat([update, *(value.flatten() for value in self._exchange.state().values())])

    def _message(self, update: Tensor, client: int, i: int) -> Message:
        """A client's message. Its loss and its number of records differ between the worlds, as its update does."""
        pulled = bool(update.sum() > 0)
        work = Work(
            start=torch.zeros_like(update),
            update=update,
            loss=2.0 if pulled else 1.0,
            records=200 if pulled else 100,
            weight=1.0,
            lr=1.0,
            loss_at=lambda vector: float((vector - update).square().sum().clamp(max=1.0)),
        )
        stream = self._randomness.stream(f"audit client {client}", i)
        fields, arrays = self._exchange.answer(work, self._instructions, 0, stream)
        return Message(dict(arrays), dict(fields))


def _numbers(message: Message) -> NDArray[np.float64]:
    return np.array([float(value) for value in message.fields.values()], dtype=np.float64)
