"""Record and replay: one step on two neighbouring data sets with everything random held fixed.

The real step runs (sampler, engine, clipping, noise, post-processing) on a batch without and with one record. The noise
is the same in both, so the record causes every difference. The sum before the noise must move by at most the bound
declared with it, the released gradient by as much over the public denominator. The number of releases, their events and
the denominator must not change. There are no statistics: a failure is a fact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.accounting.ledger import Ledger
from assay.audit.observe import Observed, observed
from assay.data.samplers.poisson import Poisson
from assay.distributed.world import ALONE
from assay.errors import ConfigError
from assay.methods.plan import Plan
from assay.randomness.streams import Seeded, Stream
from assay.training.selecting import SelectiveStep
from assay.training.step import PrivateStep

Loss = Callable[[Tensor, Tensor], Tensor]
MakeStep = Callable[[nn.Module, Plan, "Frozen"], PrivateStep]
_ROUNDING = 1e-4  # relative to the size of the sums: two sums in float32 are subtracted


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What one record did.

    Attributes:
        record: Its name.
        ratio: The largest measured change over the declared bound.
        faults: What is wrong.
    """

    record: str
    ratio: float
    faults: tuple[str, ...]


class Frozen:
    """Randomness in which the batch is the one asked for and everything else repeats."""

    fingerprint = "held fixed"

    def __init__(self, seed: int, batch: Sequence[int]) -> None:
        self._rest, self._batch = Seeded(seed), frozenset(batch)
        self.draws: list[tuple[str, int, int]] = []

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step; coins for the batch come out as asked."""
        return _FrozenStream(self, self._rest.stream(purpose, step), purpose, step)

    def describe(self) -> str:
        """For the statement."""
        return "held fixed for an audit: not private"


@dataclass(frozen=True)
class _FrozenStream:
    source: Frozen
    rest: Stream
    purpose: str
    step: int

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        self.source.draws.append((self.purpose, self.step, math.prod(shape)))
        return self.rest.normal(shape, dtype=dtype, device=device)

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        self.source.draws.append((self.purpose, self.step, math.prod(shape)))
        return self.rest.laplace(shape, dtype=dtype, device=device)

    def uniform(self, n: int) -> Tensor:
        if self.purpose != "sample":
            return self.rest.uniform(n)
        coins = torch.ones(n, dtype=torch.float64)
        coins[sorted(self.source._batch)] = 0.0
        return coins

    def integers(self, high: int, n: int) -> Tensor:
        # one by one: an additional record must not change what the others drew
        return torch.cat([self.rest.integers(high, 1) for _ in range(n)]) if n else torch.zeros(0, dtype=torch.int64)


def replay(
    model: nn.Module,
    plan: Plan,
    data: TensorDataset,
    record: tuple[Tensor, Tensor],
    *,
    loss: Loss,
    name: str = "a record",
    seed: int = 0,
    make_step: MakeStep | None = None,
) -> Replay:
    """Take one step on the records of `data`, without and with `record`, and compare. All records are in the batch.

    Args:
        model: The model; its parameters do not change.
        plan: How the step is taken.
        data: The other records.
        record: The record, (x, y).
        loss: `loss(output, target)` gives a value for each record.
        name: What the record is called in the result.
        seed: Fixes the noise.
        make_step: Builds the step under audit; `PrivateStep` by default.

    Returns:
        What the record did.

    Raises:
        ConfigError: The plan has no noise, or its neighbours replace a record.
    """
    if plan.adjacency.value != "add-or-remove-one":
        raise ConfigError("adjacency", plan.adjacency.value, "add-or-remove-one: a record is there or it is not")
    if plan.noise_multiplier <= 0:
        raise ConfigError("noise_multiplier", plan.noise_multiplier, "noise above 0")
    n = len(data)
    both = TensorDataset(*(torch.cat([t, r.unsqueeze(0)]) for t, r in zip(data.tensors, record, strict=True)))
    # The batch is all records or all but one; its expected size is a constant between the two.
    plan = replace(plan, records=n + 1, batch_size=max(1.0, n / 2), sampling=Poisson, epsilon_limit=None)
    before = _one_step(model, plan, both, Frozen(seed, range(n)), loss, make_step)
    after = _one_step(model, plan, both, Frozen(seed, range(n + 1)), loss, make_step)
    return _compare(name, plan, before, after)


@dataclass(frozen=True)
class _Taken:
    watched: Observed
    gradient: Tensor | None
    draws: list[tuple[str, int, int]]


def _plain_step(model: nn.Module, plan: Plan, randomness: Frozen) -> PrivateStep:
    """The step of the plan; the method's stage, if any, counts as paid. A test after it is another release."""
    ledger = Ledger(None, delta=plan.delta, adjacency=plan.adjacency, ceiling=None)
    for first in plan.first_events:
        ledger.pay(first)
    kind = PrivateStep if plan.selection is None else SelectiveStep
    return kind(model, plan, ledger=ledger, randomness=randomness, world=ALONE)


def _one_step(
    model: nn.Module, plan: Plan, data: TensorDataset, randomness: Frozen, loss: Loss, make_step: MakeStep | None
) -> _Taken:
    step = (make_step or _plain_step)(model, plan, randomness)
    step.chain = watched = observed(step.chain)
    try:
        for x, y in step.batches(data, 1):
            step.backward(loss(model(x), y))
        parameters = list(step.engine.parameters.values())
        grads = [p.grad.detach().reshape(-1).double() for p in parameters if p.grad is not None]
        whole = torch.cat(grads) if len(grads) == len(parameters) else None
    finally:
        step.close()
        for parameter in model.parameters():
            parameter.grad = None
    return _Taken(watched, whole, randomness.draws)


def _compare(name: str, plan: Plan, before: _Taken, after: _Taken) -> Replay:
    faults, ratio = [], 0.0
    a, b = before.watched, after.watched
    if len(a.releases) != len(b.releases) or before.draws != after.draws:
        faults.append("control flow: the record changes how much is released or drawn")
    elif any(x.event != y.event or x.l2 != y.l2 for x, y in zip(a.releases, b.releases, strict=True)):
        faults.append("control flow: the record changes what is charged")
    if a.denominators != b.denominators:
        faults.append("denominator: the record changes it")
    for x, y in zip(a.releases, b.releases, strict=False):
        moved = _distance(x.total, y.total)
        ratio = max(ratio, moved / x.l2)
        if not moved <= x.l2 + _ROUNDING * (x.l2 + _size(x.total)):
            faults.append(f"sensitivity: the sum moved by {moved:.4g}, declared {x.l2:.4g}")
    if a.releases and not (a.inner.decode or a.inner.after or a.inner.rules):
        faults += _outputs(plan, before, after)
    return Replay(record=name, ratio=ratio, faults=tuple(dict.fromkeys(faults)))


def _outputs(plan: Plan, before: _Taken, after: _Taken) -> list[str]:
    """Compare released gradients, where nothing follows the noise but a division by a constant."""
    if before.gradient is None or after.gradient is None:
        return [] if before.gradient is after.gradient else ["output: released for one data set only"]
    size, l2 = plan.sampler.expected_size, before.watched.releases[0].l2
    moved = float((after.gradient - before.gradient).norm()) * size
    if moved <= l2 + _ROUNDING * (l2 + size * float(before.gradient.norm())):
        return []
    return [f"output: the released gradient moved by {moved:.4g} over the denominator, declared {l2:.4g}"]


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((a[n].double() - b[n].double()).square().sum()) for n in a))


def _size(a: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(v.double().square().sum()) for v in a.values()))
