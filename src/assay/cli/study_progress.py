"""The progress of a study: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from assay.cli.output import console

if TYPE_CHECKING:
    from assay.studies.directory import Study
    from assay.studies.grid import Run
    from assay.studies.running import Listener


@contextmanager
def listening(study: Study, left: int | None = None) -> Iterator[Listener]:
    """Bars on a terminal; elsewhere a line when a run starts and one when it ends. Both go to standard error.

    Args:
        study: The study.
        left: How many runs are left; None for the unfinished ones.

    Yields:
        A listener that shows the progress.
    """
    lines = console(stderr=True)
    total = len(list(study.grid.runs()))
    done = total - (len(study.unfinished()) if left is None else left)
    if not lines.is_terminal:
        yield _Lines(study, lines, done, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[facts]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console(stderr=True, wrap=True)) as runs:
        yield Bars(study, runs, done, total)


class _Lines:
    def __init__(self, study: Study, lines: Console, done: int, total: int) -> None:
        self.study, self.console, self.done, self.total = study, lines, done, total
        lines.print(f"{total} runs, {done} done")

    def on_start(self, run: Run) -> None:
        directory = self.study.of(run)
        again = ", resumed" if directory.spec.exists() and not directory.finished else ""
        self.console.print(f"started: {run.name}{again}")

    def on_reuse(self, run: Run, study: str) -> None:
        self.done += 1
        self.console.print(f"[{self.done}/{self.total}] {_taken(self.study, run, study)}")

    def on_line(self, run: Run, line: str) -> None:
        """Print nothing: a line for each epoch of each run would be too many."""

    def on_end(self, run: Run, seconds: float, failure: str | None) -> None:
        self.done += failure is None
        told = _told(self.study, run) if failure is None else f"failed: {failure}"
        self.console.print(f"[{self.done}/{self.total}] {run.name}: {told} ({seconds:.0f} s)")


class Bars:
    """Live bars: the study, and every run at work."""

    def __init__(self, study: Study, bars: Progress, done: int, total: int) -> None:
        self.study, self.bars, self.done, self.total = study, bars, done, total
        self.tasks: dict[str, TaskID] = {}
        self.lock = threading.Lock()
        self.whole = bars.add_task("[bold]study", total=total, completed=done, facts=self._count())

    def _count(self) -> str:
        return f"{self.done} of {self.total} runs"

    def on_start(self, run: Run) -> None:
        with self.lock:
            self.tasks[run.name] = self.bars.add_task(escape(run.name), total=None, facts="")

    def on_reuse(self, run: Run, study: str) -> None:
        with self.lock:
            self.done += 1
            self.bars.update(self.whole, completed=self.done, facts=self._count())
        self.bars.console.print(_taken(self.study, run, study), markup=False, highlight=False)

    def on_line(self, run: Run, line: str) -> None:
        words = line.split()
        with self.lock:
            if len(words) > 1 and words[0] == "step" and words[1].replace("/", "").isdigit():
                step, _, steps = words[1].partition("/")
                facts = escape(" ".join(words[2:]))
                self.bars.update(self.tasks[run.name], completed=int(step), total=int(steps), facts=facts)

    def on_end(self, run: Run, seconds: float, failure: str | None) -> None:
        with self.lock:
            self.bars.remove_task(self.tasks.pop(run.name))
            self.done += failure is None
            self.bars.update(self.whole, completed=self.done, facts=self._count())
        told = _told(self.study, run) if failure is None else f"failed: {failure}"
        self.bars.console.print(f"{run.name}: {told} ({seconds:.0f} s)", markup=False, highlight=False)


def _taken(study: Study, run: Run, source: str) -> str:
    return f"taken from {source}: {run.name}: {_told(study, run)}"


def _told(study: Study, run: Run) -> str:
    from assay._util.figures import shown
    from assay.runs.callbacks import called
    from assay.runs.statement import scored

    record = study.of(run).read_record()
    accuracy = record["result"]["test_accuracy"]
    measured = "" if accuracy is None else f"{called(scored(record))} {accuracy:.2%}, "
    spent = ", the budget ended it early" if record["status"] == "budget-spent" else ""
    return f"{measured}ε verified {shown(record['epsilon']['verified'])}{spent}"
