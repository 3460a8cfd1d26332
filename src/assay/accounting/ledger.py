"""The ledger: what has been spent, written down before it is spent.

An entry is appended and flushed to disk before the step it pays for moves a parameter, so a run killed at any moment
never shows less than it spent. Steps are charged ahead in blocks (the flush costs more than a small step); a run that
ends or pauses in an orderly way settles the last block to what was really taken, and a killed one keeps it.

A release made once, before the steps, is a segment of its own, marked `once`; making it again costs another one.

A *segment* is a stretch of steps drawn from one source of randomness. A process that resumes with fresh randomness
begins a new segment: the steps of the old one that were lost stay charged. A resumed run with a fixed seed repeats the
very same steps with the very same noise and goes on in its segment: repeating an answer releases nothing new. That it is the same
is not taken for granted: the segment has the fingerprint of its random numbers, and must cost what the run says it costs. It also has a digest of
the model that its first step saw: two models under the same noise would show their gradients' difference without any. Steps that are others under
the same seed are a new segment, with random numbers of its own (`Segment.own`).

The file is JSON lines: a header, then entries {"segment": …, "steps": …, "event": …} (with "once": true where that is so, and "draws",
the fingerprint of numbers that can be drawn again, and "start", the digest of where their first step began, if it is known, "again" where an earlier
segment has the same draws); the last entry of a segment counts. A torn last line was never paid for (its step did not
happen) and is ignored; any other damage is an error, never a smaller ε.

Who charges has the file to itself from its first charge until `close`: two that did not know of each other would each leave the other's
steps out. Reading takes no claim and changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from assay._util.files import lock, sync_folder, unlock
from assay._util.process import Unique, here
from assay.accounting import events
from assay.accounting.calibrate import most_steps
from assay.accounting.epsilon import Adjacency, epsilon
from assay.errors import AssayError, BudgetSpentError
from assay.randomness.streams import Randomness, Within

SCHEMA = "assay.ledger/1"


class LedgerError(AssayError):
    """The ledger's file is damaged or belongs to another run."""


@dataclass(slots=True)
class _Entry:
    steps: int
    event: DpEvent
    once: bool = False
    draws: str | None = None
    start: str | None = None
    again: int = 0


_NOTHING = ComposedDpEvent([])


class Segment(Unique):
    """Steps of one source of randomness, paid for one after the other (`Ledger.begin`).

    Several segments of a ledger may be open at a time: each has its own steps and its own cost, and all of them together stay within
    the ceiling.
    """

    def __init__(self, ledger: Ledger, index: int, cost: Callable[[int], DpEvent], wanted: int) -> None:
        self._ledger, self._index, self._cost = ledger, index, cost
        self._claimed = ledger._file
        self._wanted = max(0, wanted)
        self.charged = ledger._entries[index].steps
        """Steps that are paid for."""
        self._floor = self.charged  # a killed process may have taken every step that it had paid for
        self._clear()

    def own(self, randomness: Randomness) -> Randomness:
        """Random numbers for these steps: none that other steps of the ledger have had, for ε counts on noise that is drawn anew."""
        again = self._ledger._entries[self._index].again
        return Within(randomness, f"again {again}") if again else randomness

    def _clear(self) -> None:
        """How many of the steps that are wanted the ceiling allows, beside all that others are charged."""
        ceiling, others = self._ledger.ceiling, self._others()
        allowed = self._wanted
        if allowed and ceiling is not None and self._with(self._cost(allowed)) > ceiling:
            allowed = most_steps(lambda n: self._with(self._cost(n)), ceiling, limit=self._wanted)
        # in this order, and not before: an exception must not leave more steps allowed than the ceiling permits
        self.allowed = allowed
        self._beside = others

    def charge(self, steps: int) -> None:
        """Pay for all steps up to `steps`; durable when this returns. Refuses to pass the ceiling."""
        if self._others() != self._beside:
            self._clear()
        if steps > self.allowed:
            ceiling, delta = self._ledger.ceiling, self._ledger.delta
            raise BudgetSpentError(
                f"the budget is spent: the ceiling of ε = {ceiling} (δ = {delta:g}) allows {self.allowed} steps here, not {steps}"
            )
        self._write(steps)

    def settle(self, steps: int) -> None:
        """Take back what was charged ahead: only `steps` steps of this segment happened, and no other will before the next charge."""
        if steps > self.charged:
            raise LedgerError(f"{steps} steps were taken but only {self.charged} charged")
        if max(steps, self._floor) < self.charged:
            self._write(max(steps, self._floor))

    def epsilon_after(self, steps: int) -> float:
        """The verified ε of all segments when this one had so many steps: for the history of a run, where steps paid for ahead do not count.

        Fewer steps never cost more, but two bounds computed apart may differ by half a percent either way: the bound of all that is
        allowed holds for every shorter stretch too.
        """
        spent = self._with(self._event(steps))
        return min(spent, self._with(self._cost(self.allowed))) if 0 < steps <= self.allowed else spent

    def _event(self, steps: int) -> DpEvent:
        return self._cost(steps) if steps else _NOTHING

    def _others(self) -> list[DpEvent]:
        return [entry.event for i, entry in enumerate(self._ledger._entries) if i != self._index]

    def _with(self, event: DpEvent) -> float:
        return epsilon(ComposedDpEvent([*self._others(), event]), self._ledger.delta, self._ledger.adjacency)

    def _write(self, steps: int) -> None:
        if self._ledger._file is not self._claimed:
            raise LedgerError(
                f"{self._ledger.path} was closed since this began: others may have charged it, begin anew"
            )
        known = self._ledger._entries[self._index]
        self._ledger._write(self._index, replace(known, steps=steps, event=self._event(steps)))
        self.charged = steps


class Ledger(Unique):
    """Charges steps against a ceiling. `path=None` keeps it in memory only (then nothing survives the process)."""

    def __init__(self, path: Path | None, *, delta: float, adjacency: Adjacency, ceiling: float | None) -> None:
        self.path, self.delta, self.adjacency, self.ceiling = path, delta, adjacency, ceiling
        self._entries: list[_Entry] = []
        self._written = 0  # entries that have a line; a segment has none before its first charge
        self._last: Segment | None = None
        self._file: IO[bytes] | None = None
        self._header = {"schema": SCHEMA, "delta": delta, "adjacency": adjacency.value, "ceiling": ceiling}
        if path is not None and path.exists():
            self._read(path.read_bytes())

    def charges(self) -> list[_Entry]:
        """What was charged, for `reading` in another process."""
        return [replace(entry) for entry in self._entries]

    def reading(self, charges: list[_Entry]) -> Ledger:
        """A ledger of these charges in memory only, for a process that must know what is spent while another one keeps the file."""
        copy = Ledger(None, delta=self.delta, adjacency=self.adjacency, ceiling=self.ceiling)
        copy._entries = charges
        return copy

    def claim(self) -> None:
        """Have the file to oneself, as it is now, until `close`; what charges does so by itself. `LedgerError` if somebody else has it."""
        self.check_process()
        if self.path is None or self._file is not None:
            return
        known = self._entries, self._last, self._written
        new = not self.path.exists()
        file = self.path.open("ab+", buffering=0)  # a failed write must not be tried again by whoever closes the file
        try:
            if not lock(file):
                raise LedgerError(
                    f"{self.path} is in use: another run, or a PrivateStep that was not closed, is charging it. Stop or close that one first."
                )
            file.seek(0)
            raw = file.read()
            self._entries, self._last = [], None
            self._read(raw)
            whole = raw.rfind(b"\n") + 1
            if whole < len(raw):  # the torn line's step never happened; the next entry must start a line of its own
                file.truncate(whole)
                os.fsync(file.fileno())
            self._file = file
            if not whole:
                self._append(self._header)
            if new:
                sync_folder(self.path.parent)
        except BaseException:
            self._file = None
            self._entries, self._last, self._written = known  # not a part of what the file says
            file.close()
            raise

    def close(self) -> None:
        """Let others charge the file. What was charged can still be asked for."""
        if self._file is not None:
            if self._process is here():  # the lock is the parent's
                unlock(self._file)
            self._file.close()
            self._file = None

    def begin(
        self, cost: Callable[[int], DpEvent], wanted: int, *, draws: str | None = None, start: str | None = None
    ) -> Segment:
        """Open a segment whose first n steps cost `cost(n)`, for the first `wanted` steps or as many as the ceiling allows.

        `draws` is the fingerprint of random numbers that can be drawn again, `start` a digest of the model that the first of them goes
        with (None for a run that is taken up later, and does not know it). A last segment with the same draws, with what its steps cost
        here, and with the same start where both are known, is gone on with: the very same steps are repeated there.
        """
        self.claim()
        index = len(self._entries) - 1
        if not (self._entries and _repeats(self._entries[index], cost, draws, start)):
            index += 1
            again = 0 if draws is None else sum(not e.once and e.draws == draws for e in self._entries)
            self._entries.append(_Entry(0, _NOTHING, draws=draws, start=start, again=again))
        self._last = Segment(self, index, cost, wanted)
        return self._last

    def pay(self, event: DpEvent, *, draws: str | None = None) -> None:
        """Charge a release that is made once, before any step; durable when this returns. Refuses to pass the ceiling.

        A release with the very same `draws` as one that was charged is not charged again.
        """
        self.claim()
        if draws is not None and any(e.once and e.draws == draws and e.event == event for e in self._entries):
            return
        spent = epsilon(ComposedDpEvent([self.event(), event]), self.delta, self.adjacency)
        if self.ceiling is not None and spent > self.ceiling:
            raise BudgetSpentError(
                f"the budget is spent: a release before training would make it ε = {spent:.4g} of {self.ceiling} (δ = {self.delta:g})"
            )
        self._entries.append(_Entry(0, _NOTHING))
        try:
            self._write(len(self._entries) - 1, _Entry(0, event, once=True, draws=draws))
        except BaseException:
            self._entries.pop()
            raise

    def paid(self, event: DpEvent) -> bool:
        """Whether a release of this cost was charged."""
        return any(entry.once and entry.event == event for entry in self._entries)

    @property
    def total_steps(self) -> int:
        """Steps charged in all segments: those that were lost with a killed process included."""
        return sum(entry.steps for entry in self._entries)

    def check_covers(self, steps: int) -> None:
        """`LedgerError` where a checkpoint has so many steps behind it and fewer were charged: entries are missing, and ε with them."""
        if self.total_steps < steps:
            raise LedgerError(
                f"{self.path} is damaged: {self.total_steps} steps are charged, but the checkpoint beside it was written after {steps}. "
                "Without the missing entries the ε of this run is not known"
            )

    def event(self) -> DpEvent:
        """Everything charged so far."""
        return ComposedDpEvent([entry.event for entry in self._entries])

    def epsilon(self) -> float:
        """The verified ε of everything charged so far."""
        if self._last is not None:
            return self._last.epsilon_after(self._last.charged)
        return epsilon(self.event(), self.delta, self.adjacency) if self._entries else 0.0

    def _write(self, index: int, entry: _Entry) -> None:
        self.check_process()
        for before in range(self._written, index):
            self._append(_line(before, self._entries[before]))
            self._written = before + 1
        self._append(_line(index, entry))
        self._written = max(self._written, index + 1)
        self._entries[index] = entry

    def _append(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        size = self._file.seek(0, os.SEEK_END)
        rest = (json.dumps(line) + "\n").encode()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):  # half a line in the middle would be damage
                self._file.truncate(size)
            raise

    def _read(self, raw: bytes) -> None:
        path = self.path
        whole, _, _ = raw.rpartition(b"\n")  # what follows is torn
        lines = whole.split(b"\n") if whole else []
        try:
            parsed = [json.loads(line) for line in lines]
        except ValueError as error:
            raise LedgerError(f"{path} is damaged: {error}; without it the ε of this run is not known") from error
        if not parsed:
            return
        if parsed[0] != self._header:
            raise LedgerError(f"{path} belongs to another run: it says {parsed[0]}, expected {self._header}")
        for line in parsed[1:]:
            index, entry = self._entry(line)
            if index == len(self._entries):
                self._entries.append(entry)
            elif self._entries[index].once:
                raise LedgerError(f"{path} is damaged: segment {index} was charged once and for all, and again")
            else:
                self._entries[index] = entry
        self._written = len(self._entries)

    def _entry(self, line: dict[str, Any]) -> tuple[int, _Entry]:
        try:
            index, steps, event = int(line["segment"]), int(line["steps"]), events.from_json(line["event"])
            again = int(line.get("again", 0))
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(
                f"{self.path} is damaged: {line} is not an entry ({error}); without it ε is not known"
            ) from error
        if not 0 <= index <= len(self._entries) or steps < 0:
            raise LedgerError(
                f"{self.path} is damaged: segment {index} with {steps} steps cannot follow what is before it"
            )
        return index, _Entry(steps, event, line.get("once") is True, line.get("draws"), line.get("start"), again)


def spent(path: Path) -> tuple[int, float, float | None]:
    """Steps, ε and δ by the ledger in a file, whatever run it is of; δ is None where nothing was charged yet.

    Raises:
        LedgerError: The ledger is damaged.
    """
    whole = path.read_bytes() if path.exists() else b""
    if b"\n" not in whole:
        return 0, 0.0, None
    try:
        header = json.loads(whole.split(b"\n", 1)[0])
        delta, adjacency, ceiling = header["delta"], Adjacency(header["adjacency"]), header["ceiling"]
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} is damaged: {error!r}; without it the ε of its run is not known") from error
    ledger = Ledger(path, delta=delta, adjacency=adjacency, ceiling=ceiling)
    return ledger.total_steps, ledger.epsilon(), float(delta)


def _line(index: int, entry: _Entry) -> dict[str, Any]:
    line: dict[str, Any] = {"segment": index, "steps": entry.steps, "event": events.to_json(entry.event)}
    known = {"once": entry.once or None, "draws": entry.draws, "start": entry.start, "again": entry.again or None}
    return line | {name: value for name, value in known.items() if value is not None}


def _repeats(entry: _Entry, cost: Callable[[int], DpEvent], draws: str | None, start: str | None) -> bool:
    """Whether steps with these draws, this cost and this start are those of the entry once more."""
    if draws is None or entry.once or entry.draws != draws:
        return False
    if start is not None and entry.start is not None and start != entry.start:
        return False
    again = cost(entry.steps) if entry.steps else _NOTHING
    return bool(events.to_json(again) == events.to_json(entry.event))
