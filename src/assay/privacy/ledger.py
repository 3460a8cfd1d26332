"""The ledger: what has been spent, written down before it is spent.

An entry is appended and flushed to disk before the step it pays for moves a parameter, so a run killed at any moment
never shows less than it spent. Steps are charged ahead in blocks (the flush costs more than a small step); a run that
ends or pauses in an orderly way settles the last block to what was really taken, and a killed one keeps it.

A release made once, before the steps, is a segment of its own, marked `once`; making it again costs another one.

A *segment* is a stretch of steps drawn from one source of randomness. A process that resumes with fresh randomness
begins a new segment: the steps of the old one that were lost stay charged. A resumed run with a fixed seed repeats the
very same steps with the very same noise and goes on in its segment: repeating an answer releases nothing new.

The file is JSON lines: a header, then entries {"segment": …, "steps": …, "event": …} (with "once": true where that is so);
the last entry of a segment counts. A torn last line was never paid for (its step did not happen) and is ignored; any other damage is an error,
never a smaller ε.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, NonPrivateDpEvent

from assay.errors import AssayError, BudgetSpentError
from assay.files import sync_folder
from assay.privacy import events
from assay.privacy.accounting import Adjacency, epsilon
from assay.privacy.calibrate import most_steps

SCHEMA = "assay.ledger/1"


class LedgerError(AssayError):
    """The ledger's file is damaged or belongs to another run."""


@dataclass(slots=True)
class _Segment:
    steps: int
    event: DpEvent
    once: bool = False


def _unknown(_steps: int) -> DpEvent:
    """What steps cost before a segment is opened."""
    return NonPrivateDpEvent()


class Ledger:
    """Charges steps against a ceiling. `path=None` keeps it in memory only (then nothing survives the process)."""

    def __init__(self, path: Path | None, *, delta: float, adjacency: Adjacency, ceiling: float | None) -> None:
        self.path, self.delta, self.adjacency, self.ceiling = path, delta, adjacency, ceiling
        self._segments: list[_Segment] = []
        self._cost: Callable[[int], DpEvent] = _unknown
        self._cleared = self._floor = 0
        self._header = {"schema": SCHEMA, "delta": delta, "adjacency": adjacency.value, "ceiling": ceiling}
        if path is not None and path.exists():
            self._read(path)
        elif path is not None:
            self._append(self._header)
            sync_folder(path.parent)

    def copied(self) -> Ledger:
        """The same charges in memory only, for a process that must know what is spent while another one keeps the file."""
        copy = Ledger(None, delta=self.delta, adjacency=self.adjacency, ceiling=self.ceiling)
        copy._segments = [_Segment(s.steps, s.event, s.once) for s in self._segments]
        return copy

    def begin(self, cost: Callable[[int], DpEvent], wanted: int, *, repeat: bool = False) -> int:
        """Open a segment whose first n steps cost `cost(n)`; returns how many of `wanted` steps the ceiling allows.

        `repeat` goes on in the last segment instead: for a run that repeats the very same draws.
        """
        if not (repeat and self._segments and not self._segments[-1].once):
            self._segments.append(_Segment(0, ComposedDpEvent([])))
        self._floor = self.charged  # a killed process may have taken every step that it had paid for
        self._cost = cost
        self._cleared = max(0, wanted)
        if self._cleared and self.ceiling is not None and self._with(cost(wanted)) > self.ceiling:
            self._cleared = most_steps(lambda n: self._with(cost(n)), self.ceiling, limit=wanted)
        return self._cleared

    def pay(self, event: DpEvent, *, repeat: bool = False) -> None:
        """Charge a release that is made once, before any step; durable when this returns. Refuses to pass the ceiling.

        `repeat` is for a release with the very same draws as one that was charged: it is not charged again.
        """
        if repeat and self.paid(event):
            return
        spent = epsilon(ComposedDpEvent([self.event(), event]), self.delta, self.adjacency)
        if self.ceiling is not None and spent > self.ceiling:
            raise BudgetSpentError(
                f"the budget is spent: a release before training would make it ε = {spent:.4g} of {self.ceiling} (δ = {self.delta:g})"
            )
        line = {"segment": len(self._segments), "steps": 0, "event": events.to_json(event), "once": True}
        self._append(line)
        self._segments.append(_Segment(0, event, once=True))

    def paid(self, event: DpEvent) -> bool:
        """Whether a release of this cost was charged."""
        return any(s.once and s.event == event for s in self._segments)

    @property
    def charged(self) -> int:
        """Steps charged in the current segment."""
        return self._segments[-1].steps

    @property
    def total_steps(self) -> int:
        """Steps charged in all segments: those that were lost with a killed process included."""
        return sum(s.steps for s in self._segments)

    def charge(self, steps: int) -> None:
        """Pay for the current segment up to `steps` steps; durable when this returns. Refuses to pass the ceiling."""
        if steps > self._cleared:
            raise BudgetSpentError(
                f"the budget is spent: the ceiling of ε = {self.ceiling} (δ = {self.delta:g}) allows {self._cleared} steps here, not {steps}"
            )
        self._write(steps)

    def settle(self, steps: int) -> None:
        """Take back what was charged ahead: only `steps` steps of the current segment happened, and no other will
        before the next charge.
        """
        if steps > self.charged:
            raise LedgerError(f"{steps} steps were taken but only {self.charged} charged")
        if max(steps, self._floor) < self.charged:
            self._write(max(steps, self._floor))

    def event(self) -> DpEvent:
        """Everything charged so far."""
        return ComposedDpEvent([s.event for s in self._segments])

    def epsilon(self) -> float:
        """The verified ε of everything charged so far."""
        return self._bounded(self.event(), self.charged) if self._segments else 0.0

    def epsilon_after(self, steps: int) -> float:
        """The verified ε when the current segment had this many steps: for the history of a run, where steps paid for ahead do not count."""
        return self._bounded(ComposedDpEvent([*(s.event for s in self._segments[:-1]), self._event(steps)]), steps)

    def _bounded(self, event: DpEvent, steps: int) -> float:
        """ε of an event whose current segment has this many steps.

        Fewer steps never cost more, but two bounds computed apart may differ by half a percent either way: the bound that
        cleared the segment holds for every shorter one too.
        """
        spent = epsilon(event, self.delta, self.adjacency)
        return min(spent, self._with(self._cost(self._cleared))) if 0 < steps <= self._cleared else spent

    def _event(self, steps: int) -> DpEvent:
        return self._cost(steps) if steps else ComposedDpEvent([])

    def _with(self, current: DpEvent) -> float:
        earlier = [s.event for s in self._segments[:-1]]
        return epsilon(ComposedDpEvent([*earlier, current]), self.delta, self.adjacency)

    def _write(self, steps: int) -> None:
        event = self._event(steps)
        self._append({"segment": len(self._segments) - 1, "steps": steps, "event": events.to_json(event)})
        self._segments[-1] = _Segment(steps, event)

    def _append(self, line: dict[str, Any]) -> None:
        if self.path is None:
            return
        with self.path.open("ab") as file:
            file.write((json.dumps(line) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path) -> None:
        raw = path.read_bytes()
        whole, _, torn = raw.rpartition(b"\n")
        if torn:
            with path.open(
                "rb+"
            ) as file:  # the torn line's step never happened; the next entry must start a line of its own
                file.truncate(len(raw) - len(torn))
                os.fsync(file.fileno())
        lines = whole.split(b"\n") if whole else []
        try:
            parsed = [json.loads(line) for line in lines]
        except ValueError as error:
            raise LedgerError(f"{path} is damaged: {error}; without it the ε of this run is not known") from error
        if not parsed:
            self._append(self._header)
            return
        if parsed[0] != self._header:
            raise LedgerError(f"{path} belongs to another run: it says {parsed[0]}, expected {self._header}")
        for entry in parsed[1:]:
            segment, steps, event = self._entry(path, entry)
            while len(self._segments) <= segment:
                self._segments.append(_Segment(0, ComposedDpEvent([])))
            if self._segments[segment].once:
                raise LedgerError(f"{path} is damaged: segment {segment} was charged once and for all, and again")
            self._segments[segment] = _Segment(steps, event, once=entry.get("once") is True)

    def _entry(self, path: Path, entry: dict[str, Any]) -> tuple[int, int, DpEvent]:
        try:
            segment, steps, event = int(entry["segment"]), int(entry["steps"]), events.from_json(entry["event"])
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(
                f"{path} is damaged: {entry} is not an entry ({error}); without it ε is not known"
            ) from error
        if not 0 <= segment <= len(self._segments) or steps < 0:
            raise LedgerError(
                f"{path} is damaged: segment {segment} with {steps} steps cannot follow what is before it"
            )
        return segment, steps, event
