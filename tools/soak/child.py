"""One command in a forked process, with something that goes wrong at a moment that the parent chose.

The parent has imported everything, so that a command takes as long as its work. In the child nothing of Assay is
replaced, only the system around it: a durable call that kills the process or finds no room, a limit on the size of
files, messages that arrive garbled.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.cli import main
from assay.federated.transport.serial import Serial
from assay.training.step import PrivateStep

CRASHED = 99  # the exit code of a command that ended with an exception of its own
INTERRUPTED = 130  # as a shell says it of Ctrl-C
SECONDS = 60  # no command here takes as long


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended.

    Attributes:
        code: Its exit code, or minus the signal that killed it.
        out: What it printed, on both streams.
        steps: How many steps had released their noise when it ended.
    """

    code: int
    out: str
    steps: int


Trouble = Callable[[], None]
"""What is done in the child before the command begins."""


def run(folder: Path, *words: object, trouble: Trouble | None = None, after: float | None = None, by: int = 9) -> Ended:
    """Run a command of Assay in a process of its own.

    Args:
        folder: Where it runs, and where its output is kept.
        words: The command.
        trouble: What goes wrong in the child.
        after: Seconds after which the parent sends a signal; None for never.
        by: The signal.
    """
    said, steps = folder / "said.txt", folder / "steps"
    steps.write_bytes(b"")
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _command(folder, said, steps, [str(word) for word in words], trouble)
    begun = time.monotonic()
    sent = False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        now = time.monotonic() - begun
        if after is not None and now >= after and not sent:
            os.kill(child, by)
            sent = True
        if now > SECONDS:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Ended(code=CRASHED, out=f"no end after {SECONDS} seconds\n{_text(said)}", steps=steps.stat().st_size)
        time.sleep(0.002)
    return Ended(code=os.waitstatus_to_exitcode(status), out=_text(said), steps=steps.stat().st_size)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _command(folder: Path, said: Path, steps: Path, words: list[str], trouble: Trouble | None) -> None:
    """The child: never returns."""
    code = CRASHED
    try:
        os.chdir(folder)
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
        _count_steps(steps)
        if trouble is not None:
            trouble()
        sys.argv = ["assay", *words]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:  # before or after the part of a command that answers it
        code = INTERRUPTED
    except BaseException:  # what a user would see as a traceback
        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _count_steps(path: Path) -> None:
    """Write a byte after every step that has released: the parent compares with what the ledger says."""
    file, backward = os.open(path, os.O_WRONLY | os.O_APPEND), PrivateStep.backward

    def counted(self: PrivateStep, losses: Any) -> bool:
        done = backward(self, losses)
        if done:
            with contextlib.suppress(OSError):
                os.write(file, b".")
        return done

    PrivateStep.backward = counted  # type: ignore[method-assign]


def at_durable_call(number: int, what: Callable[[], None], *, before: bool) -> Trouble:
    """Do something at the n-th call that makes a file durable (fsync, rename, link), before or after that call."""

    def install() -> None:
        left = [number]
        for owner, name in ((os, "fsync"), (os, "replace"), (os, "rename"), (os, "link")):
            _intercept(owner, name, left, what, before)

    return install


def _intercept(owner: Any, name: str, left: list[int], what: Callable[[], None], before: bool) -> None:
    real = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and before:
            what()
        found = real(*args, **kwargs)
        if left[0] == 0 and not before:
            what()
        return found

    setattr(owner, name, call)


def die() -> None:
    """As `kill -9` would."""
    os.kill(os.getpid(), signal.SIGKILL)


def no_room() -> None:
    """As a full disk would."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken_disk() -> None:
    """As a failing disk would."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def small_files(most: int) -> Trouble:
    """No file may be larger: writes fail as on a full disk."""

    def install() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    return install


def garbled(seed: int, share: float) -> Trouble:
    """Messages between server and clients arrive changed, twice or not at all."""

    def install() -> None:
        coins, exchange = random.Random(seed), Serial.exchange

        def carried(self: Serial, tasks: Any) -> Iterator[tuple[int, bytes]]:
            for client, answer in exchange(self, tasks):
                if coins.random() >= share:
                    yield client, answer
                    continue
                for _ in range(coins.choice((0, 1, 2))):
                    yield client, mangled(answer, coins)

        Serial.exchange = carried  # type: ignore[method-assign]

    return install


def mangled(data: bytes, coins: random.Random) -> bytes:
    """Other bytes, in one of the ways in which files and messages are damaged."""
    at = coins.randrange(len(data) + 1)
    how = coins.randrange(7)
    if how == 0 and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ 1 << coins.randrange(8)]) + data[at + 1 :]
    if how == 1:
        return data[:at]
    if how == 2:
        return data[:at] + b"\0" * min(64, len(data) - at) + data[at + 64 :]
    if how == 3:
        return data[:at] + coins.randbytes(coins.randrange(1, 20)) + data[at:]
    if how == 4:
        return coins.randbytes(coins.randrange(200))
    if how == 5:
        other = coins.randrange(len(data) + 1)
        return data[: min(at, other)] + data[max(at, other) :]
    return coins.choice(
        (b"", b"[]", b"null", b"{}", b'{"schema": 3}', b"[[[[", b'"text"', b"1e999", b"\xff\xfe", data + data)
    )
