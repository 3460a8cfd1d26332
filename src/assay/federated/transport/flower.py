"""Our end of the line: a socket to the relay inside Flower, and the processes that were started for it."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import IO, Any, Final

from assay._util import extras
from assay.errors import AssayError, ConfigError, check_above_zero
from assay.federated.transport.frames import FrameError, pack, pack_tasks, unpack

_log = logging.getLogger("assay.federated")

START_SECONDS: Final = 180.0  # Ray alone takes 25 s to start on two busy cores
_GRACE = 60.0  # how long the relay may stay silent beyond its patience
_SOCKET_LIMIT = 100  # bytes in the name of a Unix socket


class CarrierError(AssayError):
    """Flower's processes have ended. The checkpoint is whole: the run may be resumed."""


def require(extra_module: str) -> None:
    """Refuse before anything starts if Flower is not installed."""
    if find_spec("flwr") is None or find_spec(extra_module) is None:
        raise AssayError(f"this engine needs Flower, which is not installed: {extras.command('federated')}")


def quiet_environment(home: Path) -> dict[str, str]:
    """The environment for Flower's processes: a separate home, no telemetry, no update checks, no installations.

    The directory of this interpreter comes first in PATH, because Flower finds its commands by name.
    """
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }


class Processes:
    """Processes in separate groups, so that everything a process has started ends with it."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def stop(self, by_itself: float = 10.0) -> None:
        """Wait `by_itself` seconds for processes to end by themselves, then ask their groups to, then kill them."""
        self._wait(by_itself)
        for process in self.running:
            if process.poll() is None:
                _signal_group(process, signal.SIGTERM)
        self._wait(10.0)
        for process in self.running:
            _signal_group(process, signal.SIGKILL)  # also what the process left behind in its group
            process.wait()
        self.running.clear()

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class FlowerCarrier:
    """A `Carrier` over Flower. Simulation and deployment differ only in who starts the relay (`_launch`).

    Args:
        settings: What a site is opened with.
        clients: How many clients there are, numbered from 0.
        log: Gets what Flower's processes print.
        patience: How many seconds an exchange waits for answers.
        wait: How many seconds the run waits for nodes to hold every client; then it starts with those there are.
    """

    def __init__(
        self, settings: Mapping[str, Any], clients: int, *, log: Path, patience: float = 600.0, wait: float = 300.0
    ) -> None:
        if not isinstance(clients, int) or clients < 1:
            raise ConfigError("clients", clients, "a whole number above 0")
        check_above_zero("patience", patience)
        check_above_zero("wait", wait)
        self.clients, self._patience = clients, patience
        self.directory = Path(tempfile.mkdtemp(prefix="assay-"))  # mode 0700: what is in it is for this user only
        self.processes = Processes()
        self._line: Connection | None = None
        self._exchanges = 0
        self._log_path = log
        atexit.register(self.close)
        try:
            socket = self.directory / "relay"
            if len(os.fsencode(socket)) > _SOCKET_LIMIT:
                raise ConfigError(
                    "TMPDIR",
                    str(self.directory.parent),
                    "a directory with a shorter name, since a socket is kept in it",
                )
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output, Listener(str(socket), family="AF_UNIX") as listener:
                starter = self._launch(socket, output)
                self._line = self._accept(listener, starter)
            start = {"clients": clients, "settings": dict(settings), "patience": patience, "wait": wait}
            self._line.send_bytes(pack(start))
            ready = self._receive(wait + _GRACE + START_SECONDS)
            if not ready["ready"]:
                raise CarrierError(f"no node has joined within {wait:g} s")
            if ready["missing"]:
                _log.warning("no node holds these clients: %s", _few(ready["missing"]))
        except BaseException:
            self.close()
            raise

    def _launch(self, socket: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start what makes a relay connect to the socket. Starting failed if the process returned ends before that."""
        raise NotImplementedError

    def _alive(self) -> bool:
        """Whether the relay still has a chance to answer."""
        return True

    def exchange(self, tasks: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """See `Carrier`.

        Raises:
            CarrierError: Flower's processes have ended.
        """
        strangers = [client for client in tasks if not 0 <= client < self.clients]
        if strangers:
            raise ConfigError("clients", strangers, f"numbers from 0 to {self.clients - 1}")
        self._exchanges += 1
        number = self._exchanges
        frame = pack_tasks(tasks, {"exchange": number})
        # In a thread: the relay may still be sending answers of an exchange that we left early. We would wait for each
        # other.
        threading.Thread(target=_send, args=(self._open_line(), frame), daemon=True).start()
        while True:
            header = self._receive(self._patience + _GRACE)
            if header["exchange"] != number:
                continue  # of an exchange whose end was not waited for
            if "answer" in header:
                yield header["answer"], header["blob"]
            else:
                if header["missing"]:
                    _log.warning("no answer from clients %s; see %s", _few(header["missing"]), self._log_path)
                return

    def close(self) -> None:
        if self._line is not None:
            self._line.close()  # the relay ends when its line does, and Flower's run with it
            self._line = None
        self.processes.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.close)

    def _accept(self, listener: Listener, starter: subprocess.Popen[bytes]) -> Connection:
        deadline = time.monotonic() + START_SECONDS
        waiting = listener._listener._socket  # type: ignore[attr-defined]  # the only way to wait with a limit
        waiting.settimeout(0.5)
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                return listener.accept()
            if starter.poll() is not None:
                break
        raise CarrierError(f"Flower did not start; see {self._log_path}")

    def _receive(self, seconds: float) -> dict[str, Any]:
        line, deadline = self._open_line(), time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if not line.poll(2.0):
                    if not self._alive():
                        break
                    continue
                header, blobs = unpack(line.recv_bytes())
            except (EOFError, OSError, FrameError) as error:
                raise self._gone() from error
            if "warning" in header:
                _log.warning("%s", header["warning"])
                continue
            return header | ({"blob": blobs[0]} if blobs else {})
        raise self._gone()

    def _open_line(self) -> Connection:
        if self._line is None:
            raise CarrierError("the carrier is closed")
        return self._line

    def _gone(self) -> CarrierError:
        return CarrierError(
            f"Flower's part of the run has ended; see {self._log_path}."
            " Nothing that was checkpointed is lost: resume the run"
        )


def _send(line: Connection, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # whoever receives finds out
        line.send_bytes(frame)


def _few(clients: Sequence[int], most: int = 10) -> str:
    return ", ".join(map(str, clients[:most])) + (f" and {len(clients) - most} more" if len(clients) > most else "")
