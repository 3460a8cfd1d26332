"""Clients as Flower's virtual nodes on this machine, spread over its cores by Ray."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from assay.federated.transport import Reach
from assay.federated.transport.flower import FlowerCarrier, quiet_environment, require
from assay.federated.transport.names import DEFAULT_SITE, SITE_VARIABLE


class SimulationCarrier(FlowerCarrier):
    """A `Carrier` whose clients are virtual nodes: one process starts Ray and Flower, and all of it ends with `close`.

    `cpus` is how many cores a client takes: with 1, as many clients work at a time as there are cores.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        clients: int,
        *,
        log: Path,
        patience: float = 600.0,
        wait: float = 300.0,
        cpus: int = 1,
        site: str = DEFAULT_SITE,
    ) -> None:
        require("ray")
        self._cpus, self._site = cpus, site
        super().__init__(settings, clients, log=log, patience=patience, wait=wait)

    def _launch(self, socket: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
        environment = quiet_environment(self.directory / "flower") | {
            SITE_VARIABLE: self._site,
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            # Ray listens on every interface and runs what it is sent. Without this token a caller is turned away.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        options = {
            "directory": str(self.directory),
            "socket": str(socket),
            "clients": self.clients,
            "cpus": self._cpus,
        }
        command = [sys.executable, "-m", "assay.federated.transport.simulation", json.dumps(options)]
        return self.processes.start(command, environment, output)


def check(reach: Reach) -> None:  # noqa: ARG001
    """Refuse if Flower or Ray is missing."""
    require("ray")


def open_carrier(settings: Mapping[str, Any], directory: Path, reach: Reach) -> SimulationCarrier:  # noqa: ARG001
    """All clients as virtual nodes of this machine; what Flower prints goes to `flower.log` in the run's folder."""
    return SimulationCarrier(settings, settings["plan"]["clients"], log=directory / "flower.log")


def simulate(options: Mapping[str, Any]) -> None:
    """Run Flower's simulation until the carrier hangs up; then clean up, because the carrier may have been killed."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from assay.federated.transport import apps

    server = ServerApp()
    server.main()(lambda grid, _context: apps.relay(grid, options["socket"]))
    ray = {
        "_temp_dir": str(Path(options["directory"]) / "ray"),  # Ray opens it to all users; its parent stays private
        "include_dashboard": False,
        # All cores, or more if a client asks for more: otherwise it would wait for ever.
        "num_cpus": max(options["cpus"], os.cpu_count() or 1),
    }
    resources = {"num_cpus": options["cpus"], "num_gpus": 0.0}
    try:
        run_simulation(
            server,
            apps.virtual_app,
            options["clients"],
            backend_config={"client_resources": resources, "init_args": ray},
        )
    finally:
        shutil.rmtree(options["directory"], ignore_errors=True)


if __name__ == "__main__":
    simulate(json.loads(sys.argv[1]))
