"""Bugs at the clients of a federated run: each answers what it should not, its twin does not."""

import contextlib

import pytest
import torch
from torch import nn

from assay.accounting.ledger import read_ledger
from assay.errors import AssayError, ConfigError
from assay.federated import client as clients
from assay.federated.local import Training
from assay.federated.plan import FederatedPlan, Silo
from assay.federated.pristine import Pristine
from assay.federated.transport.names import LEDGERS_VARIABLE, SETTINGS_VARIABLE
from assay.federated.transport.pinned import pin
from assay.federated.wire import Schema, WireError, decode, encode

from . import mutant_runs as mutants

PLAN = FederatedPlan(
    clients=2, per_round=2, rounds=2, size=15, noise="central", noise_multiplier=1.0, delta=1e-2, epsilon_limit=50.0
)


class Remembering(nn.Module):
    """Each forward pass depends on those before it."""

    def __init__(self, way):
        super().__init__()
        self.way, self.attribute = way, 0.0
        self.linear = nn.Linear(4, 3)
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("level", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.way == "counter":
            self.count += 1
        elif self.way == "buffer":
            self.level += x.mean().detach()
        else:
            self.attribute += float(x.mean())
        return self.linear(x) * (1 + self.count + self.level + self.attribute)


@pytest.mark.parametrize(("kind", "bug"), [(mutants.LeavesItsTurn, True), (Pristine, False)], ids=["bug", "twin"])
@pytest.mark.parametrize("way", ["counter", "buffer", "attribute"])
def test_what_a_client_leaves_in_the_model(monkeypatch, way, kind, bug):
    """The answer of client 1 must not depend on the records of client 0, which was asked before."""
    monkeypatch.setattr(clients, "Pristine", kind)
    generator = torch.Generator().manual_seed(0)
    records = [(torch.randn(10, 4, generator=generator), torch.arange(10) % 3) for _ in range(2)]

    def answer(before):
        torch.manual_seed(0)
        model = Remembering(way)
        site = clients.Site(PLAN, Training(seed=0), model, records)
        task = encode("task", {"round": 0, "turn": 0}, {"model": site.layout.vector(model).numpy()})
        for client in before:
            site.answer(client, task)
        return site.answer(1, task)

    assert (answer([0]) != answer([])) is bug


SENT = {
    "a plan without noise": {"plan": {"noise_multiplier": 0.0, "epsilon_limit": 1.0}},
    "a higher ceiling": {"plan": {"noise_multiplier": 50.0, "epsilon_limit": 100.0}},
    "another place for ledgers": {"ledgers": "elsewhere"},
}


@pytest.mark.parametrize(("opens", "bug"), [(mutants.opens_what_is_sent, True), (pin, False)], ids=["bug", "twin"])
@pytest.mark.parametrize("other", SENT)
def test_a_server_that_sends_something_else(tmp_path, monkeypatch, opens, bug, other):
    monkeypatch.setenv(LEDGERS_VARIABLE, str(tmp_path))
    monkeypatch.delenv(SETTINGS_VARIABLE, raising=False)
    first = {"plan": {"noise_multiplier": 50.0, "epsilon_limit": 1.0}, "ledgers": str(tmp_path)}
    assert opens(first) == first
    assert opens(first) == first, "and it goes on with the plan that it keeps to"
    try:
        kept = opens(first | SENT[other]) == first
    except AssayError as error:
        kept = "refused" in str(error)
    assert kept is not bug


@pytest.mark.parametrize("fewest", [50, 5], ids=["bug", "twin"])
def test_a_client_with_fewer_records_than_the_plan_says(fewest):
    """The bug: ε of a record among 50 is stated, and one client has 5, each of which is drawn ten times as often."""
    silo = Silo(records=fewest, batch_size=5, steps=10)
    plan = FederatedPlan(
        clients=2, per_round=2, rounds=2, size=15, unit="record", noise_multiplier=1.0, delta=1e-2, silo=silo
    )
    records = [(torch.zeros(size, 4), torch.zeros(size, dtype=torch.int64)) for size in (50, 5)]
    if fewest == 50:
        assert plan.epsilon() < 0.5 * plan.client_plan(5).epsilon()
        with pytest.raises(ConfigError, match="records of client 1 = 5"):
            clients.Site(plan, Training(), nn.Linear(4, 3), records)
    else:
        assert plan.epsilon() >= max(plan.client_plan(len(x)).epsilon() for x, _ in records)
        clients.Site(plan, Training(), nn.Linear(4, 3), records)


class AnswersEveryTask(clients.Site):
    """With a seed, answers another task about a turn that was taken, and turns that its plan does not have."""

    def _check_seeded(self, client, number, turn, task):
        return None


SEEDED = {
    "client": FederatedPlan(
        clients=2, per_round=2, rounds=2, size=15, noise="local", noise_multiplier=200.0, delta=1e-2, epsilon_limit=50.0
    ),
    "record": FederatedPlan(
        clients=2,
        per_round=2,
        rounds=3,
        size=15,
        unit="record",
        noise_multiplier=200.0,
        delta=1e-2,
        silo=Silo(records=10, batch_size=10, steps=1),
    ),
}


@pytest.mark.parametrize(("kind", "bug"), [(AnswersEveryTask, True), (clients.Site, False)], ids=["bug", "twin"])
@pytest.mark.parametrize("unit", SEEDED)
def test_a_seeded_client_that_a_server_asks_twice(tmp_path, unit, kind, bug):
    """One noise hides two updates: their difference is bare, and one turn is charged; also by another process."""
    generator = torch.Generator().manual_seed(0)
    records = [(torch.randn(10, 4, generator=generator), torch.arange(10) % 3) for _ in range(2)]
    sites = [kind(SEEDED[unit], Training(seed=7), nn.Linear(4, 3), records, ledgers=tmp_path) for _ in range(2)]
    site = sites[0]

    def ask(turn, scale):
        """The client's turn; whatever the round is called."""
        model = torch.full((site.layout.size,), scale).numpy()
        rounds = len(said) if unit == "record" else turn
        said.append(site.answer(0, encode("task", {"round": rounds, "turn": turn}, {"model": model})))

    def update(i):
        schema = Schema(site.exchange.expects({}).arrays, {"round": int})
        return decode(said[i], "answer", schema).arrays["update"]

    said: list[bytes] = []
    ask(0, 0.0)
    ask(1, 0.0)
    site = sites[1]
    ask(1, 3.0)
    if bug:
        assert abs(update(1)).max() > 20 * abs(update(1) - update(2)).max(), "noise in each, and none in the difference"
    else:
        assert abs(update(0) - update(1)).max() > 0.2 * abs(update(1)).max()
        refused = decode(said[2], "refusal", Schema({}, {"round": int, "reason": str}))
        assert "another task" in refused.fields["reason"]


@pytest.mark.parametrize(("kind", "bug"), [(AnswersEveryTask, True), (clients.Site, False)], ids=["bug", "twin"])
def test_a_seeded_client_that_is_asked_for_a_turn_before_the_first(tmp_path, kind, bug):
    """Such a turn has noise of its own, and costs nothing."""
    records = [(torch.randn(10, 4), torch.arange(10) % 3) for _ in range(2)]
    site = kind(SEEDED["client"], Training(seed=7), nn.Linear(4, 3), records, ledgers=tmp_path)
    vector = {"model": torch.zeros(site.layout.size).numpy()}
    answers = []
    with contextlib.nullcontext() if bug else pytest.raises(WireError, match="turn -1 of a plan of 2"):
        answers += [site.answer(0, encode("task", {"round": i % 2, "turn": -1 - i}, vector)) for i in range(4)]
    assert len([data for data in answers if b'"answer"' in data]) == 4 * bug
    ledger = read_ledger(tmp_path / "client-0.jsonl")
    assert ledger is None or ledger.total_steps == 0


def test_a_seeded_client_repeats_a_turn():
    """A federation that is resumed sends the tasks of lost rounds again."""
    records = [(torch.randn(10, 4), torch.arange(10) % 3) for _ in range(2)]
    site = clients.Site(SEEDED["client"], Training(seed=7), nn.Linear(4, 3), records)
    task = encode("task", {"round": 0, "turn": 0}, {"model": torch.zeros(site.layout.size).numpy()})
    assert site.answer(0, task) == site.answer(0, task)
    assert site.answer(1, task) != site.answer(0, task)
