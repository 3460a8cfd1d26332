"""What a node promises its clients does not rest on its server: it holds to one plan, and its ledgers are where it
says.
"""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

from assay import data, models
from assay._util.files import create_json
from assay.federated.layout import Layout
from assay.federated.local import Training
from assay.federated.plan import FederatedPlan, Silo
from assay.federated.server import federate, resume, run_spec, site_settings
from assay.federated.transport.names import LEDGERS_VARIABLE, SETTINGS_VARIABLE, SITE_VARIABLE
from assay.federated.wire import Schema, decode, encode
from assay.runs.callbacks import OnStep
from assay.runs.directory import RunDirectory

from . import tiny

pytest.importorskip("flwr", reason="needs Flower: the extra federated")

CLIENTS = 4
NAMES = {
    "model": "logistic",
    "circulant": None,
    "data": "digits",
    "data_dir": None,
    "records": 200,
    "partition": "iid",
    "partition_seed": 0,
    "unit": "one image",
    "notes": "",
}


def network():
    bundle = data.load("digits")
    return models.build("logistic", input_shape=bundle.input_shape, classes=bundle.classes)


SIZE = Layout.of(network()).size
LOCAL = FederatedPlan(
    clients=CLIENTS,
    per_round=CLIENTS,
    rounds=2,
    size=SIZE,
    noise="local",
    noise_multiplier=50.0,
    delta=1e-3,
    epsilon_limit=1.0,
)
CENTRAL = replace(LOCAL, noise="central", epsilon_limit=None)
RECORD = replace(LOCAL, unit="record", silo=Silo(records=50, batch_size=10, steps=1), epsilon_limit=None)


def site(plan=LOCAL, *, training=None, ledgers="", **names):
    """What a server says of the site."""
    described = asdict(Training(**(training or {})))
    return {"plan": plan.to_json(), "training": described, "names": NAMES | names, "ledgers": str(ledgers)}


def asked(tasks, settings, work=None):
    """What a node that holds all clients answers, in a process that knows of no earlier message."""
    from assay.federated.transport import apps
    from assay.federated.transport.frames import pack_tasks, unpack_answers

    apps.site_of.cache_clear()
    message = SimpleNamespace(content=apps.as_content(pack_tasks(tasks, {"settings": settings})))
    context = SimpleNamespace(node_config={"partition-id": 0, "num-partitions": 1})
    with patch.object(
        apps, "Message", lambda content, reply_to: SimpleNamespace(content=content)
    ):  # Flower's own needs a run
        reply = (work or apps.work)(message, context)
    return dict(unpack_answers(apps.frame_of(reply)))


def ask(settings, number=0, work=None):
    """The answer of client 0 to one task; None if there is none, "refusal" if its budget is spent."""
    task = encode("task", {"round": number, "turn": 0}, {"model": np.zeros(SIZE, np.float32)})
    answer = asked({0: task}, settings, work).get(0)
    if answer is None or tiny.kind_of(answer) != "answer":
        return answer and tiny.kind_of(answer)
    return decode(answer, "answer", Schema({"update": ("float32", SIZE)}, {"round": int})).arrays["update"]


def is_private(update):
    """Noise of 50 in each of 650 coordinates, beside an update of norm 1 at most.

    Such noise is taken for none once in 10¹² times.
    """
    return isinstance(update, np.ndarray) and 40 < np.std(update) < 60


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a node as `assay federation join` starts it."""
    made = tmp_path / "node.ledgers"
    made.mkdir()
    monkeypatch.setenv(LEDGERS_VARIABLE, str(made))
    for name in (SETTINGS_VARIABLE, SITE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return made


@pytest.fixture
def own(tmp_path, monkeypatch, folder):
    """Sets the node's --settings."""

    def write(**settings):
        (tmp_path / "own.json").write_text(json.dumps(settings))
        monkeypatch.setenv(SETTINGS_VARIABLE, str(tmp_path / "own.json"))

    return write


def test_the_budget_is_one_wherever_the_server_wants_the_ledgers(folder, tmp_path):
    answers = [ask(site(ledgers=tmp_path / f"elsewhere-{number}"), number) for number in range(4)]
    assert [is_private(answer) for answer in answers] == [True, True, False, False]
    assert answers[2:] == ["refusal"] * 2
    assert sorted(path.name for path in folder.iterdir()) == ["client-0.jsonl", "plan.json"]
    assert not list(tmp_path.glob("elsewhere*"))


OTHERS = {
    "no noise": (site(replace(LOCAL, noise_multiplier=0.0)), "plan.noise_multiplier is 0.0, not 50.0"),
    "noise by the server": (site(replace(LOCAL, noise="central")), 'plan.noise is "central", not "local"'),
    "another clip": (site(replace(LOCAL, clip=1e6)), "plan.clip is 1000000.0, not 1.0"),
    "more turns": (site(replace(LOCAL, rounds=9)), "plan.rounds is 9, not 2"),
    "another ceiling": (site(replace(LOCAL, epsilon_limit=9.0)), "plan.epsilon_limit is 9.0, not 1.0"),
    "no ceiling": (site(replace(LOCAL, epsilon_limit=None)), "plan.epsilon_limit is null, not 1.0"),
    "another unit": (site(RECORD), 'plan.unit is "record", not "client"'),
    "a seed": (site(training={"seed": 1}), "training.seed is 1, not null"),
    "another model": (site(model="os:getcwd"), 'names.model is "os:getcwd", not "logistic"'),
    "other data": (site(data="/srv/other.npz"), 'names.data is "/srv/other.npz", not "digits"'),
    "another partition": (site(partition_seed=1), "names.partition_seed is 1, not 0"),
    "less than a plan": ({"names": NAMES}, ""),
}


@pytest.mark.parametrize("other", OTHERS)
def test_any_other_plan_is_refused_and_said_to_the_operator(folder, capfd, other):
    assert is_private(ask(site(), 0))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    settings, difference = OTHERS[other]
    assert ask(settings, 1) is None
    printed = capfd.readouterr().err
    assert difference in printed
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert is_private(ask(site(), 1))


def test_a_plan_for_records_is_held_to_as_well(folder):
    layout = Layout.of(network(), parameters_only=True)
    plan = replace(RECORD, size=layout.size)
    assert isinstance(ask(site(plan)), np.ndarray)
    for other in (replace(plan, noise_multiplier=0.0), replace(plan, silo=Silo(records=50, batch_size=10, steps=9))):
        assert ask(site(other)) is None
    assert isinstance(ask(site(plan)), np.ndarray)


def test_nothing_is_answered_before_the_plan_is_on_disk(folder, monkeypatch):
    from assay.federated.transport import pinned

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(pinned, "create_json", full)
    assert ask(site()) is None
    assert not list(folder.iterdir())


def test_a_plan_in_the_nodes_settings_is_not_the_servers_to_say(folder, own):
    agreed = site()
    own(plan=agreed["plan"], training=agreed["training"], names=agreed["names"])
    assert is_private(
        ask(site(replace(LOCAL, noise_multiplier=0.0, rounds=9), training={"seed": 1}, model="os:getcwd"))
    )
    assert is_private(ask(site(CENTRAL)))
    assert ask(site(CENTRAL)) == "refusal"
    kept = json.loads((folder / "plan.json").read_text())
    assert (kept["plan"], kept["training"], kept["names"]) == (agreed["plan"], agreed["training"], agreed["names"])


def test_settings_replace_entries_one_by_one(folder, own):
    own(plan={"noise_multiplier": 50.0}, names={"data_dir": "/srv/records"})
    assert is_private(ask(site(replace(LOCAL, noise_multiplier=0.0), data_dir="/of/the/server")))
    kept = json.loads((folder / "plan.json").read_text())
    assert kept["names"] == NAMES | {"data_dir": "/srv/records"}
    assert kept["plan"] == LOCAL.to_json()
    assert ask(site(replace(LOCAL, clip=2.0))) is None


def test_another_plan_takes_another_folder_and_what_was_spent_stays(folder, own, tmp_path, capfd):
    assert is_private(ask(site()))
    spent = {path.name: path.read_bytes() for path in folder.iterdir()}
    new = site(replace(LOCAL, epsilon_limit=2.0, rounds=3))
    assert ask(new) is None
    assert '"ledgers" in this node\'s --settings' in capfd.readouterr().err

    own(ledgers="agreed")  # beside the settings' file
    assert ask(new) is None  # a folder that is not there is not made
    assert not (tmp_path / "agreed").exists()
    (tmp_path / "agreed").mkdir()
    assert [is_private(ask(new)) for _ in range(4)] == [True] * 3 + [False]
    assert ask(site()) is None
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == spent


def test_ledgers_are_not_gone_on_with_under_another_plan(folder, capfd):
    assert is_private(ask(site()))
    (folder / "plan.json").unlink()
    for settings in (site(), site(replace(LOCAL, rounds=9))):
        assert ask(settings) is None
        assert "has ledgers, and not the plan.json" in capfd.readouterr().err


def test_where_nothing_was_spent_the_plan_may_be_removed(folder, capfd):
    assert isinstance(ask(site(CENTRAL)), np.ndarray)
    assert ask(site()) is None
    assert "remove that file" in capfd.readouterr().err
    (folder / "plan.json").unlink()
    assert is_private(ask(site()))


def test_a_node_without_a_folder_answers_nothing(monkeypatch, folder, tmp_path):
    monkeypatch.delenv(LEDGERS_VARIABLE)
    assert ask(site(ledgers=tmp_path / "elsewhere")) is None
    assert not (tmp_path / "elsewhere").exists()


def test_of_two_plans_at_the_same_time_one_is_kept(tmp_path):
    for number in (1, 2):
        create_json(tmp_path / "plan.json", {"number": number})
    assert json.loads((tmp_path / "plan.json").read_text()) == {"number": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


class Node:
    """A carrier to the node, without Flower between."""

    def __init__(self, settings):
        self.settings = settings
        self.answered = []

    def exchange(self, tasks):
        answers = asked(tasks, self.settings)
        self.answered += sorted(client for client, answer in answers.items() if tiny.kind_of(answer) == "answer")
        yield from answers.items()

    def close(self):
        pass


def test_a_run_that_is_resumed_is_answered_to_its_end(folder, tmp_path):
    spec = run_spec(LOCAL, Training(), NAMES, "deploy", {})
    directory = RunDirectory.create(tmp_path / "run", spec)

    def killed(progress):
        raise KeyboardInterrupt

    first = Node(site_settings(spec, directory))
    with pytest.raises(KeyboardInterrupt):
        federate(
            network(),
            first,
            plan=LOCAL,
            training=Training(),
            names=NAMES,
            directory=directory,
            callbacks=[OnStep(killed)],
        )
    directory = RunDirectory(directory.path)
    second = Node(site_settings(directory.read_spec(), directory))
    assert resume(network(), second, directory).record["status"] == "done"
    assert first.answered == second.answered == list(range(CLIENTS))
    assert len(list(folder.glob("client-*.jsonl"))) == CLIENTS
    assert not (directory.path / "clients").exists()

    # In words: the server is trusted with a first plan at most.
    text = directory.statement.read_text()
    assert "No recipient is trusted, not even the server" in text
    assert "refuses any plan but the one in its own settings" in text


def test_in_a_simulation_plan_and_ledgers_are_those_of_the_run(folder, tmp_path):
    from assay.federated.transport import apps

    for number, plan in enumerate((LOCAL, replace(LOCAL, clip=2.0))):
        ledgers = tmp_path / f"run-{number}"
        assert isinstance(ask(site(plan, ledgers=ledgers), work=apps.virtual_work), np.ndarray)
        assert (ledgers / "client-0.jsonl").exists()
    assert not list(folder.iterdir())
