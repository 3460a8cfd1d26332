"""Flower's deployment on real sockets of this machine: a superlink and three nodes, TLS and node authentication on.

Slow, since Flower starts a process for each message: 2 to 3 minutes, most of them waiting. One test, so that one
federation serves it.
"""

import json
import shutil
import time

import pytest

from assay.errors import ConfigError
from assay.federated.deployment import write_certificates, write_node_key
from assay.federated.transport.deploy import DeployCarrier
from assay.federated.transport.flower import CarrierError

from .loopback import Federation, until
from .toy_site import SALT, serially

pytest.importorskip("flwr", reason="needs Flower: the extra federated")

NODES, CLIENTS = 3, 6
TASKS = {client: b"task %d" % client for client in range(CLIENTS)}


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path, NODES)
    write_certificates(made.certificates, ["localhost"])
    for name in ("node-0", "node-1", "node-2", "stranger"):
        public = write_node_key(made.key(name))
        if name != "stranger":
            shutil.copy(public, made.certificates / "nodes")
    try:
        made.serve()
        for node in range(NODES):
            made.join(f"node-{node}", node)
        until(made.listens, 120, "a superlink that listens")
        yield made
    finally:
        made.close()


@pytest.fixture
def carrier(federation):
    made = DeployCarrier(
        {"salt": SALT},
        CLIENTS,
        log=federation.directory / "flower.log",
        superlink=federation.superlink,
        certificates=federation.certificates,
        wait=150,
    )
    yield made
    made.close()


def test_a_run_that_loses_a_node_ends_a_stranger_is_turned_away_and_a_lost_superlink_is_told(federation, carrier):
    # All nodes: the answers are those of the same site in this process.
    assert dict(carrier.exchange(TASKS)) == serially(TASKS)

    # A run over three rounds. After the first, node 1 is killed, and a stranger comes in its place with a key that was
    # never registered.
    out = federation.directory / "run"
    federation.start(
        "run",
        *("federate", "--data", "digits", "--model", "logistic", "--clients", str(CLIENTS), "--per-round", "6"),
        *("--rounds", "3", "--epsilon", "8", "--delta", "1e-2", "--noise", "local", "--seed", "1", "--out", str(out)),
        *("--engine", "deploy", "--superlink", federation.superlink, "--certificates", str(federation.certificates)),
        group="",
    )
    until((out / "checkpoint.safetensors").exists, 240, "the first round done")
    federation.kill("node-1")
    federation.join("stranger", 1)
    until(lambda: federation.ended("run") is not None, 300, "the run at its end")
    assert federation.ended("run") == 0, federation.printed("run")
    record = json.loads((out / "record.json").read_text())
    assert (record["status"], record["steps"], record["steps_charged"]) == ("done", 3, 3)
    assert 7.9 < record["epsilon"]["verified"] <= 8
    assert "clients 1, 4" in federation.printed("run")

    # Each node has kept the plan, and its clients' ledgers, where it says and not where the server does.
    for node in range(NODES):
        kept = federation.directory / f"node-{node}.ledgers"
        ledgers, tasks = (
            {f"client-{client}.{end}" for client in range(node, CLIENTS, NODES)} for end in ("jsonl", "tasks")
        )
        there = {path.name for path in kept.iterdir()}
        assert there - tasks == {"plan.json"} | ledgers, "with a seed, also the tasks of the clients that were asked"
        assert (
            json.loads((kept / "plan.json").read_text())["plan"] == json.loads((out / "run.json").read_text())["plan"]
        )
    assert not (out / "clients").exists()

    # The stranger is turned away.
    until(lambda: "Failed to activate SuperNode" in federation.printed("stranger"), 60, "turned away")
    federation.kill("stranger")
    assert "SuperNode ID" not in federation.printed("stranger")
    assert "SuperNode ID" in federation.printed("node-0")

    # Without the superlink there is an error, at once, and not a wait.
    federation.kill("serve")
    began = time.monotonic()
    with pytest.raises(CarrierError, match="resume"):
        dict(carrier.exchange(TASKS))
    assert time.monotonic() - began < 20


def test_a_superlink_that_is_not_there_or_not_here_is_refused(tmp_path):
    settings, log, certificates = {"salt": SALT}, tmp_path / "log", tmp_path / "server"
    write_certificates(certificates, ["localhost"])
    absent = Federation(tmp_path, 1).superlink
    for superlink in (absent, "superlink.example.org:9092", "127.0.0.1"):
        with pytest.raises(ConfigError, match="superlink"):
            DeployCarrier(settings, 1, log=log, superlink=superlink, certificates=certificates)
    with pytest.raises(ConfigError, match=r"ca\.crt"):
        DeployCarrier(settings, 1, log=log, superlink=absent, certificates=tmp_path)
