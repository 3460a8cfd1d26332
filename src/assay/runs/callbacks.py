"""Callbacks: your code, which sees a run's progress and may end it.

    class Patience(assay.Callback):
        def on_epoch(self, progress, model):
            return progress.accuracy is not None and progress.accuracy > 0.95   # True ends the run

    assay.fit(model, train, plan=plan, test=test, callbacks=[Patience()])

A callback sees released values only, so it costs no privacy. Nor does it save any: when it ends a run, that moment
depends on what was released. An ε computed for the steps taken so far would be too small (Rogers, Roth, Ullman and
Vadhan, "Privacy odometers and filters: pay-as-you-go composition", 2016, arXiv:1605.08294). The ε of all steps that the
run could have taken holds, because ending early is post-processing of them. So the ledger is charged for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

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
