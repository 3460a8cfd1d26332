"""Bugs around the ledger and the files of a run, of the changelog's "ε came out too small"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent
from torch import nn

from assay import Plan, report
from assay.accounting import events
from assay.accounting.ledger import Ledger, Segment
from assay.audit.storage import write_audit
from assay.federated.pristine import Pristine
from assay.report.writing import Written
from assay.runs.directory import RunDirectory
from assay.runs.result import write_result
from assay.training import selection
from assay.training.step import PrivateStep

from .mutants import BelievesItsLines, ForgetsItsPath


class Unlocked(ForgetsItsPath, BelievesItsLines):
    """Charges a file that somebody else is charging (`nobody_locks` goes with it), as before there were digests."""


def nobody_locks(_file: object) -> bool:
    """Everybody is told that the file is theirs."""
    return True


class RepeatsAnything(Ledger):
    """Takes any steps on a ledger that was there for a repetition, whatever their seed and their noise."""

    def begin(self, cost, wanted, *, draws=None, start=None, origin=0):
        self.lock()
        known = self._entries[-1] if self._entries else None
        draws = draws if known is None else known.draws
        return super().begin(cost, wanted, draws=draws, start=None, origin=origin)


class ForgetsItsStart(Ledger):
    """Does not ask which model the steps of a seed began with."""

    def begin(self, cost, wanted, *, draws=None, start=None, origin=0):
        return super().begin(cost, wanted, draws=draws, start=None, origin=origin)


class BelievesItsCheckpoint(Ledger):
    """Goes on from a checkpoint that has more steps behind it than were charged."""

    def check_covers(self, steps: int) -> None:
        pass


class CountsAgain(PrivateStep):
    """The parts of a batch whose loop was left stay in the sum when the batch is drawn again."""

    _ends = False

    @property
    def _batch(self):
        return self._left

    @_batch.setter
    def _batch(self, value) -> None:
        if not self._ends and hasattr(self, "_left"):
            value.total, value.measured = self._left.total, self._left.measured
        self._left = value

    def _release(self) -> None:
        self._ends = True
        super()._release()
        self._ends = False


def publishes_figures(directory: RunDirectory, audit: Mapping[str, Any]) -> None:
    """An audit that trained on the records again goes into record and statement like any other."""
    write_audit(directory, dict(audit))


def leaves_times(_folder: Path, _nanoseconds: int) -> None:
    """Every file of a choice keeps the time at which it was written."""


class CountsAnyway:
    """Counts of the clients' labels are published without being asked for: this takes the place of `show_partition`."""

    def __get__(self, _settings: object, _kind: type | None = None) -> bool:
        return True

    def __set__(self, _settings: object, _value: bool) -> None:
        pass


def believes_its_statement(path: Path) -> str:
    """What statement.md says, whatever the ledger gives."""
    return (path / "statement.md").read_text()


class KeepsOfTheTrial:
    """A choice whose record has an entry of the trial that won, as if that had been the only one."""

    def __init__(self, entry: str) -> None:
        self.entry, self.trial, self._best_of = entry, {}, selection.best_of

    def best_of(self, splits, mean, randomness, run):
        which, best = self._best_of(splits, mean, randomness, run)
        self.trial = best.record
        return which, best

    def write(self, model, record, directory, nonfinite):
        return write_result(model, {**record, self.entry: self.trial[self.entry]}, directory, nonfinite)


def not_copied(model: nn.Module) -> nn.Module:
    """The network of a factory as it is, which may be the one of the call before."""
    return model


class LeavesItsTurn(Pristine):
    """The next client gets the model as the one before left it; only what the server sends is loaded again."""

    def fresh(self) -> nn.Module:
        return self._model


class LiftsFirst(Segment):
    """Allows all steps that are wanted while it computes how many the ceiling allows."""

    def _clear(self) -> None:
        self.allowed, ledger = self._wanted, self._ledger
        self._under = ledger.ceiling, ledger.covers, self._others()
        super()._clear()


def opens_what_is_sent(asked: Mapping[str, Any]) -> dict[str, Any]:
    """A node that opens its site as each message describes it, with its ledgers where the message says."""
    return dict(asked)


class FitsAsBefore(Plan):
    """Takes any entry that costs what one record's steps cost at the noise of the first of them."""

    def fits(self, steps: int, origin: int | None, event: DpEvent, once: bool) -> bool:
        before = self.sampler.composed_before(self.step_event, steps)
        return super().fits(steps, origin, event, once) or events.to_json(event) == events.to_json(before)


def shows_everything(directory: Path, *, out: Path) -> Written:
    """A report with figures that no ε covers, unasked."""
    return report.write(directory, out=out, uncovered=True)
