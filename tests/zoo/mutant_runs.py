"""Bugs around the ledger and the files of a run, of the changelog's "ε came out too small"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.accounting.ledger import Ledger
from assay.audit.storage import write_audit
from assay.runs.directory import RunDirectory
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
