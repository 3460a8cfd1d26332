"""Train the runs of a study that are not finished, several at a time.

Each run is a process with one thread, so that results do not depend on how many run at the same time. A new run starts
with the command of its study, an unfinished one continues with `assay resume`, and a finished one is never touched. A
run that another study has finished with the same options is copied. Finished runs may be attacked afterwards in the
same way, with `assay attack`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from assay.attacks.storage import read_attacks
from assay.errors import AssayError, ConfigError
from assay.runs.run import stop_requests
from assay.studies import twins
from assay.studies.directory import Study
from assay.studies.grid import Run, Settings, flags

_REFUSED, _BUDGET_SPENT = 2, 3  # exit codes of the command line
_KEPT_LINES = 12
# glibc returns tensors to the system at once. A quarter of a small model's step goes into asking for the same few
# megabytes again. Other systems do not read these.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}


class Listener(Protocol):
    """Told about a study's progress."""

    def on_start(self, run: Run) -> None:
        """A run begins, or continues."""

    def on_reuse(self, run: Run, study: str) -> None:
        """A run is finished without being started: another study had the same."""

    def on_line(self, run: Run, line: str) -> None:
        """A run's progress, a line for each epoch."""

    def on_end(self, run: Run, seconds: float, failure: str | None) -> None:
        """A run is finished, or has failed with this message."""


class Silent:
    """A listener that says nothing."""

    def on_start(self, run: Run) -> None:
        """Nothing."""

    def on_reuse(self, run: Run, study: str) -> None:
        """Nothing."""

    def on_line(self, run: Run, line: str) -> None:
        """Nothing."""

    def on_end(self, run: Run, seconds: float, failure: str | None) -> None:
        """Nothing."""


class UnfinishedStudyError(AssayError):
    """Runs failed, or the study was asked to stop; the same command resumes it."""


class RefusedRunError(AssayError):
    """A run's settings were refused: more runs would be too."""

    exit_code = 2


@dataclass
class _Child:
    run: Run
    process: subprocess.Popen[str]
    begun: float
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    reader: threading.Thread | None = None


def complete(study: Study, workers: int, listener: Listener, beside: Path | None = None) -> None:
    """Train the runs that are not finished.

    Args:
        study: The study.
        workers: How many run at a time.
        listener: Told about the progress.
        beside: A folder of other studies. Runs that they have finished with the same options are copied.

    Raises:
        UnfinishedStudyError: Some runs failed (the others have ended), or the study was asked to stop (SIGTERM,
            SIGINT; every run has written its checkpoint).
        RefusedRunError: A run's settings were refused.
        ConfigError: There is no worker.
    """

    def take(run: Run) -> bool:
        source = None if beside is None else twins.take(study, run, beside)
        if source is not None:
            listener.on_reuse(run, source)
        return source is not None

    _work_off(study, study.unfinished, _words, workers, listener, take)


def attack(study: Study, settings: Settings, workers: int, listener: Listener) -> None:
    """Attack finished runs that lack a result, with these options of `assay attack`, and keep the results beside them.

    Args:
        study: The study.
        settings: Options of `assay attack`.
        workers: How many run at a time.
        listener: Told about the progress.

    Raises:
        UnfinishedStudyError: As `complete`.
    """
    asked = [*flags(settings), "--save"]
    _work_off(
        study,
        lambda: unattacked(study, settings),
        lambda study, run: ["attack", str(study.of(run).path), *asked],
        workers,
        listener,
    )


def unattacked(study: Study, settings: Settings) -> list[Run]:
    """The finished runs that lack the result of an attack."""
    wanted = set(settings["attack"])
    done = [run for run in study.grid.runs() if study.of(run).finished]
    return [run for run in done if wanted - {result["attack"] for result in read_attacks(study.of(run))}]


def _work_off(
    study: Study,
    what: Callable[[], Sequence[Run]],
    words: Callable[[Study, Run], list[str]],
    workers: int,
    listener: Listener,
    spared: Callable[[Run], bool] | None = None,
) -> None:
    if workers < 1:
        raise ConfigError("workers", workers, "a whole number, 1 or above")
    with study.alone() as lock, stop_requests() as stop:
        waiting = deque(what())
        at_work: list[_Child] = []
        failed: list[str] = []
        refused = False
        try:
            while waiting or at_work:
                if stop():
                    break
                while waiting and len(at_work) < workers and not refused:
                    run = waiting.popleft()
                    if spared is not None and spared(run):
                        continue
                    at_work.append(_start(run, words(study, run), lock, listener))
                time.sleep(0.05)
                for child in [c for c in at_work if c.process.poll() is not None]:
                    at_work.remove(child)
                    failure = _end(child, listener, ended=study.of(child.run).finished)
                    if failure is not None:
                        failed.append(f"{child.run.name}: {failure}")
                        refused = refused or child.process.returncode in (_REFUSED, _BUDGET_SPENT)
                if refused and not at_work:
                    break
        finally:
            _stop(at_work)
        if at_work or (waiting and not refused):
            raise UnfinishedStudyError(f"stopped as asked; the same command resumes the study in {study.path}")
        if refused:
            raise RefusedRunError(f"no further run was started: {failed[-1]}")
        if failed:
            raise UnfinishedStudyError(
                f"{len(failed)} of {len(list(study.grid.runs()))} runs failed; the same command tries them again\n"
                + "\n".join(failed)
            )


def _words(study: Study, run: Run) -> list[str]:
    directory = study.of(run)
    if directory.spec.exists():
        return ["resume", str(directory.path)]
    for leftover in directory.path.glob(".run.json.*.part"):  # killed before it had begun
        leftover.unlink()
    return [study.grid.command, *flags({**run.settings, **run.randomness}), "--out", str(directory.path)]


def _start(run: Run, words: list[str], lock: int | None, listener: Listener) -> _Child:
    process = subprocess.Popen(
        [sys.executable, "-m", "assay.cli.worker", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"} | _KEEP_MEMORY,
        pass_fds=() if lock is None else (lock,),
        start_new_session=True,  # an interrupt at the keyboard reaches the study, which stops its runs in order
    )
    child = _Child(run, process, time.monotonic())
    assert process.stderr is not None
    child.reader = threading.Thread(target=_listen, args=(child, process.stderr, listener), daemon=True)
    listener.on_start(run)
    child.reader.start()
    return child


def _listen(child: _Child, stream: IO[str], listener: Listener) -> None:
    for line in stream:
        child.lines.append(line.rstrip())
        listener.on_line(child.run, line.rstrip())


def _end(child: _Child, listener: Listener, *, ended: bool) -> str | None:
    """Take leave of a process that has ended; its message if it failed.

    A run that its own budget ended early is finished; one that the budget of its records refused never began.
    """
    assert child.reader is not None
    child.reader.join()
    for pipe in (child.process.stdin, child.process.stderr):
        if pipe is not None:
            pipe.close()
    code = child.process.returncode
    failure = None if code == 0 or (code == _BUDGET_SPENT and ended) else _message(child.lines, code)
    listener.on_end(child.run, time.monotonic() - child.begun, failure)
    return failure


def _message(lines: Iterable[str], code: int) -> str:
    if code < 0:
        return f"killed by signal {-code}"
    told = list(lines)
    errors = [i for i, line in enumerate(told) if line.startswith("error:")]
    return " ".join(told[errors[-1] :]).removeprefix("error: ") if errors else "\n".join(told) or f"ended with {code}"


def _stop(children: list[_Child]) -> None:
    for child in children:
        child.process.terminate()
    for child in children:
        child.process.wait()
        if child.reader is not None:
            child.reader.join()
