"""Clients on other machines, reached through a superlink on this one."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket as sockets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from assay.errors import ConfigError
from assay.federated.transport import Reach, bundle
from assay.federated.transport.flower import FlowerCarrier, quiet_environment, require

CONNECTION: Final = "assay"
_SUPERLINK: Final = "127.0.0.1:9092"


class DeployCarrier(FlowerCarrier):
    """A `Carrier` over a running superlink. Its nodes stay when it closes, ready for the next run.

    The superlink runs on this machine, as this user (`assay federation serve`): Flower starts our relay there, and it
    takes orders only from here. `certificates` is the directory that holds `ca.crt`.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        clients: int,
        *,
        log: Path,
        superlink: str,
        certificates: Path,
        patience: float = 600.0,
        wait: float = 300.0,
    ) -> None:
        require("flwr")
        self._address, self._authority = local_address(superlink), authority(certificates)
        self._superlink = superlink
        if not self._alive():
            raise ConfigError(
                "superlink", superlink, "the address of a superlink that runs: see assay federation serve"
            )
        super().__init__(settings, clients, log=log, patience=patience, wait=wait)

    def _launch(self, socket: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
        home = write_connection(self.directory / "flower", self._superlink, self._authority)
        app = bundle.write(self.directory / "app")
        command = ["flwr", "run", str(app), CONNECTION, "--stream", "--run-config", f"relay={json.dumps(str(socket))}"]
        return self.processes.start(command, quiet_environment(home), output)

    def _alive(self) -> bool:
        try:
            with sockets.create_connection(self._address, timeout=5.0):
                return True
        except OSError:
            return False


def check(reach: Reach) -> None:
    """Refuse if Flower, a local superlink's address or its certificate is missing."""
    require("flwr")
    local_address(reach.superlink or _SUPERLINK)
    if reach.certificates is None:
        raise ConfigError(
            "certificates",
            None,
            "a directory that holds ca.crt, with the engine deploy: see assay federation certificates",
        )
    authority(Path(reach.certificates))


def open_carrier(settings: Mapping[str, Any], directory: Path, reach: Reach) -> DeployCarrier:
    """The nodes of this machine's superlink; what Flower prints goes to `flower.log` in the run's folder."""
    assert reach.certificates is not None
    return DeployCarrier(
        settings,
        settings["plan"]["clients"],
        log=directory / "flower.log",
        superlink=reach.superlink or _SUPERLINK,
        certificates=Path(reach.certificates),
    )


def write_connection(home: Path, superlink: str, authority: Path) -> Path:
    """A Flower home whose one connection is to this superlink."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    entry = {"address": superlink, "root-certificates": str(authority)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in entry.items()]
    (home / "config.toml").write_text("\n".join([f"[superlink.{CONNECTION}]", *lines, "insecure = false", ""]))
    return home


def authority(certificates: Path) -> Path:
    """The certificate that the superlink's is checked against."""
    path = (certificates / "ca.crt").absolute()
    if not path.is_file():
        raise ConfigError(
            "certificates", str(certificates), "a directory that holds ca.crt: see assay federation certificates"
        )
    return path


def split_address(field: str, address: str) -> tuple[str, int]:
    """Host and port of `host:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(field, address, "host:port")
    return host.strip("[]"), int(port)


def local_address(superlink: str) -> tuple[str, int]:
    """Host and port of a superlink on this machine."""
    host, port = split_address("superlink", superlink)
    local = host == "localhost"
    with contextlib.suppress(ValueError):
        local = local or ipaddress.ip_address(host).is_loopback
    if not local:
        raise ConfigError(
            "superlink",
            superlink,
            "an address of this machine's own, such as 127.0.0.1:9092: the rounds run next to the superlink",
        )
    return host, port
