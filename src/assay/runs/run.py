"""One run, from its start or its checkpoint to its files: the same for every kind of run.

A run opens its ledger, locks its directory, keeps its history, writes checkpoints, tells callbacks, stops when it is
asked to, and writes record, statement and model. Its `Course` says how it advances by one step or one round.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from assay.accounting.ledger import Ledger
from assay.data.records import Records
from assay.data.task import Task
from assay.distributed.world import ALONE, World
from assay.errors import AssayError
from assay.runs import checkpoint, schema
from assay.runs.budgeted import FIELD, Lease
from assay.runs.callbacks import Callback, Callbacks
from assay.runs.course import Begin, Saved
from assay.runs.directory import RunDirectory
from assay.runs.metrics import measured, outputs_of, recalls
from assay.runs.record import Priced, build_record, number
from assay.runs.result import InterruptedRunError, Progress, Result, evaluate, write_result

_LOG = logging.getLogger("assay")


def steps_covered(state: Mapping[str, Any]) -> int:
    """How many charged steps or rounds are behind a checkpoint. The ledger must hold as many.

    Args:
        state: The checkpoint's JSON.

    Returns:
        Their number.
    """
    return int(state["charged"] if "charged" in state else state["step"])


class Run:
    """One run. `go` takes it to its end.

    Where the loop is somebody else's (`assay.integrations`), that loop calls `follow` after every advance and `finish`
    at the end, inside `with run:`.
    """

    def __init__(
        self,
        begin: Begin,
        *,
        plan: Priced,
        training: Mapping[str, Any],
        names: Mapping[str, Any],
        test: Records | None = None,
        directory: RunDirectory | None = None,
        callbacks: Iterable[Callback] = (),
        ranks: World = ALONE,
        lease: Lease | None = None,
        saved: Saved | None = None,
    ) -> None:
        """Open the ledger and begin, or continue from the checkpoint in `directory`.

        Args:
            begin: Makes the course.
            plan: Everything that decides ε.
            training: The settings as the record shows them.
            names: Describes model and data in the record.
            test: Records to measure accuracy on. They are not protected.
            directory: Where the run is written, if anywhere.
            callbacks: Told about the released progress; they may end the run.
            ranks: The processes that train together.
            lease: Its part in a budget, if it has one. It is reserved here.
            saved: A checkpoint that the owner of the loop kept, in place of one in `directory`.
        """
        if not ranks.leader:  # only the leader writes and shows
            directory, callbacks = None, ()
        self._world, self._plan, self._directory = ranks, plan, directory
        self._training, self._names, self._test, self._lease = training, names, test, lease
        self._callbacks = Callbacks(callbacks)
        self._history: list[dict[str, Any]] = []
        self._seconds, self._stopped = 0.0, False
        self._digest: str | None = None
        opened: list[Ledger] = []  # by the leader, whose errors must reach the others
        ranks.once(lambda: opened.append(_ledger(plan, directory)))
        self._ledger = opened[0] if opened else _ledger(plan, None)
        with ExitStack() as undo:  # an error here leaves model and ledger to others
            undo.callback(self._ledger.close)
            kept = ranks.once(self._lock)
            saved = kept if saved is None else saved
            if lease is not None:
                self._ledger.covers = ranks.once(lambda: lease.begin(plan, directory, self._ledger)).covers
                self._ledger.budget = lease.id
            if (columns := getattr(plan, "columns", None)) is not None:
                # before anything can fail and give the reservation back: this was released already
                ranks.once(lambda: self._ledger.pay_once(columns.event()))
            if lease is not None:
                undo.push(self._give_back)
            if saved is not None:
                state = saved[1]
                ranks.once(lambda: self._ledger.check_covers(steps_covered(state)))
                self._history, self._seconds = state["history"], state["seconds"]
            self.course = begin(self._ledger, directory=directory, saved=saved)
            undo.callback(self.course.close)
            self._test = None if test is None else self.course.tested(test)
            self._begun = time.monotonic() - self._seconds
            self._undo = undo.pop_all()

    @property
    def ledger(self) -> Ledger:
        """What the run is charged to."""
        return self._ledger

    def _give_back(self, failed: object, *_: object) -> None:
        """End the reservation of a run that failed and cannot be resumed, or that has released nothing.

        Any other that did not finish keeps it, and is resumed or settled by its ledger.
        """
        if self._lease is None or failed is None or not self._world.leader:
            return
        if self._directory is None or self._ledger.is_empty:
            with suppress(AssayError, OSError):  # what failed is said, and the reservation stands
                self._lease.end(self._ledger, "failed")

    def _lock(self) -> Saved | None:
        """Lock the directory for this run; return the checkpoint in it, if there is one."""
        directory = self._directory
        if directory is None:
            self._ledger.lock()
            return None
        directory.lock(self._ledger)
        self._ledger.check_fits(self._plan.fits)
        self._digest = directory.digest()
        if not directory.checkpoint.exists():
            return None
        tensors, state = checkpoint.load(directory.checkpoint, self._digest)
        schema.check(directory.checkpoint, state, schema.checkpoint_of(directory.read_spec()), "state")
        return tensors, state

    def go(self) -> Result:
        """Run to the end of the plan or of the budget, or until a callback ends it.

        Returns:
            The model with its record and its statement; the files are written.

        Raises:
            InterruptedRunError: The process was asked to stop; a checkpoint is written.
        """
        with self:
            with stop_requests() as stop:
                for _ in self.course.advance():
                    if self.follow(stop):
                        break
            return self.finish()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: Any) -> None:
        self._undo.__exit__(*error)

    def follow(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Do what follows an advance: history, checkpoint and callbacks.

        Args:
            stop: Whether the process was asked to stop.

        Returns:
            Whether the run ends here because a callback asked for it.

        Raises:
            InterruptedRunError: The process was asked to stop; a checkpoint is written.
        """
        course = self.course
        self._seconds = time.monotonic() - self._begun
        at_end = course.ends_epoch or course.taken == course.limit
        saved = at_end or course.saves_always
        if at_end:
            self._note()
        if saved:
            self._save()
        self._tell(at_end)
        if self._world.any(stop() or self._callbacks.pause) and self._ends(saved):
            self.end_early()
            return True
        return False

    def finish(self) -> Result:
        """Write record, statement and model, close the run, and tell the callbacks.

        Returns:
            The model with its record and its statement.
        """
        with self._undo:
            result = self._finish()
        self._callbacks.end(result)
        return result

    def state(self) -> Saved:
        """What a later run takes as `saved`: the course's state and the run's own."""
        tensors, state = self.course.state()
        return tensors, {**state, "history": self._history, "seconds": self._seconds}

    def _ends(self, saved: bool) -> bool:
        """Whether a callback ends the run before its last step.

        Writes a checkpoint unless this step is `saved`. Raises what a callback has raised, and `InterruptedRunError`
        if the process was asked to stop.
        """
        course = self.course
        failed, ended = (self._world.any(flag) for flag in (self._callbacks.error is not None, self._callbacks.stop))
        if course.taken == course.limit and not failed:
            return False
        if not saved:
            course.settle()
            self._save()
        if self._callbacks.error is not None:
            raise self._callbacks.error
        if ended and not failed:
            return True
        kept = f", checkpoint written; resume with: {self._directory.resume_command}" if self._directory else ""
        raise InterruptedRunError(f"stopped after {course.word} {course.taken} of {course.limit} as asked{kept}")

    def end_early(self) -> None:
        """End the run here, as a callback asks, with the ε of all steps (`assay.runs.callbacks` says why)."""
        self.course.charge_rest()
        self._stopped = True
        if not self._history or self._history[-1]["step"] != self.course.taken:
            self._note()
            self._save()
        self._history[-1]["epsilon"] = number(self._world.once(self.course.epsilon))

    def _settled(self) -> dict[str, Any]:
        """What the record says of the run's budget, after what is left of its reservation was given back."""
        return {} if self._lease is None else {FIELD: self._lease.end(self._ledger)}

    def _note(self) -> None:
        """Add an entry to the history."""
        course = self.course
        course.settle()
        accuracy, test_loss = self._evaluate()
        self._history.append(
            {
                "epoch": round(course.epoch, 2),
                "step": course.taken,
                "epsilon": number(self._world.once(course.epsilon_taken)),
                "train_loss": course.train_loss,
                "test_accuracy": accuracy,
                "test_loss": number(test_loss),  # published noise can make it infinite
                **course.note(),
            }
        )

    def _tell(self, at_end: bool) -> None:
        last = self._history[-1] if self._history else {}
        now = Progress(
            step=self.course.taken,
            steps=self.course.limit,
            epoch=self.course.epoch,
            loss=last.get("train_loss") if at_end else self.course.train_loss,
            epsilon=float(last["epsilon"]) if last else None,
            accuracy=last.get("test_accuracy"),
            epoch_end=at_end,
        )
        self._callbacks.tell_step(now)
        if at_end and self._callbacks.want_epochs:
            with self.course.released_model() as model, torch.no_grad():
                self._callbacks.tell_epoch(now, model)

    def _save(self) -> None:
        if self.course.saves_itself:
            return
        tensors, state = self.state()
        if self._directory is not None:
            checkpoint.save(self._directory.checkpoint, tensors, state, self._digest)

    def _evaluate(self) -> tuple[float | None, float | None]:
        if self._test is None:
            return None, None
        with self.course.released_model() as model, torch.no_grad():
            return evaluate(model, self._test, self.course.loss)

    def _last_result(self) -> tuple[float | None, float | None]:
        if not self._history:
            return self._evaluate()
        loss = self._history[-1]["test_loss"]
        return self._history[-1]["test_accuracy"], None if loss is None else float(loss)

    def _figures(self) -> tuple[dict[str, float | None], list[float | None]]:
        """Every figure of the run's task on the test records, in a separate pass, and the recall of each class."""
        if self._test is None:
            return {}, []
        task = self._names.get("task")
        with self.course.released_model() as model:
            found = outputs_of(model, self._test, None if task is None else Task.from_json(task))
        return ({}, []) if found is None else (measured(*found), recalls(*found))

    def _finish(self) -> Result:
        course = self.course
        course.settle()
        accuracy, test_loss = self._last_result()
        figures, by_class = self._figures()
        if accuracy is None:
            accuracy = figures.get("test_accuracy")
        record = self._world.once(
            lambda: (
                build_record(
                    plan=self._plan,
                    ledger=self._ledger,
                    facts=course.facts(self._names, stopped=self._stopped),
                    names=self._names,
                    training=self._training,
                    steps=course.taken,
                    stopped=self._stopped,
                    history=self._history,
                    result={**figures, "test_accuracy": accuracy, "test_loss": test_loss},
                    seconds=self._seconds,
                )
                | {"recalls": by_class}
                | self._settled()
            )
        )
        model, tensors, left_out = course.finish()
        if left_out and self._world.leader:
            said = "%d gradients or answers were not finite and were left out; this count is not private"
            _LOG.warning(said, left_out)
        return write_result(model, record, self._directory, left_out, tensors)


def _ledger(plan: Priced, directory: RunDirectory | None) -> Ledger:
    terms: dict[str, Any] = {"delta": plan.delta, "adjacency": plan.adjacency, "ceiling": plan.epsilon_limit}
    return Ledger(None, **terms) if directory is None else directory.open_ledger(**terms)


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """SIGTERM and SIGINT ask for a checkpoint and an orderly end, after the step at hand. A second one ends at once."""
    asked = threading.Event()
    kept: Sequence[tuple[int, Any]] = []
    if threading.current_thread() is threading.main_thread():

        def ask(number: int, _frame: Any) -> None:
            asked.set()
            signal.signal(number, signal.SIG_DFL)

        kept = [(number, signal.signal(number, ask)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        yield asked.is_set
    finally:
        for number, handler in kept:
            signal.signal(number, handler)
