"""Flower's simulation on this machine. Slow: Ray takes 10 to 30 s to start. One test, so that it starts once."""

import logging
import os
import subprocess

import pytest

from assay.errors import ConfigError
from assay.federated.transport.flower import CarrierError
from assay.federated.transport.simulation import SimulationCarrier

from .loopback import until
from .toy_site import SALT, serially

pytest.importorskip("flwr", reason="needs Flower: the extra federated")
pytest.importorskip("ray", reason="needs Ray: the extra federated")

CLIENTS, FAILING = 10, (3,)
SITE = "tests.federated.toy_site:open_site"


def running_in_group(group):
    listed = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.split()[0] == str(group) and line.split()[1][0] != "Z"]


def test_ten_clients_answer_as_they_do_serially_and_nothing_is_left_behind(tmp_path, caplog):
    settings = {"salt": SALT, "failing": FAILING}
    carrier = SimulationCarrier(settings, CLIENTS, log=tmp_path / "log", patience=120, wait=120, site=SITE)
    try:
        # All clients; one fails, which is told, and why it fails is not.
        tasks = {client: b"task %d" % client for client in range(CLIENTS)}
        with caplog.at_level(logging.WARNING, "assay.federated"):
            assert dict(carrier.exchange(tasks)) == serially(tasks, FAILING)
        assert "clients 3" in caplog.text
        assert "must not leave" not in caplog.text

        # Some clients, tasks of any size, none at all, and again.
        for tasks in ({7: b"", 2: bytes(3_000_000), 5: b"x"}, {}, {9: b"again"}):
            assert dict(carrier.exchange(tasks)) == serially(tasks)

        # An exchange that is left early does not reach into the next one.
        next(carrier.exchange(dict.fromkeys(range(CLIENTS), bytes(5_000_000))))
        assert dict(carrier.exchange(dict.fromkeys((0, 9), b"new" * 1_000_000))) == serially(
            dict.fromkeys((0, 9), b"new" * 1_000_000)
        )
        with pytest.raises(ConfigError, match="0 to 9"):
            next(carrier.exchange({10: b""}))

        # Other users of the machine cannot get at it while it runs.
        (simulation,) = carrier.processes.running
        os.kill(simulation.pid, 0)
        assert carrier.directory.stat().st_mode & 0o077 == 0
    finally:
        carrier.close()
    carrier.close()
    assert not carrier.directory.exists()
    until(lambda: not running_in_group(simulation.pid), 20, "all processes gone")
    with pytest.raises(CarrierError, match="closed"):
        next(carrier.exchange({0: b""}))
