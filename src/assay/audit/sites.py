"""The clients of a federated run with canaries among them, or among their records (`assay.audit.clients`)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.audit.canaries import PlaceholderRecords, insert, likelihood_scores
from assay.audit.training import with_more
from assay.data.records import Records
from assay.errors import ConfigError
from assay.federated.client import Site
from assay.federated.exchange import Arrays, Exchange, Fields, Work
from assay.federated.local import Training
from assay.federated.plan import FederatedPlan
from assay.federated.wire import Message
from assay.methods.plan import Plan
from assay.training.step import PrivateStep

_LARGE = 1000.0  # a canary's update over the bound: every method clips it
Held = tuple[Tensor, Tensor]
"""What one client holds: inputs and labels."""


class SiteWithUpdates(Site):
    """The run's clients and after them the canaries, whose updates are one coordinate each."""

    def __init__(
        self,
        plan: FederatedPlan,
        training: Training,
        model: nn.Module,
        clients: Sequence[Held],
        coins: Tensor,
        seed: int,
    ) -> None:
        x, y = clients[0]
        super().__init__(plan, training, copy.deepcopy(model), [*clients, *[(x[:0], y[:0])] * len(coins)])
        if len(coins) > self.layout.size:
            raise ConfigError("canaries", len(coins), f"at most one per coordinate: an update has {self.layout.size}")
        if plan.noise_multiplier <= 0:
            raise ConfigError("noise_multiplier", plan.noise_multiplier, "noise above 0")
        self._own, self._coins = len(clients), coins
        self._where = torch.randperm(self.layout.size, generator=torch.Generator().manual_seed(seed))[: len(coins)]
        self.absent = frozenset((torch.nonzero(~coins).flatten() + self._own).tolist()) if plan.hidden else frozenset()
        self._bare = self._without_noise()
        self._before = self.layout.vector(model).double()
        self.seen: list[Tensor] = []
        self._size: list[Tensor] = []
        self._heard = torch.zeros(len(coins), dtype=torch.float64)
        self._forget()

    def look(self, model: nn.Module) -> None:
        """After a round: what the released model shows of each canary's coordinate, in units of the noise."""
        now = self.layout.vector(model).double()
        moved, self._before = (now - self._before) / self.training.server_lr, now
        added = moved[self._where] * (self.plan.per_round if self.plan.hidden else len(self._asked))
        unit = self.plan.noise_multiplier * self.plan.clip
        seen = (added - self._others()[self._where]) / unit
        if self.plan.hidden:
            self.seen.append(seen)
            # the method did not send a coordinate that did not move at all
            self._size.append((moved[self._where] != 0).double() / self.plan.noise_multiplier)
        elif self.plan.noise == "distributed":
            asked = [client - self._own for client in self._asked if client >= self._own]
            self._heard[asked] += seen[asked]
        self._forget()

    def scores(self) -> NDArray[np.float64]:
        """Higher for canaries that look included."""
        if self.plan.hidden:
            return likelihood_scores(self.seen, self._size, self.plan.sampler)
        return np.asarray(self._heard.numpy())

    def _forget(self) -> None:
        self._asked: list[int] = []
        self._bare_answers: list[Message] = []
        self._instructions: Arrays = {}

    def _work(self, client: int, model: nn.Module, start: Tensor, number: int, turn: int) -> Work:
        self._asked.append(client)
        if client < self._own:
            return super()._work(client, model, start, number, turn)
        if not self.plan.hidden:
            self.pay(client, turn)
        canary = client - self._own
        update = torch.zeros_like(start)
        update[self._where[canary]] = _LARGE * self.plan.clip * (1 if self._coins[canary] else -1)
        return Work(
            start=start,
            update=update,
            loss=_LARGE,
            records=1,
            weight=1.0,
            lr=self.training.lr,
            loss_at=lambda vector: float((vector - start).norm().clamp(max=1.0)),  # its update never helps
        )

    def _reply(self, client: int, work: Work, instructions: Arrays, number: int) -> tuple[Fields, Arrays]:
        fields, arrays = super()._reply(client, work, instructions, number)
        if client >= self._own and self.plan.noise == "local":
            canary = client - self._own
            self._heard[canary] += self._read(Message(arrays, fields), instructions, number)[canary]
        elif client < self._own and self._bare is not None:
            stream = self.randomness.stream("canaries", 0)  # not used: there is no noise
            bare_fields, bare_arrays = self._bare.answer(work, instructions, number, stream)
            self._bare_answers.append(Message(bare_arrays, bare_fields))
            self._instructions = instructions
        return fields, arrays

    def _read(self, message: Message, instructions: Arrays, number: int) -> Tensor:
        """All canaries' coordinates in one message, as the server would read it if there were no other."""
        update = self.exchange.combine([message], instructions, number, self.randomness.stream("canaries", 0))
        assert update is not None
        return update[self._where]

    def _without_noise(self) -> Exchange | None:
        """The method with a server that adds no noise; None if its server never adds any."""
        if "central" not in self.plan.method.noises:
            return None
        quiet = replace(self.plan, noise="central", noise_multiplier=0.0, minimum=None)
        return self.plan.method.exchange(quiet, self.layout)

    def _others(self) -> Tensor:
        """The sum that the run's clients contributed in this round."""
        if self._bare is None or not self._bare_answers:
            return torch.zeros(self.layout.size, dtype=torch.float64)
        stream = self.randomness.stream("canaries", 0)
        average = self._bare.combine(self._bare_answers, self._instructions, 0, stream)
        assert average is not None
        return average * self.plan.per_round


class OneSilo(Site):
    """DP-SGD at the clients. `more` changes the records of the client with the fewest."""

    def __init__(
        self,
        plan: FederatedPlan,
        training: Training,
        model: nn.Module,
        clients: Sequence[Held],
        more: Callable[[TensorDataset], Records],
    ) -> None:
        super().__init__(plan, training, copy.deepcopy(model), list(clients))
        sizes = [len(x) or math.inf for x, _ in clients]
        self._place = sizes.index(min(sizes))
        self._more = more(TensorDataset(*clients[self._place]))
        self.sampler = plan.client_plan(int(min(sizes))).sampler

    def _private_step(self, client: int, model: nn.Module, taken: int, plan: Plan) -> tuple[PrivateStep, Records]:
        if client != self._place:
            return super()._private_step(client, model, taken, plan)
        # the same sampling rate as before: the same event, hence the same ε
        step, _ = super()._private_step(client, model, taken, with_more(plan, len(self._more)))
        return step, self._more


class SiloWithGradients(OneSilo):
    """Gradient canaries at one client; `seen` and `size` are as in `CanaryChain`, over all turns."""

    def __init__(
        self,
        plan: FederatedPlan,
        training: Training,
        model: nn.Module,
        clients: Sequence[Held],
        coins: Tensor,
        seed: int,
    ) -> None:
        self._included = torch.nonzero(coins).flatten()
        super().__init__(
            plan, training, model, clients, lambda own: PlaceholderRecords(own, int(self._included.numel()))
        )
        self._canaries, self._seed = len(coins), seed
        self.seen: list[Tensor] = []
        self.size: list[Tensor] = []

    def _private_step(self, client: int, model: nn.Module, taken: int, plan: Plan) -> tuple[PrivateStep, Records]:
        step, records = super()._private_step(client, model, taken, plan)
        if isinstance(records, PlaceholderRecords):
            chain = insert(step, records, self._included, self._canaries, self._seed)
            step.chain = replace(chain, seen=self.seen, size=self.size)
        return step, records
