"""A federation on this machine: what an operator would type, with a port of the system's choice."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from assay.federated.transport.names import SITE_VARIABLE

HERE = Path(__file__).parent


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.2)


class Federation:
    """A superlink and nodes, each the `assay federation` command that runs it. Everything ends with `close`."""

    def __init__(self, directory: Path, nodes: int) -> None:
        self.directory, self.nodes = directory, nodes
        self.certificates = directory / "server"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.superlink = f"127.0.0.1:{probe.getsockname()[1]}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str, group: str = "federation") -> None:
        with self.log(name).open("wb") as output:
            self._running[name] = subprocess.Popen(
                self._command(*filter(None, [group]), *arguments),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def serve(self) -> None:
        self.start("serve", "serve", "--certificates", str(self.certificates), "--address", self.superlink)

    def listens(self) -> bool:
        host, port = self.superlink.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def join(self, name: str, node: int) -> None:
        self.start(
            name,
            *("join", "--superlink", self.superlink, "--certificates", str(self.certificates)),
            *("--key", str(self.key(name)), "--node", str(node), "--nodes", str(self.nodes)),
        )

    def ended(self, name: str) -> int | None:
        """The exit code of a command that has ended."""
        return self._running[name].poll()

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def printed(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")

    def kill(self, name: str) -> None:
        """kill -9 the command and what it runs, at once, so that neither can say goodbye or start the other again."""
        command = self._running.pop(name)
        below = _descendants(command.pid)
        for process in [command.pid, *below]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        command.wait()

    def close(self) -> None:
        below = [process for command in self._running.values() for process in _descendants(command.pid)]
        for command in self._running.values():
            command.terminate()
        for command in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(20)
            command.kill()
            command.wait()
        for process in below:  # by now they have ended; these are ours, by their number
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    @staticmethod
    def _command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "assay", *arguments]

    @staticmethod
    def _environment() -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
        return os.environ | {
            SITE_VARIABLE: "tests.federated.toy_site:open_site",
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
        }


def _descendants(process: int) -> list[int]:
    """Numbers of all processes below this one."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    below: dict[int, list[int]] = {}
    for line in listed.splitlines():
        child, parent = map(int, line.split())
        below.setdefault(parent, []).append(child)
    found, queue = [], [process]
    while queue:
        children = below.get(queue.pop(), [])
        found += children
        queue += children
    return found
