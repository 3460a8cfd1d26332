"""Callbacks: your code, which sees a run's progress and may end it.

    class Patience(assay.Callback):
        def on_epoch(self, progress, model):
            return progress.accuracy is not None and progress.accuracy > 0.95   # True ends the run

    assay.fit(model, train, plan=plan, test=test, callbacks=[Patience()])

A callback sees released values only, so it costs no privacy. Nor does it save any: when it ends a run, that moment
depends on what was released. An ε computed for the steps taken so far would be too small (Rogers, Roth, Ullman and
Vadhan, "Privacy odometers and filters: pay-as-you-go composition", 2016, arXiv:1605.08294). The ε of all steps that the
run could have taken holds, because ending early is post-processing of them. So the ledger is charged for all.

The progress on standard error is a callback too: a live bar on a terminal or in a notebook, a line for each epoch
elsewhere. What cannot be written is dropped: a run must not end because nobody reads on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from assay._util.figures import at_most

if TYPE_CHECKING:
    from torch import nn

    from assay.runs.result import Progress, Result


class Callback:
    """Sees a run's progress. Override what you need; every method here does nothing.

    On several ranks callbacks are called on the leader alone. An exception in a callback ends the run with that error,
    after a checkpoint was written: `assay.resume` continues it.

    >>> class StopAtEpsilon(Callback):
    ...     def on_step(self, progress):
    ...         return progress.epsilon is not None and progress.epsilon > 0.5
    """

    def on_step(self, progress: Progress) -> bool | None:  # noqa: ARG002
        """Called after every step (every round of a federated run).

        Args:
            progress: Where the run is.

        Returns:
            True to end the run here. It then has its record, its statement and the ε of its whole plan.
        """
        return None

    def on_epoch(self, progress: Progress, model: nn.Module) -> bool | None:  # noqa: ARG002
        """Called at the end of every epoch, after `on_step`; the checkpoint of this step is written.

        Args:
            progress: Where the run is.
            model: The model as it would be released now: averaged weights if the run averages them, in eval mode,
                gradients off. It belongs to the run: copy what you want to keep. A model that is split over ranks
                (`shard`) must not be run here.

        Returns:
            True to end the run here, as for `on_step`.
        """
        return None

    def on_end(self, result: Result) -> None:
        """Called once, when a run is finished and all its files are written.

        Args:
            result: What `fit` returns.
        """


class OnStep(Callback):
    """Calls a function after every step; what it returns is what `on_step` returns."""

    def __init__(self, call: Callable[[Progress], bool | None]) -> None:
        self._call = call

    def on_step(self, progress: Progress) -> bool | None:
        """Call it."""
        return self._call(progress)


class Callbacks:
    """All callbacks of a run, called one after the other.

    Attributes:
        stop: Whether one of them has asked for the run to end.
        error: What one of them has raised; the others are not called again before the run ends with it.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._all = tuple(callbacks)
        self.stop = False
        self.error: Exception | None = None

    def tell_step(self, now: Progress) -> None:
        """Tell all of them about this step."""
        self._call(lambda callback: callback.on_step(now))

    @property
    def want_epochs(self) -> bool:
        """Whether there is anybody to tell about the end of an epoch."""
        return bool(self._all) and self.error is None

    def tell_epoch(self, now: Progress, model: nn.Module) -> None:
        """Tell all of them that an epoch is over, with the released model."""
        self._call(lambda callback: callback.on_epoch(now, model))

    def end(self, result: Result) -> None:
        """Tell all of them that the run is finished."""
        for callback in self._all:
            callback.on_end(result)

    @property
    def pause(self) -> bool:
        """Whether the run cannot simply continue."""
        return self.stop or self.error is not None

    def _call(self, method: Callable[[Callback], bool | None]) -> None:
        for callback in self._all:
            try:
                self.stop = bool(method(callback)) or self.stop
            except Exception as error:  # a user's code; the run must write its checkpoint first
                self.error = error
                return


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
