"""The progress of a run on standard error: a live bar on a terminal or in a notebook, a line for each epoch elsewhere.

It shows released values only. What cannot be written is dropped: a run must not end because nobody reads on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from assay._util.figures import at_most
from assay.runs.callbacks import Callback

if TYPE_CHECKING:
    from assay.runs.result import Progress


@contextmanager
def progress(
    allowed: float | None, *, leader: bool = True, scored: str = "test", lines: bool | None = True
) -> Iterator[Callback]:
    """Show the progress of one run.

    Args:
        allowed: The ceiling on ε, if there is one.
        leader: Whether this process is the one of several that shows anything.
        scored: On which records accuracy is measured (`assay.runs.statement.scored`).
        lines: Where there is no terminal: True prints a line for each epoch, None nothing. False shows nothing
            anywhere.

    Yields:
        A callback that shows the progress.
    """
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    live = console.is_terminal or console.is_jupyter
    if not leader or lines is False or not (live or lines):
        yield Callback()
        return
    if not live:
        yield _Lines(console, allowed, scored)
        return
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console) as bar:
        yield _Bar(bar, allowed, scored)


class _Lines(Callback):
    """A line for each epoch."""

    def __init__(self, console: Console, allowed: float | None, scored: str) -> None:
        self._console, self._allowed, self._scored = console, allowed, scored

    def on_step(self, progress: Progress) -> None:
        if progress.epoch_end:
            line = f"step {progress.step}/{progress.steps}  {_facts(progress, self._allowed, self._scored)}"
            with suppress(OSError, ValueError):
                self._console.print(line, soft_wrap=True)


class _Bar(Callback):
    """A bar that every step moves."""

    def __init__(self, bar: Bar, allowed: float | None, scored: str) -> None:
        self._bar, self._allowed, self._scored = bar, allowed, scored
        self._task = bar.add_task("train", total=None, facts="")

    def on_step(self, progress: Progress) -> None:
        facts = _facts(progress, self._allowed, self._scored)
        with suppress(OSError, ValueError):
            self._bar.update(self._task, total=progress.steps, completed=progress.step, facts=facts)


def _facts(now: Progress, allowed: float | None, scored: str) -> str:
    facts = [f"epoch {now.epoch:.1f}"]
    if now.loss is not None:
        facts.append(f"loss {now.loss:.3f}")
    if now.accuracy is not None:
        facts.append(f"{called(scored)} {now.accuracy:.2%}")
    if now.epsilon is not None:
        spent = "∞" if math.isinf(now.epsilon) else at_most(now.epsilon)
        facts.append(f"ε {spent}" + (f" of {allowed:g}" if allowed is not None else ""))
    return "  ".join(facts)


def called(scored: str) -> str:
    """The short name of an accuracy: "accuracy" alone is on test records."""
    return "accuracy" if scored == "test" else f"{scored} accuracy"
