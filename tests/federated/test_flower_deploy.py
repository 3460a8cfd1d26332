"""Flower's deployment on real sockets of this machine: a superlink and three nodes, TLS and node authentication on.

Slow, since Flower starts a process for each message: 1 to 2 minutes, most of them waiting. One test, so that one federation serves it.
"""

import logging
import shutil
import threading
import time

import pytest

from assay.errors import ConfigError
from assay.federated.carriers.deploy import DeployCarrier
from assay.federated.carriers.flower import CarrierError
from assay.federated.deployment import write_certificates, write_node_key

from .loopback import Federation, until
from .toy_site import SALT, serially

pytest.importorskip("flwr", reason="needs Flower: pip install 'assay-dp[federated]'")

NODES, CLIENTS, PATIENCE = 3, 6, 45.0
TASKS = {client: b"task %d" % client for client in range(CLIENTS)}
WITHOUT_NODE_1 = {client: task for client, task in TASKS.items() if client % NODES != 1}


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
    (federation.directory / "began").mkdir()
    made = DeployCarrier(
        {"salt": SALT, "began": str(federation.directory / "began")},
        CLIENTS,
        log=federation.directory / "flower.log",
        superlink=federation.superlink,
        certificates=federation.certificates,
        patience=PATIENCE,
        wait=150,
    )
    yield made
    made.close()


def test_a_federation_loses_a_node_turns_a_stranger_away_and_loses_its_superlink(federation, carrier, caplog):
    # All nodes: the answers are those of the same site in this process.
    assert dict(carrier.exchange(TASKS)) == serially(TASKS)

    # Node 1 is killed at work: the round ends without it, within its time.
    def kill_at_work():
        until((federation.directory / "began" / "1").exists, PATIENCE, "node 1 at work")
        federation.kill("node-1")
        federation.join("stranger", 1)  # comes in its place with a key that was never registered

    killer = threading.Thread(target=kill_at_work)
    killer.start()
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "assay.federated"):
        assert dict(carrier.exchange(TASKS | {1: b"sleep"})) == serially(WITHOUT_NODE_1)
    assert time.monotonic() - began < PATIENCE + 15
    assert "clients 1, 4" in caplog.text
    killer.join()

    # The stranger is turned away.
    until(lambda: "Failed to activate SuperNode" in federation.printed("stranger"), 60, "turned away")
    federation.kill("stranger")
    assert "SuperNode ID" not in federation.printed("stranger")
    assert "SuperNode ID" in federation.printed("node-0")

    # Rounds go on with the nodes there are.
    assert dict(carrier.exchange(WITHOUT_NODE_1)) == serially(WITHOUT_NODE_1)

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
