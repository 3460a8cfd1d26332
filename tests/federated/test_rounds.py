"""The server's loop: clients that misbehave, rounds that are refused, ledgers, and runs that are taken up again."""

import functools
import json
import math
import threading

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.federated.client import Site
from assay.federated.server import federate, resume
from assay.federated.transport.serial import Serial
from assay.federated.wire import decode, encode
from assay.runs.callbacks import OnStep
from assay.runs.directory import RunDirectory

from . import tiny


class Bent:
    """A carrier that does something to the answers on their way."""

    def __init__(self, site, bend):
        self.site, self.bend, self.round = site, bend, -1

    def exchange(self, tasks):
        self.round += 1
        yield from self.bend(self.round, [(client, self.site.answer(client, task)) for client, task in tasks.items()])

    def close(self):
        pass


def run(plan, bend=lambda _, answers: answers, training=None, **kwargs):
    training = training or tiny.seeded()
    return tiny.run(plan, training, Bent(tiny.site(plan, training), bend), **kwargs)


def weights(result):
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


def without_first(_, answers):
    return answers[1:]


BENT = {
    "rubbish": lambda r, c, d: [(c, b"rubbish")],
    "nothing in it": lambda r, c, d: [(c, b"")],
    "not a number": lambda r, c, d: [(c, encode("answer", {"round": r}, {"update": np.full(17, np.nan, np.float32)}))],
    "infinite": lambda r, c, d: [(c, encode("answer", {"round": r}, {"update": np.full(17, np.inf, np.float32)}))],
    "too short": lambda r, c, d: [(c, encode("answer", {"round": r}, {"update": np.zeros(16, np.float32)}))],
    "too long": lambda r, c, d: [(c, encode("answer", {"round": r}, {"update": np.zeros(18, np.float32)}))],
    "another dtype": lambda r, c, d: [(c, encode("answer", {"round": r}, {"update": np.zeros(17, np.uint32)}))],
    "a norm of its own": lambda r, c, d: [
        (c, encode("answer", {"round": r, "norm": 0.1}, {"update": np.zeros(17, np.float32)}))
    ],
    "late": lambda r, c, d: [(c, encode("answer", {"round": r - 1}, {"update": np.zeros(17, np.float32)}))],
    "early": lambda r, c, d: [(c, encode("answer", {"round": r + 1}, {"update": np.zeros(17, np.float32)}))],
    "a task": lambda r, c, d: [(c, encode("task", {"round": r}, {"update": np.zeros(17, np.float32)}))],
    "refused": lambda r, c, d: [(c, encode("refusal", {"round": r, "reason": "no"}, {}))],
    "from nobody": lambda r, c, d: [(77, d), (-1, d)],
}


@functools.cache
def undisturbed(noise):
    return run(tiny.plan(noise=noise))


@functools.cache
def dropped(noise):
    return run(tiny.plan(noise=noise), without_first)


def test_a_client_that_drops_out_changes_the_model_and_not_ε():
    for noise in ("central", "local"):
        assert not torch.equal(weights(dropped(noise)), weights(undisturbed(noise)))
        assert dropped(noise).record["epsilon"] == undisturbed(noise).record["epsilon"]


@pytest.mark.parametrize("kind", BENT)
@pytest.mark.parametrize("noise", ["central", "local"])
def test_a_bad_answer_is_as_good_as_none(kind, noise):
    plan = tiny.plan(noise=noise)
    bent = run(plan, lambda r, answers: [*BENT[kind](r, *answers[0]), *answers[1:]] if answers else [])
    assert torch.equal(weights(bent), weights(dropped(noise)))
    assert bent.record["epsilon"] == dropped(noise).record["epsilon"]
    assert bent.record["steps"] == bent.record["steps_charged"] == plan.rounds
    assert bent.nonfinite > 0


def test_a_second_answer_does_not_count():
    plan = tiny.plan()
    twice = run(plan, lambda _, answers: [*answers, *answers, *answers[:1]])
    assert torch.equal(weights(twice), weights(run(plan)))


def test_the_order_of_answers_does_not_matter():
    plan = tiny.plan()
    assert torch.equal(weights(run(plan, lambda _, a: a[::-1])), weights(run(plan)))


def test_a_bad_answer_first_does_not_lock_a_client_out():
    plan = tiny.plan()
    assert torch.equal(
        weights(run(plan, lambda _, a: [x for c, d in a for x in ((c, b"rubbish"), (c, d))])), weights(run(plan))
    )


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_a_forged_norm_moves_the_model_by_the_bound_at_most(size):
    """One round, no noise, one client: the model moves by C/expected, whatever it sends."""
    plan = tiny.plan(clients=1, per_round=1, rounds=1, noise_multiplier=0.0, clip=0.5)
    huge = np.full(17, size, np.float32)
    result = run(plan, lambda r, _: [(0, encode("answer", {"round": r}, {"update": huge}))])
    moved = torch.cat([p.detach().flatten() for p in result.model.parameters()]) - torch.cat(
        [p.detach().flatten() for p in tiny.model().parameters()]
    )
    assert float(moved.norm()) <= 0.5 * (1 + 1e-6)


def test_nobody_answering_is_a_round_like_any_other():
    plan = tiny.plan()
    result = run(plan, lambda *_: [])
    assert result.record["steps"] == result.record["steps_charged"] == plan.rounds
    assert float((weights(result) - torch.cat([p.detach().flatten() for p in tiny.model().parameters()])).norm()) > 0.1


def test_with_central_noise_how_many_answered_cannot_be_read_from_the_record():
    plan = tiny.plan()
    full, empty = run(plan).record, run(plan, lambda *_: []).record
    for record in (full, empty):
        assert record["federated"]["bytes_are"] == "expected"
        assert record["federated"]["turns"] is None
    assert full["federated"] == empty["federated"]


def test_with_too_few_shares_a_round_is_refused_and_charged():
    plan = tiny.plan(noise="distributed", minimum=2)
    result = run(plan, lambda r, answers: answers[:1] if r == 1 else answers[:2])
    assert result.record["federated"]["refused_rounds"] == 1
    assert result.record["steps_charged"] == plan.rounds
    assert result.record["epsilon"]["verified"] == pytest.approx(plan.epsilon())
    assert "stay charged" in result.statement
    all_refused = run(plan, lambda _, answers: answers[:1])
    assert torch.equal(weights(all_refused), torch.cat([p.detach().flatten() for p in tiny.model().parameters()]))


def test_updates_that_are_not_numbers_count_as_zero():
    plan = tiny.plan(noise="central", clients=2, per_round=2, noise_multiplier=0.0)
    held = tiny.records(2)
    held[0] = (held[0][0] * math.inf, held[0][1])
    training = tiny.seeded()
    broken = tiny.run(plan, training, Serial(tiny.site(plan, training, held)))
    alone = tiny.run(plan, training, Bent(tiny.site(plan, training, held), lambda _, a: [x for x in a if x[0] == 1]))
    assert torch.equal(weights(broken), weights(alone))


def test_a_client_without_records_sends_zeros():
    plan = tiny.plan(noise_multiplier=0.0, clients=2, per_round=2)
    site = tiny.site(plan, tiny.seeded(), [(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))] * 2)
    task = encode("task", {"round": 0, "turn": 0}, {"model": np.ones(17, np.float32)})
    schema = site.exchange.expects({})
    schema = type(schema)(schema.arrays, {"round": int})
    assert not decode(site.answer(0, task), "answer", schema).arrays["update"].any()


def test_whole_number_buffers_stay_where_they_are():
    result = run(tiny.plan())
    assert int(result.model.seen) == 0


class Remembering(nn.Module):
    """Each forward pass depends on all before it, in one way of several; with a lock in it, it cannot be copied."""

    def __init__(self, way, locked):
        super().__init__()
        self.way, self.lock = way, threading.Lock() if locked else None
        self.linear = nn.Linear(4, 3)
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("level", torch.zeros(()), persistent=False)
        self.attribute = 0.0

    def forward(self, x):
        match self.way:
            case "count":
                self.count += 1
            case "buffer":
                self.level += x.mean().detach()
            case "new buffer":
                self.level = self.level + x.mean().detach()
            case "attribute":
                self.attribute += float(x.mean())
        return self.linear(x) * (1 + self.count + self.level + self.attribute)


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("way", ["count", "buffer", "new buffer", "attribute"])
def test_what_a_client_leaves_in_the_model_does_not_reach_the_next(way, locked):
    def answer(before):
        torch.manual_seed(0)
        model = Remembering(way, locked)
        plan = tiny.plan(clients=2, per_round=2, noise="central", size=15)
        site = Site(plan, tiny.seeded(), model, tiny.records(2))
        task = encode("task", {"round": 0, "turn": 0}, {"model": site.layout.vector(model).numpy()})
        for client in before:
            site.answer(client, task)
        return site.answer(1, task)

    assert answer([0, 0]) == answer([])


@pytest.mark.parametrize("method", ["fedavg", "fedags", "fedsnlc"])
@pytest.mark.parametrize("noise", ["central", "local", "distributed"])
def test_ε_of_a_finished_run_is_that_of_its_plan(method, noise):
    plan = tiny.plan(method, noise=noise).calibrated(6.0)
    record = run(plan).record
    assert record["status"] == "done"
    assert record["epsilon"]["verified"] == pytest.approx(plan.epsilon(), rel=0.01)
    assert record["epsilon"]["verified"] <= 6.0
    assert record["unit"] == "one client"


def cut(plan, training, folder, at):
    """A run that dies in round `at`, after its clients were asked and before anything came of it."""

    class KilledError(Exception):
        pass

    def bend(number, answers):
        if number == at:
            raise KilledError
        return answers

    directory = tiny.directory(folder, plan, training)
    site = tiny.site(plan, training, ledgers=folder / "clients")
    with pytest.raises(KilledError):
        federate(tiny.model(), Bent(site, bend), plan=plan, training=training, names=tiny.NAMES, directory=directory)
    return directory


def go_on(plan, training, directory, initial=None):
    site = tiny.site(plan, training, ledgers=directory.path / "clients")
    return resume(tiny.model(7) if initial is None else initial, Serial(site), directory)


SVT = {"noise": "local", "options": {"select": "svt"}, "noise_multiplier": 30.0}
CASES = [
    ("fedavg", {}),
    ("fedags", SVT),
    ("fedavg", {"noise": "local"}),
    ("fedags", {"noise": "distributed"}),
    ("fedsnlc", {}),
    ("cpsgd", {"noise": "distributed", "noise_multiplier": 20.0}),
]


@pytest.mark.parametrize(("method", "settings"), CASES)
@pytest.mark.parametrize("at", [1, 5])
def test_a_seeded_run_ends_where_an_uninterrupted_one_ends(tmp_path, method, settings, at):
    plan, training = tiny.plan(method, rounds=7, **settings), tiny.seeded()
    whole = tiny.run(plan, training)
    directory = cut(plan, training, tmp_path / "run", at)
    result = go_on(plan, training, directory)
    assert torch.equal(weights(result), weights(whole))
    for key in ("epsilon", "history", "steps", "steps_charged", "federated"):
        assert result.record[key] == whole.record[key], key
    assert directory.finished
    assert not directory.checkpoint.exists()


@pytest.mark.parametrize(("seed", "lost"), [(0, 0), (7, 1)], ids=["the same model", "another model"])
def test_a_seeded_run_that_begins_anew_pays_for_the_round_it_lost_unless_it_repeats_it(tmp_path, seed, lost):
    plan, training = tiny.plan(rounds=7), tiny.seeded()
    directory = cut(plan, training, tmp_path / "run", 0)
    record = go_on(plan, training, directory, tiny.model(seed)).record
    assert record["steps_charged"] == record["steps"] + lost


@pytest.mark.parametrize(("method", "settings"), CASES)
def test_an_unseeded_run_pays_for_the_round_it_lost(tmp_path, method, settings):
    plan = tiny.plan(method, rounds=6, **settings).calibrated(8.0)
    training = tiny.seeded(seed=None)
    directory = cut(plan, training, tmp_path / "run", 3)
    result = go_on(plan, training, directory)
    record = result.record
    assert record["epsilon"]["verified"] <= 8.0
    assert record["steps_charged"] >= record["steps"] + 1
    if plan.hidden:  # one round of the plan must go
        assert record["status"] == "budget-spent"
    else:  # only those who were asked in vain are asked once less
        assert record["status"] == "done"
        assert record["federated"]["turns"]["most"] <= plan.turns
        entries = [json.loads(line) for line in directory.ledger.read_text().splitlines()[1:]]
        assert sum({e["segment"]: e["steps"] for e in entries}.values()) == 7


def test_lost_rounds_add_up_over_several_kills(tmp_path):
    plan, training = tiny.plan(noise="local", rounds=6, epsilon_limit=100.0), tiny.seeded(seed=None)
    directory = cut(plan, training, tmp_path / "run", 2)
    for _ in range(2):  # dies again in the same round, before the first checkpoint of its own
        site = tiny.site(plan, training, ledgers=directory.path / "clients")

        def bend(number, answers):
            raise RuntimeError("killed")

        with pytest.raises(RuntimeError, match="killed"):
            resume(tiny.model(), Bent(site, bend), directory)
    result = go_on(plan, training, directory)
    assert result.record["steps_charged"] == 6 + 3
    most = result.record["federated"]["turns"]["most"]
    assert most <= plan.turns == 3
    spent = sum(
        entry["event"]["count"] if entry["event"]["kind"] == "self-composed" else 0
        for entry in {e["segment"]: e for e in map(json.loads, directory.ledger.read_text().splitlines()[1:])}.values()
    )
    assert spent == most, "what is charged is how often the most asked client was asked"


def test_every_client_keeps_a_ledger_of_its_own(tmp_path):
    plan, training = tiny.plan(noise="local", rounds=4), tiny.seeded(seed=None)
    tiny.run(plan, training, ledgers=tmp_path / "clients")
    files = sorted(path.name for path in (tmp_path / "clients").iterdir())
    assert files == [f"client-{k}.jsonl" for k in range(6)]
    for path in (tmp_path / "clients").iterdir():
        assert len(path.read_text().splitlines()) == 1 + plan.turns


@pytest.mark.parametrize("folder", [True, False])
def test_a_client_refuses_to_be_asked_too_often(tmp_path, folder):
    plan = tiny.plan(noise="local", rounds=4).calibrated(5.0)
    site = tiny.site(plan, tiny.seeded(seed=None), ledgers=tmp_path / "clients" if folder else None)
    task = encode("task", {"round": 0, "turn": 0}, {"model": np.zeros(17, np.float32)})
    kinds = [tiny.kind_of(site.answer(0, task)) for _ in range(plan.turns + 2)]
    assert kinds == ["answer"] * plan.turns + ["refusal"] * 2
    assert tiny.kind_of(site.answer(1, task)) == "answer"
    if folder:  # nor after a restart
        again = tiny.site(plan, tiny.seeded(seed=None), ledgers=tmp_path / "clients")
        assert tiny.kind_of(again.answer(0, task)) == "refusal"


def test_the_ceiling_ends_a_run_before_its_plan(tmp_path):
    plan = tiny.plan(rounds=30, noise_multiplier=1.0, epsilon_limit=6.0)
    record = run(plan).record
    assert record["status"] == "budget-spent"
    assert 0 < record["steps"] < 30
    assert record["epsilon"]["verified"] <= 6.0


def test_a_finished_run_is_not_resumed(tmp_path):
    plan, training = tiny.plan(), tiny.seeded()
    directory = tiny.directory(tmp_path / "run", plan, training)
    tiny.run(plan, training, directory=directory)
    with pytest.raises(AssayError, match="finished"):
        resume(tiny.model(), None, RunDirectory.open(tmp_path / "run"))


def test_nothing_of_the_clients_is_in_the_files_of_a_central_run(tmp_path):
    plan, training = tiny.plan(), tiny.seeded()
    directory = tiny.directory(tmp_path / "run", plan, training)
    tiny.run(plan, training, directory=directory)
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        ".gitignore",
        "README.md",
        "run.json",
        "ledger.jsonl",
        "model.safetensors",
        "statement.md",
        "record.json",
    }


@pytest.mark.parametrize("noise", ["central", "local"])
def test_a_callback_ends_a_run_with_the_epsilon_of_all_its_rounds(tmp_path, noise):
    plan = tiny.plan(noise=noise)
    directory = tiny.directory(tmp_path / "run", plan, tiny.seeded())
    result = tiny.run(plan, tiny.seeded(), directory=directory, callbacks=[OnStep(lambda now: now.step == 2)])
    assert (result.record["status"], result.record["steps"]) == ("stopped", 2)
    assert result.record["steps_charged"] == plan.rounds
    assert result.epsilon == pytest.approx(plan.epsilon(), rel=1e-9)
    assert directory.finished


def test_an_error_of_a_callback_loses_no_round(tmp_path):
    def broken(now):
        if now.step == 2:
            raise ValueError("my own mistake")

    plan, training = tiny.plan(), tiny.seeded()
    directory = tiny.directory(tmp_path / "run", plan, training)
    with pytest.raises(ValueError, match="my own mistake"):
        tiny.run(plan, training, directory=directory, callbacks=[OnStep(broken)])
    seen = []
    result = tiny.run(plan, training, directory=directory, callbacks=[OnStep(lambda now: seen.append(now.step))])
    assert seen == list(range(3, plan.rounds + 1))
    assert result.epsilon == pytest.approx(plan.epsilon(), rel=1e-9)
