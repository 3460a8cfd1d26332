"""The server's loop: `federate` and `resume`. It reaches the clients through a `Carrier` only.

A round is charged, and the ledger is on disk, before anybody is asked. The server believes no client. An answer counts
if it comes from a client that was asked, is its first, is about this round and has exactly the right arrays of finite
numbers. Where the server adds the noise, it enforces bounds again. Any other answer is as good as none.

A checkpoint is written after every round. A killed run resumes with the round that it was in. With a fixed seed it ends
with the same bits; otherwise it draws fresh randomness, and the lost round stays charged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from assay._util import seals
from assay.accounting import events
from assay.accounting.ledger import Ledger
from assay.data.records import Records
from assay.errors import AssayError, check_fields
from assay.federated.layout import Layout
from assay.federated.local import Training
from assay.federated.plan import FederatedPlan
from assay.federated.record import facts
from assay.federated.transport.carrier import Carrier
from assay.federated.wire import Message, Schema, WireError, decode, encode
from assay.runs import checkpoint
from assay.runs.budgeted import FIELD, Lease
from assay.runs.callbacks import Callback
from assay.runs.course import Course, Saved
from assay.runs.directory import RunDirectory
from assay.runs.record import Facts
from assay.runs.result import Result, cross_entropy, save_model
from assay.runs.run import Run
from assay.runs.schema import FEDERATED


def run_spec(
    plan: FederatedPlan, training: Training, names: Mapping[str, Any], engine: str, reach: Mapping[str, Any]
) -> dict[str, Any]:
    """What run.json says about a federated run. `reach` is how the engine reaches its clients (`transport.Reach`)."""
    return {
        "kind": FEDERATED,
        "plan": plan.to_json(),
        "training": asdict(training),
        "names": dict(names),
        "engine": engine,
        "reach": dict(reach),
    }


def site_settings(spec: Mapping[str, Any], directory: RunDirectory | None) -> dict[str, Any]:
    """What `open_site` takes. The clients' ledgers are beside the run's; a node of a deployment ignores that folder."""
    ledgers = None if directory is None else str(directory.path.resolve() / "clients")
    return {key: spec[key] for key in ("plan", "training", "names")} | {"ledgers": ledgers}


def federate(
    model: nn.Module,
    carrier: Carrier,
    *,
    plan: FederatedPlan,
    training: Training,
    names: Mapping[str, Any],
    test: Dataset[Any] | None = None,
    directory: RunDirectory | None = None,
    callbacks: Iterable[Callback] = (),
    lease: Lease | None = None,
) -> Result:
    """Run the plan, or continue it if `directory` has a checkpoint.

    Args:
        model: Holds the initial weights and gets the result.
        carrier: Reaches the clients.
        plan: Everything that decides ε.
        training: How clients and server train, apart from what decides ε.
        names: Describes model and data in the record.
        test: Records to measure accuracy on. They are not protected.
        directory: Where the run is written, if anywhere.
        callbacks: As for `assay.fit`; `on_step` is called after every round.
        lease: Its part in a budget, if it has one.

    Returns:
        The model with its record and its privacy statement.

    Raises:
        InterruptedRunError: The process was asked to stop; a checkpoint is written.
    """

    def begin(ledger: Ledger, *, directory: RunDirectory | None, saved: Saved | None) -> Rounds:
        return Rounds(model, carrier, plan, training, ledger, directory, saved)

    return Run(
        begin,
        plan=plan,
        training=asdict(training),
        names=names,
        test=None if test is None else Records(test),
        directory=directory,
        callbacks=callbacks,
        lease=lease,
    ).go()


def resume(
    model: nn.Module,
    carrier: Carrier,
    directory: RunDirectory,
    *,
    test: Dataset[Any] | None = None,
    callbacks: Iterable[Callback] = (),
) -> Result:
    """Continue the run in a directory, under the plan it was started with.

    Args:
        model: Gets the weights of the checkpoint, and the result.
        carrier: Reaches the clients.
        directory: The run's.
        test: As for `federate`.
        callbacks: As for `federate`.

    Returns:
        As `federate`.

    Raises:
        AssayError: The run is finished.
    """
    if directory.finished:
        raise AssayError(f"{directory.path} is finished: there is nothing to resume")
    spec = directory.read_spec()
    check_fields("training", spec["training"], [f.name for f in fields(Training)])
    plan, training = FederatedPlan.from_json(spec["plan"]), Training(**spec["training"])
    return federate(
        model,
        carrier,
        plan=plan,
        training=training,
        names=spec["names"],
        test=test,
        directory=directory,
        callbacks=callbacks,
        lease=Lease.from_json(spec.get(FIELD)),
    )


class Rounds(Course):
    """The rounds of one run: a round is charged before anybody is asked."""

    word = "round"
    saves_always = True

    def __init__(
        self,
        model: nn.Module,
        carrier: Carrier,
        plan: FederatedPlan,
        training: Training,
        ledger: Ledger,
        directory: RunDirectory | None,
        saved: Saved | None,
    ) -> None:
        """Begin, or continue from `saved`; `directory` is where intermediate models are kept."""
        self.model, self.carrier, self.plan, self.training = model, carrier, plan, training
        self.ledger, self.directory, self.loss = ledger, directory, cross_entropy
        self.layout = Layout.of(model, parameters_only=plan.unit == "record")
        self.exchange = plan.method.exchange(plan, self.layout)
        self.vector = self.layout.vector(model)
        self.randomness = training.randomness()
        self.done = 0
        self.asked_before: NDArray[np.int64] = np.zeros(plan.clients, dtype=np.int64)
        self.bytes = {"up": 0, "down": 0}
        self.refused_rounds = 0
        self.bad_answers = 0
        with checkpoint.fitting(None if directory is None else directory.checkpoint):
            charged = 0 if saved is None else self._restore(*saved)
        self.schedule = [] if plan.hidden else plan.asked()
        self._begin(lost=ledger.total_steps - charged)

    def _begin(self, lost: int) -> None:
        """Open the ledger's segment. The next round was charged `lost` times after the checkpoint was written."""
        plan, draws = self.plan, self.randomness.fingerprint
        seeded = draws is not None
        self.origin = 0 if seeded else self.done
        cost: Callable[[int], DpEvent] = plan.event
        if not plan.hidden and not seeded:
            if self.done < plan.rounds:
                group = self.schedule[self.done]
                self.asked_before[group] = np.minimum(self.asked_before[group] + lost, plan.turns)
            cost = self._remaining_cost()
        start = seals.of_model(self.model) if seeded and self.done == 0 else None
        self.segment = self.ledger.begin(cost, plan.rounds - self.origin, draws=draws, start=start)
        self.randomness = self.segment.own(self.randomness)
        self._limit = self.origin + self.segment.allowed

    def _remaining_cost(self) -> Callable[[int], DpEvent]:
        """What the next n rounds add to the charge, by how often the most asked client will have been asked then."""
        counts = self.asked_before.copy()
        most = [int(counts.max())]
        for group in self.schedule[self.done :]:
            counts[[client for client in group if counts[client] < self.plan.turns]] += 1
            most.append(int(counts.max()))
        one = sum(count for _, count in events.flatten(self.plan.turn_event))
        spent = sum(count for _, count in events.flatten(self.ledger.event())) // max(1, one)

        def cost(rounds: int) -> DpEvent:
            turns = most[rounds] - spent
            return self.plan.after_turns(turns) if turns > 0 else ComposedDpEvent([])

        return cost

    @property
    def taken(self) -> int:
        """The rounds behind the model."""
        return self.done

    @property
    def limit(self) -> int:
        """How many rounds the plan and the budget allow."""
        return self._limit

    @property
    def epoch(self) -> float:
        """Passes over the clients so far: the expected number where clients are drawn."""
        return self.done * self.plan.per_round / self.plan.clients

    @property
    def ends_epoch(self) -> bool:
        """Whether the history gets an entry: about twenty in all."""
        return self.done % max(1, self.plan.rounds // 20) == 0

    def advance(self) -> Iterator[None]:
        """Play the rounds that are left, and pause after each."""
        while self.done < self.limit:
            self._round()
            self._keep()
            yield

    def charge_rest(self) -> None:
        """Charge all rounds up to `limit`."""
        self.segment.charge(self.limit - self.origin)

    def epsilon(self) -> float:
        """The verified ε of all that is charged."""
        return self.ledger.epsilon()

    def epsilon_taken(self) -> float:
        """The verified ε of the rounds played."""
        return self.segment.epsilon_after(self.done - self.origin)

    def _chosen(self) -> list[int]:
        if self.plan.hidden:
            return [int(client) for client in self.plan.sampler.draw(self.done, self.randomness)]
        return [client for client in self.schedule[self.done] if self.asked_before[client] < self.plan.turns]

    def _turn(self, client: int) -> int:
        """How often this client was asked before; 0 where that is hidden."""
        return 0 if self.plan.hidden else int(self.asked_before[client])

    def _round(self) -> None:
        turn, chosen = self.done, self._chosen()
        self.segment.charge(turn - self.origin + 1)
        instructions = self.exchange.instructions(turn)
        arrays = {"model": self.vector.numpy(), **instructions}
        tasks = {client: encode("task", {"round": turn, "turn": self._turn(client)}, arrays) for client in chosen}
        expected = self.exchange.expects(instructions)
        schema = Schema(expected.arrays, {"round": int, **expected.fields})
        answers, up = self._collect(tasks, schema, turn)
        self.asked_before[chosen] += 1
        update = self.exchange.combine(
            [answers[client] for client in sorted(answers)], instructions, turn, self.randomness.stream("noise", turn)
        )
        if update is None:
            self.refused_rounds += 1
        else:
            self.vector = (self.vector.double() + self.training.server_lr * update).float()
            self.layout.load(self.model, self.vector)
        self._count(tasks, arrays, schema, up)
        self.done += 1

    def _collect(self, tasks: Mapping[int, bytes], schema: Schema, turn: int) -> tuple[dict[int, Message], int]:
        """The first valid answer of each client that was asked, and how many bytes came in."""
        answers: dict[int, Message] = {}
        up = 0
        for client, data in self.carrier.exchange(tasks):
            up += len(data)
            if client not in tasks or client in answers:
                self.bad_answers += 1
                continue
            try:
                answer = decode(data, "answer", schema)
            except WireError:
                self.bad_answers += 1
                continue
            if answer.fields["round"] == turn:
                answers[client] = answer
            else:
                self.bad_answers += 1
        return answers, up

    def _count(self, tasks: Mapping[int, bytes], arrays: Mapping[str, Any], schema: Schema, up: int) -> None:
        """Add this round's bytes. Where it is hidden who was drawn, so is their number: we count the expected one."""
        self.round_bytes = {"up": up, "down": sum(map(len, tasks.values()))}
        if self.plan.hidden:
            fields = {name: kind() for name, kind in schema.fields.items()}
            blank = {name: np.zeros(length, dtype) for name, (dtype, length) in schema.arrays.items()}
            self.round_bytes = {
                "up": self.plan.per_round * len(encode("answer", fields, blank)),
                "down": self.plan.per_round * len(encode("task", {"round": 0, "turn": 0}, arrays)),
            }
        for way, count in self.round_bytes.items():
            self.bytes[way] += count

    def note(self) -> dict[str, Any]:
        """The round, and its bytes."""
        return {
            "round": self.done,
            "bytes_up": self.round_bytes["up"],
            "bytes_down": self.round_bytes["down"],
        }

    @contextmanager
    def released_model(self) -> Iterator[nn.Module]:
        """The model after this round."""
        yield self.model.eval()

    def _keep(self) -> None:
        """Write the model after this round, if it is among those that stay: evenly spaced, and the last one."""
        rounds, wanted = self.plan.rounds, self.training.keep_models
        if self.directory is not None and self.done * wanted // rounds > (self.done - 1) * wanted // rounds:
            save_model(self.directory.kept_models / f"{self.done:06d}.safetensors", self.model.state_dict())

    def state(self) -> Saved:
        """What a checkpoint holds of the rounds."""
        tensors = {f"model.{n}": t for n, t in self.model.state_dict().items()}
        tensors |= {f"method.{n}": t for n, t in self.exchange.state().items()}
        state = {
            "round": self.done,
            "charged": self.ledger.total_steps,
            "asked": self.asked_before.tolist() if not self.plan.hidden else [],
            "bytes": self.bytes,
            "refused_rounds": self.refused_rounds,
        }
        return tensors, state

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> int:
        """Load a checkpoint; return how many rounds were charged when it was written."""
        self.model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
        self.exchange.restore({n.removeprefix("method."): t for n, t in tensors.items() if n.startswith("method.")})
        self.vector = self.layout.vector(self.model)
        self.done, self.bytes, self.refused_rounds = state["round"], state["bytes"], state["refused_rounds"]
        if not self.plan.hidden:
            self.asked_before = np.array(state["asked"], dtype=np.int64)
        return int(state["charged"])

    def facts(self, names: Mapping[str, Any], *, stopped: bool) -> Facts:
        """What the record says about a federated run."""
        return facts(
            self.plan,
            names,
            self.randomness,
            refused_rounds=self.refused_rounds,
            turns=None if self.plan.hidden else self.asked_before.tolist(),
            communication=self.bytes,
            stopped=stopped,
        )

    def finish(self) -> tuple[nn.Module, Mapping[str, Tensor] | None, int]:
        """The model, and how many answers were not usable."""
        return self.model, None, self.bad_answers
