"""Bugs that only a whole run shows."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import Plan, PrivateStep
from assay.audit import from_scores
from assay.audit.canaries import CanaryChain, PlaceholderRecords, insert
from assay.randomness.streams import Seeded
from assay.runs.result import cross_entropy

EPOCHS, BATCHES, CANARIES = 40, 50, 800


class ShuffledOnce:
    """The order of the records is drawn once; every epoch goes through the same batches."""

    fingerprint = "shuffled once"

    def __init__(self, seed: int) -> None:
        self._rest = Seeded(seed)

    def describe(self) -> str:
        return "for a test"

    def stream(self, purpose: str, step: int):
        rest = self._rest.stream(purpose, step)
        if purpose != "sample":
            return rest
        order = self._rest.stream("order", 0)
        return _Coins(order, step % BATCHES)


class _Coins:
    def __init__(self, order, batch: int) -> None:
        self._order, self._batch = order, batch

    def uniform(self, n: int) -> torch.Tensor:
        return (self._order.integers(BATCHES, n) != self._batch).double()


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(records=200, batch_size=200 / BATCHES, steps=EPOCHS * BATCHES, noise_multiplier=1.25, delta=1e-5)


def trained(plan: Plan, randomness) -> tuple[CanaryChain, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(100, 10)
    x = torch.randn(200, 100)
    coins = torch.rand(CANARIES, generator=torch.Generator().manual_seed(4)) < 0.5
    included = coins.nonzero().flatten()
    records = PlaceholderRecords(TensorDataset(x, torch.arange(200) % 10), len(included))
    more = Plan(
        records=len(records),
        batch_size=len(records) / BATCHES,
        steps=plan.steps,
        noise_multiplier=plan.noise_multiplier,
        delta=plan.delta,
    )
    step = PrivateStep(model, more, randomness=randomness)
    chain = insert(step, records, included, CANARIES, seed=5)
    for inputs, targets in step.batches(records):
        step.backward(cross_entropy(model(inputs), targets))
    return chain, coins


def periodic_scores(chain: CanaryChain, period: int) -> np.ndarray:
    """The largest sum over steps `period` apart, which shows records that return in the same batch of every epoch."""
    seen = torch.stack(chain.seen).double()
    return seen[: len(seen) // period * period].unflatten(0, (-1, period)).sum(0).amax(0).numpy()


@pytest.mark.parametrize("bug", [True, False], ids=["shuffled once, charged as Poisson", "Poisson"])
def test_batches_in_a_fixed_order_charged_as_poisson(plan, bug):
    """Reshuffling every epoch is not told from Poisson sampling by its canaries; one order for all epochs is.

    No assumption: the bound of Steinke et al., the number of guesses fixed.
    """
    chain, coins = trained(plan, ShuffledOnce(1) if bug else Seeded(1))
    scores = periodic_scores(chain, BATCHES)
    member = coins.numpy()
    assert np.isfinite(scores).all()
    found = from_scores(scores[member], scores[~member], delta=plan.delta, guesses=500)
    if bug:
        assert found.epsilon > plan.epsilon()
    else:
        assert found.epsilon <= plan.epsilon()
