"""The audit of a whole federated run, repeated once with canaries. A separate fair coin includes each of them.

What a canary is, and how it is scored, depends on what the run protects.

- Unit `client`, white box: a client whose update is one coordinate, as large as clipping allows. Canaries are added to
  the run's clients, and more are asked in each round, so that no client is asked more often than in the run. With
  `central` noise it is hidden who is asked: an excluded canary stays away. Its score is the likelihood ratio of its
  coordinate in the released models, without the other clients' contribution, which the adversary knows. With other
  noise the hidden fact is what a client holds: the update of an excluded canary is reversed. Its score adds up the
  coordinate in the client's messages (`local`) or in the sums (`distributed`).
- Unit `client`, black box: a client with mislabelled records. The score is how much their loss falls by the end.
- Unit `record`: records of the client with the fewest, for which ε is stated. They are gradient canaries in its private
  steps (white box) or mislabelled records (black box).

The resulting model was trained with canaries: throw it away.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.audit.canaries import likelihood_scores
from assay.audit.sites import Held, OneSilo, SiloWithGradients, SiteWithUpdates
from assay.audit.trained import TrainingAudit, bound_all, fair_coins
from assay.audit.training import losses_of, mislabelled
from assay.audit.worlds import seed_of_run, two_worlds
from assay.data.records import Records
from assay.federated.client import Site
from assay.federated.local import Training
from assay.federated.plan import FederatedPlan
from assay.federated.server import federate
from assay.federated.transport.serial import Serial
from assay.runs.callbacks import OnStep
from assay.runs.result import cross_entropy

_NO_LOSS = -100  # the label that torch's cross-entropy ignores: loss and gradient are 0
_NAMES = {"model": "", "data": "", "unit": "", "records": 0, "notes": "", "partition": "", "partition_seed": 0}


def white_box(
    model: nn.Module,
    clients: Sequence[Held],
    plan: FederatedPlan,
    *,
    canaries: int = 1000,
    training: Training | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> TrainingAudit:
    """Repeat the run once with canaries that are updates or gradients of one coordinate each.

    Args:
        model: The model with its initial weights; it is trained in place.
        clients: What each client holds.
        plan: The run's plan.
        canaries: How many; each is included by a fair coin.
        training: The run's settings.
        confidence: The probability that all bounds hold together.
        seed: Chooses coordinates and coins, not the noise.

    Returns:
        The bounds.

    Raises:
        ConfigError: The plan or the number of canaries does not allow this audit.
    """
    training = training or Training()
    coins = fair_coins(canaries, seed)
    if plan.unit == "record":
        silo = SiloWithGradients(plan, training, model, clients, coins, seed)
        _play(model, silo, plan, training)
        return bound_all(likelihood_scores(silo.seen, silo.size, silo.sampler), coins, plan, confidence)
    more = with_canaries(plan, canaries)
    site = SiteWithUpdates(more, training, model, clients, coins, seed)
    _play(model, site, more, training, absent=site.absent, after_round=site.look)
    return bound_all(site.scores(), coins, plan, confidence)


def black_box(
    model: nn.Module,
    clients: Sequence[Held],
    plan: FederatedPlan,
    canaries: Sequence[Held],
    *,
    training: Training | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> TrainingAudit:
    """Repeat the run once with these canaries; the score is how much their loss fell.

    Args:
        model: The model with its initial weights; it is trained in place.
        clients: What each client holds.
        plan: The run's plan.
        canaries: Clients, or records of one client where records are protected; see `mislabelled_clients`.
        training: The run's settings.
        confidence: The probability that all bounds hold together.
        seed: Chooses the coins, not the noise.

    Returns:
        The bounds.
    """
    training = training or Training()
    coins = fair_coins(len(canaries), seed)
    return bound_all(_fall_of_loss(model, clients, plan, canaries, coins, training), coins, plan, confidence)


def played_in_two_worlds(
    model: nn.Module,
    clients: Sequence[Held],
    plan: FederatedPlan,
    canary: Held,
    *,
    runs: int,
    training: Training | None = None,
    confidence: float = 0.95,
) -> TrainingAudit:
    """Repeat the run with one canary and without it; the score is how low the canary's loss ends.

    Args:
        model: The model with its initial weights, which it has again at the end.
        clients: What each client holds.
        plan: The run's plan.
        canary: The client, or a record of one client where records are protected.
        runs: How many in each world.
        training: The run's settings. From a seed, each run gets a different one.
        confidence: The probability that all bounds hold together.

    Returns:
        The bounds.

    Raises:
        ConfigError: There are too few runs.
    """
    training = training or Training()
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def score(included: bool, i: int) -> float:
        settings = replace(training, seed=seed_of_run(training.seed, included, i))
        model.load_state_dict(start)
        return float(_fall_of_loss(model, clients, plan, [canary], torch.tensor([included]), settings)[0])

    try:
        return two_worlds(score, runs=runs, delta=plan.delta, confidence=confidence)
    finally:
        model.load_state_dict(start)


def mislabelled_clients(data: TensorDataset, count: int, classes: int, each: int, seed: int = 0) -> list[Held]:
    """`count` clients with `each` mislabelled records; use held-out `data`."""
    x, y = mislabelled(data, count * each, classes, seed).tensors
    return list(zip(x.split(each), y.split(each), strict=True))


def with_canaries(plan: FederatedPlan, canaries: int) -> FederatedPlan:
    """The plan with this many more clients, none asked more often than in the plan: ε is no larger."""
    clients = plan.clients + canaries

    def scaled(count: int) -> int:
        return max(1, count * clients // plan.clients)

    return replace(
        plan,
        clients=clients,
        per_round=scaled(plan.per_round),
        minimum=None if plan.minimum is None else scaled(plan.minimum),
        epsilon_limit=None,
    )


class _Attending(Serial):
    """All clients in this process, without those who stay away."""

    def __init__(self, site: Site, absent: frozenset[int]) -> None:
        super().__init__(site)
        self.absent = absent

    def exchange(self, tasks: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """Ask only those who are present."""
        return super().exchange({client: task for client, task in tasks.items() if client not in self.absent})


def _play(
    model: nn.Module,
    site: Site,
    plan: FederatedPlan,
    training: Training,
    *,
    absent: frozenset[int] = frozenset(),
    after_round: Callable[[nn.Module], None] = lambda _: None,
) -> None:
    """Run the server's loop. `site` has a separate model: clients and server share no memory."""
    federate(
        model,
        _Attending(site, absent),
        plan=replace(plan, epsilon_limit=None),
        training=training,
        names=_NAMES,
        callbacks=[OnStep(lambda _: after_round(model))],
    )


def _fall_of_loss(
    model: nn.Module,
    clients: Sequence[Held],
    plan: FederatedPlan,
    canaries: Sequence[Held],
    coins: Tensor,
    training: Training,
) -> NDArray[np.float64]:
    """How much the mean loss of each canary falls in a run with those that the coins include."""
    before = _mean_losses(model, canaries)
    if plan.unit == "record":
        # An excluded canary keeps its place, and its loss is 0. The denominator is constant: one that followed the
        # number of records would tell the worlds apart by itself.
        placed = [
            (x, y if coin else torch.full_like(y, _NO_LOSS)) for (x, y), coin in zip(canaries, coins, strict=True)
        ]

        def join(records: TensorDataset) -> Records:
            return Records(TensorDataset(*map(torch.cat, zip(records.tensors, *placed, strict=True))))

        _play(model, OneSilo(plan, training, model, clients, join), plan, training)
        return before - _mean_losses(model, canaries)
    more = with_canaries(plan, len(canaries))
    absent = frozenset((torch.nonzero(~coins).flatten() + len(clients)).tolist())
    held = [(x, y) if coin else (x[:0], y[:0]) for (x, y), coin in zip(canaries, coins, strict=True)]
    site = Site(more, training, copy.deepcopy(model), [*clients, *held])
    _play(model, site, more, training, absent=absent if plan.hidden else frozenset())
    return before - _mean_losses(model, canaries)


def _mean_losses(model: nn.Module, canaries: Sequence[Held]) -> NDArray[np.float64]:
    sizes = [len(x) for x, _ in canaries]
    joined = TensorDataset(torch.cat([x for x, _ in canaries]), torch.cat([y for _, y in canaries]))
    losses = losses_of(model, joined, cross_entropy, torch.device("cpu"))
    return np.array([each.mean() for each in np.split(losses, np.cumsum(sizes)[:-1])])
