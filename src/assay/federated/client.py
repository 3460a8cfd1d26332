"""A site: where clients live. One client's whole turn is `Site.answer`: bytes in, bytes out.

A client's promise to its user does not rest on the tasks that the server sends. The client clips and adds its noise
itself, unless the server is trusted with that. It keeps a separate ledger (one file per client in `ledgers`), writes it
before an answer leaves, and refuses to exceed its ceiling. It draws fresh noise each time, however often the server
asks about one round.

The promise rests on the plan and the folder with which the site is opened. A node of a deployment chooses both itself
(`transport/pinned.py`). Elsewhere one operator runs the server and the clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay import data, models
from assay._util.figures import at_most
from assay.accounting.ledger import Ledger
from assay.data.records import Records
from assay.data.split import CONTENT, SplitRule
from assay.distributed.world import ALONE
from assay.errors import BudgetSpentError, ConfigError
from assay.federated import partition
from assay.federated.exchange import Arrays, Fields, Work
from assay.federated.layout import Layout
from assay.federated.local import Training, mean_loss, train
from assay.federated.plan import FederatedPlan
from assay.federated.pristine import Pristine
from assay.federated.tasks import Tasks
from assay.federated.wire import Schema, WireError, decode, encode
from assay.methods.plan import Plan
from assay.models.circulant import replace_linear
from assay.randomness.streams import Seeded, Stream
from assay.runs.result import cross_entropy
from assay.training.step import PrivateStep

TASK_FIELDS = {"round": int, "turn": int}


def open_site(settings: Mapping[str, Any]) -> Site:
    """Open the site that a description asks for.

    Args:
        settings: `plan`, `training` and `names` as in run.json, and `ledgers`, a folder for the clients' ledgers
            (without one they stay in memory). All of it is believed.

    Returns:
        The site, with every client's records.
    """
    names = settings["names"]
    folder = names["data_dir"]
    rule = SplitRule.from_json(names.get("split"))
    whole = data.load(names["data"], None if folder is None else Path(folder), split=rule.by)
    bundle = whole.limited(None if rule.by == CONTENT else names["records"], rule)
    x, y = bundle.train_x, bundle.train_y
    parts = partition.parse(names["partition"]).divide(y.numpy(), settings["plan"]["clients"], names["partition_seed"])
    model = models.build(names["model"], input_shape=bundle.input_shape, classes=bundle.classes)
    if names["circulant"] is not None:
        replace_linear(model, names["circulant"])
    ledgers = settings.get("ledgers")
    return Site(
        FederatedPlan.from_json(settings["plan"]),
        Training(**settings["training"]),
        model,
        [(x[part], y[part]) for part in map(torch.from_numpy, parts)],
        ledgers=None if ledgers is None else Path(ledgers),
    )


class Site:
    """Clients with their records, and one model that they train in turn, each from where the task says.

    Where a record is the unit, no client may have fewer records than the plan says, except none at all: ε is that of
    the smallest client, whose batches are the largest share of its records.

    Guarantee: an answer depends on no other client's records. Nothing that a turn leaves in the model reaches the next
    (`Pristine`).

    With a seed a turn has its noise for good. So a turn that was taken is taken again for the same task only: two tasks
    with one noise would show the difference of two updates bare.

    Raises:
        ConfigError: A client has fewer records than the plan says.
    """

    def __init__(
        self,
        plan: FederatedPlan,
        training: Training,
        model: nn.Module,
        records: list[tuple[Tensor, Tensor]],
        *,
        ledgers: Path | None = None,
    ) -> None:
        if plan.unit == "record" and plan.silo is not None:
            _check_sizes([len(x) for x, _ in records], plan.silo.records)
        self.plan, self.training, self.records = plan, training, records
        self._pristine = Pristine(model)
        self.layout = Layout.of(model, parameters_only=plan.unit == "record")
        self.exchange = plan.method.exchange(plan, self.layout)
        self._folder = ledgers
        self._ledgers: dict[int, Ledger] = {}
        self._answered = 0
        self._tasks = Tasks(ledgers)
        self.randomness = training.randomness()
        self._schema = Schema({"model": ("float32", self.layout.size), **self.exchange.task_arrays}, TASK_FIELDS)

    def answer(self, client: int, task: bytes) -> bytes:
        """Take one client's turn. With a fixed seed the same task gives the same bytes.

        Args:
            client: The client's number.
            task: What the server sent.

        Returns:
            The answer, or a refusal from a client that has spent its budget.

        Raises:
            WireError: The bytes are not a task of this plan, or it has a seed and no such round or turn.
        """
        asked = decode(task, "task", self._schema)
        number, turn = asked.fields["round"], asked.fields["turn"]
        if (reason := self._check_seeded(client, number, turn, task)) is not None:
            return encode("refusal", {"round": number, "reason": reason}, {})
        start = torch.from_numpy(asked.arrays["model"].astype(np.float32))
        model = self._pristine.fresh()
        self.layout.load(model, start)
        try:
            work = self._work(client, model, start, number, turn)
        except BudgetSpentError as error:
            return encode("refusal", {"round": number, "reason": str(error)[:500]}, {})
        instructions = {name: asked.arrays[name] for name in self.exchange.task_arrays}
        fields, arrays = self._reply(client, work, instructions, number)
        return encode("answer", {"round": number, **fields}, arrays)

    def _check_seeded(self, client: int, number: int, turn: int, task: bytes) -> str | None:
        """Why this task is refused, if its noise was drawn for another one; None if it was not.

        With a seed, what clients draw follows from the round or, where they take private steps, from their turn. Where
        the server adds the noise, it is trusted with what it asks.

        Raises:
            WireError: The plan has no such round or turn: one before the first has noise of its own, and costs nothing.
        """
        if self.randomness.fingerprint is None or self.plan.hidden:
            return None
        for what, which, count in (("round", number, self.plan.rounds), ("turn", turn, self.plan.turns)):
            if not 0 <= which < count:
                raise WireError(f"{what} {which} of a plan of {count}, counted from 0")
        taken = self._tasks.differ(client, (("round", number), ("turn", turn)), task)
        return None if taken is None else f"client {client} has a seed, and has taken {taken} with another task"

    def _reply(self, client: int, work: Work, instructions: Arrays, number: int) -> tuple[Fields, Arrays]:
        """What the method sends of a client's work."""
        return self.exchange.answer(work, instructions, number, self._stream(f"noise of client {client}", number))

    def _stream(self, purpose: str, number: int) -> Stream:
        # The server chooses the round's number. Without a seed it must not choose the noise, so we count ourselves.
        self._answered += 1
        return self.randomness.stream(purpose, self._answered if self.randomness.fingerprint is None else number)

    def _work(self, client: int, model: nn.Module, start: Tensor, number: int, turn: int) -> Work:
        x, y = self.records[client]
        if self.plan.unit == "record":
            loss = self._train_privately(client, model, turn)
        else:
            if not self.plan.hidden:
                self.pay(client, turn)
            loss = train(model, x, y, self.training, self._stream(f"batches of client {client}", number))
        update = self.layout.vector(model) - start
        if not bool(torch.isfinite(update).all()):
            update = torch.zeros_like(update)

        def loss_at(vector: Tensor) -> float:
            self.layout.load(model, vector)
            return mean_loss(model, x, y)

        return Work(
            start=start,
            update=update,
            loss=loss,
            records=len(x),
            weight=1.0 if self.plan.unit == "record" else self.training.weight(len(x)),
            lr=self.training.lr,
            loss_at=loss_at,
        )

    def _ledger(self, client: int) -> Ledger:
        """Read the client's ledger from its file and lock it: another process may have answered for the client."""
        if self._folder is None and client in self._ledgers:
            return self._ledgers[client]
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        path = None if self._folder is None else self._folder / f"client-{client}.jsonl"
        plan = self.plan
        ledger = Ledger(path, delta=plan.delta, adjacency=plan.adjacency, ceiling=plan.epsilon_limit)
        ledger.lock()
        return self._ledgers.setdefault(client, ledger) if self._folder is None else ledger

    def pay(self, client: int, turn: int) -> None:
        """Charge one participation, durable before the answer is made."""
        ledger, draws = self._ledger(client), self.randomness.fingerprint
        try:
            if draws is None:
                ledger.begin(self.plan.after_turns, self.plan.turns - ledger.total_steps).charge(1)
            else:  # the same turn again gives the same answer again
                segment = ledger.begin(self.plan.after_turns, self.plan.turns, draws=draws)
                segment.charge(max(turn + 1, segment.charged))
        finally:
            ledger.close()

    def _train_privately(self, client: int, model: nn.Module, turn: int) -> float:
        """Take private steps on the client's records. A client without records does nothing."""
        x, _ = self.records[client]
        silo = self.plan.silo
        assert silo is not None
        if len(x) == 0:
            return 0.0
        step, records = self._private_step(client, model, turn * silo.steps, self.plan.client_plan(len(x)))
        try:
            if step.limit - step.taken < silo.steps:
                raise BudgetSpentError(f"client {client} has spent its budget: ε = {at_most(step.epsilon())}")
            parameters = [p for p in model.parameters() if p.requires_grad]
            for inputs, targets in step.batches(records, silo.steps):
                if step.backward(cross_entropy(model(inputs), targets)):
                    with torch.no_grad():
                        for parameter in parameters:
                            if parameter.grad is not None:
                                parameter.sub_(parameter.grad, alpha=self.training.lr)
        finally:
            step.close()
            step.ledger.close()
        return 0.0

    def _private_step(self, client: int, model: nn.Module, taken: int, plan: Plan) -> tuple[PrivateStep, Records]:
        """DP-SGD at a client after `taken` of its steps (unseeded: after those in its ledger), and its records."""
        ledger, seed = self._ledger(client), self.training.seed
        step = PrivateStep(
            model.train(),
            plan,
            ledger=ledger,
            randomness=self.training.randomness() if seed is None else Seeded(_derived(seed, client)),
            taken=ledger.total_steps if self.randomness.fingerprint is None else taken,
            world=ALONE,
        )
        return step, Records(TensorDataset(*self.records[client]))


def _check_sizes(held: list[int], fewest: int) -> None:
    for client, size in enumerate(held):
        if 0 < size < fewest:
            raise ConfigError(
                f"records of client {client}",
                size,
                f"at least the {fewest} of the plan (silo.records): with fewer, each is drawn more often, and ε would "
                "be larger than the run states",
            )


def _derived(seed: int, client: int) -> int:
    """A separate seed for each client."""
    material = seed.to_bytes(8, "little") + client.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(material, digest_size=8, person=b"assay client").digest(), "little")
