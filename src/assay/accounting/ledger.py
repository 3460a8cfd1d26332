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
segment has the same draws, "origin", the step of the plan that the segment begins with, if that is not the first); the last entry of a segment counts.
Every line ends with a digest of itself and of all lines before it (`assay._util.seals`). The header of a run's ledger names the digest of its `run.json`.
A torn last line was never paid for (its step did not happen) and is ignored; any other damage is an error, never a smaller ε.
Ledgers of schema 1, from before there were digests, are read and charged as they are.

Every charge first looks whether the open file still is the one at its path, with the size that it was left with: a file that was deleted, replaced
or changed would show less than was spent.

Who charges has the file to itself from its first charge until `close`: two that did not know of each other would each leave the other's
steps out. Reading takes no claim and changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from assay._util import seals
from assay._util.files import has_name, lock, sync_folder, unlock, writing
from assay._util.process import Unique, here
from assay.accounting import events
from assay.accounting.calibrate import most_steps
from assay.accounting.epsilon import Adjacency, epsilon
from assay.errors import AssayError, BudgetSpentError

if TYPE_CHECKING:
    from assay.randomness.streams import Randomness

SCHEMA = "assay.ledger/2"
UNSEALED = "assay.ledger/1"
"""The schema of ledgers whose lines have no digest: those of earlier versions."""


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
    origin: int | None = 0  # None where an earlier version did not write it down


Fits = Callable[[int, int | None, DpEvent, bool], bool]
"""Whether so many steps from this step of the plan on (None: not known) cost this event, or (True) it is a release made once."""
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
        from assay.randomness.streams import Within

        again = self._ledger._entries[self._index].again
        return Within(randomness, f"again {again}") if again else randomness

    def _clear(self) -> None:
        """How many of the steps that are wanted the ceiling allows, beside all that others are charged."""
        ceiling, others = self._ledger.ceiling, self._others()
        allowed = self._wanted
        if allowed and ceiling is not None and self._with(self._cost(allowed)) > ceiling:
            allowed = most_steps(lambda n: self._with(self._cost(n)), ceiling, limit=self._wanted)
        if allowed and not self._covered(allowed):
            allowed = most_steps(lambda n: 0.5 if self._covered(n) else 2.0, 1.0, limit=allowed)
        # in this order, and not before: an exception must not leave more steps allowed than the ceiling permits
        self.allowed = allowed
        self._beside = others

    def charge(self, steps: int) -> None:
        """Pay for all steps up to `steps`; durable when this returns. Refuses to pass the ceiling."""
        if self._others() != self._beside:
            self._clear()
        if steps > self.allowed:
            raise BudgetSpentError(
                f"the budget is spent: {self._ledger.bounds()} allows {self.allowed} steps here, not {steps}"
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

    def _covered(self, steps: int) -> bool:
        covers = self._ledger.covers
        return covers is None or covers(ComposedDpEvent([*self._others(), self._event(steps)]))

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
    """Charges steps against a ceiling. `path=None` keeps it in memory only (then nothing survives the process).

    Args:
        path: The file, made with the first charge.
        delta: The δ that ε is stated for.
        adjacency: What neighbouring data sets are.
        ceiling: The largest ε that may be charged; None for no ceiling.
        run: The digest of the `run.json` that the ledger belongs to; None for one of no run, or of whichever it names.

    Raises:
        LedgerError: The file is damaged, or belongs to another run.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        delta: float,
        adjacency: Adjacency,
        ceiling: float | None,
        run: str | None = None,
    ) -> None:
        self.path, self.delta, self.adjacency, self.ceiling = path, delta, adjacency, ceiling
        self.run = run
        """The digest of the run that the ledger belongs to, if it belongs to one."""
        self.covers: Callable[[DpEvent], bool] | None = None
        """Whether a budget that the run is under allows a ledger that holds this; None without one."""
        self._entries: list[_Entry] = []
        self._written = 0  # entries that have a line; a segment has none before its first charge
        self._last: Segment | None = None
        self._file: IO[bytes] | None = None
        self._size = 0  # of the file when it was claimed or written last
        self._chain: str | None = ""  # the digest of the last line; None for a file of schema 1
        if path is not None and path.exists():
            self._read(path.read_bytes())

    def charges(self) -> list[_Entry]:
        """What was charged, for `reading` in another process."""
        return [replace(entry) for entry in self._entries]

    def reading(self, charges: list[_Entry]) -> Ledger:
        """A ledger of these charges in memory only, for a process that must know what is spent while another one keeps the file."""
        copy = Ledger(None, delta=self.delta, adjacency=self.adjacency, ceiling=self.ceiling, run=self.run)
        copy._entries, copy.covers = charges, self.covers
        return copy

    def claim(self) -> None:
        """Have the file to oneself, as it is now, until `close`; what charges does so by itself. `LedgerError` if somebody else has it."""
        self.check_process()
        if self.path is None or self._file is not None:
            return
        known = self._entries, self._last, self._written, self._chain, self.run
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
            whole = self._read(raw)
            if whole < len(raw):  # the torn line's step never happened; the next entry must start a line of its own
                file.truncate(whole)
                os.fsync(file.fileno())
            self._file, self._size = file, whole
            if not whole:
                self._append(self._header())
            elif raw[whole - 1 : whole] != b"\n":  # a whole line, of which only the end was lost
                self._put(b"\n")
            if new:
                sync_folder(self.path.parent)
        except BaseException:
            self._file = None
            self._entries, self._last, self._written, self._chain, self.run = known  # not a part of what the file says
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
        self,
        cost: Callable[[int], DpEvent],
        wanted: int,
        *,
        draws: str | None = None,
        start: str | None = None,
        origin: int = 0,
    ) -> Segment:
        """Open a segment whose first n steps cost `cost(n)`, for the first `wanted` steps or as many as the ceiling allows.

        `draws` is the fingerprint of random numbers that can be drawn again, `start` a digest of the model that the first of them goes
        with (None for a run that is taken up later, and does not know it). A last segment with the same draws, with what its steps cost
        here, and with the same start where both are known, is gone on with: the very same steps are repeated there. `origin` is the step
        of a plan that the first of them is.
        """
        self.claim()
        index = len(self._entries) - 1
        if not (self._entries and _repeats(self._entries[index], cost, draws, start)):
            index += 1
            again = 0 if draws is None else sum(not e.once and e.draws == draws for e in self._entries)
            self._entries.append(_Entry(0, _NOTHING, draws=draws, start=start, again=again, origin=origin))
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
        if self.covers is not None and not self.covers(ComposedDpEvent([self.event(), event])):
            raise BudgetSpentError(
                "the budget is spent: a release before training is not part of what was reserved there"
            )
        self._entries.append(_Entry(0, _NOTHING))
        try:
            self._write(len(self._entries) - 1, _Entry(0, event, once=True, draws=draws))
        except BaseException:
            self._entries.pop()
            raise

    def bounds(self) -> str:
        """What limits the steps, in words."""
        ceiling = f"the ceiling of ε = {self.ceiling} (δ = {self.delta:g})"
        return ceiling if self.covers is None else f"{ceiling}, or the reservation in the budget of these records,"

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

    def check_fits(self, fits: Fits) -> None:
        """`LedgerError` where an entry does not cost what the plan of its run says that so many steps cost."""
        for index, entry in enumerate(self._entries):
            if not fits(entry.steps, entry.origin, entry.event, entry.once):
                what = "a release made once" if entry.once else f"{entry.steps} steps"
                raise LedgerError(
                    f"{self.path} is damaged: segment {index} charges {what} with {entry.event}, which is not what the plan of the run gives; "
                    "without it the ε of this run is not known"
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

    def _header(self) -> dict[str, Any]:
        return {**self._terms(SCHEMA), **({} if self.run is None else {"run": self.run})}

    def _terms(self, schema: str) -> dict[str, Any]:
        return {"schema": schema, "delta": self.delta, "adjacency": self.adjacency.value, "ceiling": self.ceiling}

    def _append(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        if self._chain is None:
            self._put((json.dumps(line) + "\n").encode())
            return
        text, digest = seals.chained(line, self._chain)
        self._put(text + b"\n")
        self._chain = digest

    def _put(self, rest: bytes) -> None:
        assert self._file is not None
        assert self.path is not None
        self._check_in_place()
        try:
            with writing(self.path):
                while rest:
                    rest = rest[self._file.write(rest) :]
                os.fsync(self._file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):  # half a line in the middle would be damage
                self._file.truncate(self._size)
            raise
        self._size = os.fstat(self._file.fileno()).st_size

    def _check_in_place(self) -> None:
        """`LedgerError` where the file that is charged is not the one that others find at its path, or has changed meanwhile."""
        assert self._file is not None
        assert self.path is not None
        if not has_name(self._file, self.path):
            raise LedgerError(
                f"{self.path} was deleted or replaced while it was being charged: what is spent would not be found there. No further step is taken"
            )
        size = os.fstat(self._file.fileno()).st_size
        if size != self._size:
            raise LedgerError(
                f"{self.path} was changed by somebody else while it was being charged ({size} bytes, {self._size} were written). "
                "No further step is taken"
            )

    def _read(self, raw: bytes) -> int:
        """Take up the entries of a file; how many of its bytes are whole lines."""
        lines = raw.split(b"\n")
        torn = lines.pop()
        self._chain, self._entries = "", []
        if lines and _parsed(self.path, lines[0], 1).get("schema") == UNSEALED:
            self._chain = None
        whole = len(raw) - len(torn)
        bodies = self._unsealed(lines)
        if torn and self._chain is not None:
            last = seals.unchained(torn, self._chain)
            if last is not None:  # all of it but the end of the line: counting it is the safe side
                bodies.append(last[0])
                self._chain, whole = last[1], len(raw)
            elif seals.begins_with_line(torn, self._chain):
                raise LedgerError(
                    f"{self.path} is damaged: its last line does not end as it was written; without it ε is not known"
                )
        if bodies:
            self._check_header(_parsed(self.path, bodies[0], 1))
            self._take(bodies[1:])
        self._written = len(self._entries)
        return whole

    def _unsealed(self, lines: list[bytes]) -> list[bytes]:
        """The lines as JSON without their digests, each of which must follow from the one before."""
        if self._chain is None:
            return lines
        bodies, chain = [], self._chain
        for number, line in enumerate(lines, start=1):
            found = seals.unchained(line, chain)
            if found is None:
                raise LedgerError(
                    f"{self.path} is damaged: line {number} is not what its digest was made of; without it the ε of this run is not known"
                )
            bodies.append(found[0])
            chain = found[1]
        self._chain = chain
        return bodies

    def _check_header(self, found: dict[str, Any]) -> None:
        run = found.get("run") if self._chain is not None else None
        if self.run is None and isinstance(run, str):
            self.run = run
        expected = self._header() if self._chain is not None else self._terms(UNSEALED)
        if found != expected or run != self.run:
            raise LedgerError(
                f"{self.path} belongs to another run: it says {found}, expected {self._header() if self.run else expected}"
            )

    def _take(self, bodies: list[bytes]) -> None:
        """The entries of these lines. Lines with a digest are what was written, so that only the last of a segment need be understood."""
        last: dict[int, tuple[int, dict[str, Any]]] = {}
        for number, body in enumerate(bodies, start=2):
            line = _parsed(self.path, body, number)
            index = line.get("segment")
            if type(index) is not int or not 0 <= index <= len(last):
                raise LedgerError(
                    f"{self.path} is damaged: line {number}: segment {index!r} cannot follow those before it"
                )
            if index in last and last[index][1].get("once") is True:
                raise LedgerError(f"{self.path} is damaged: segment {index} was charged once and for all, and again")
            if self._chain is None:
                self._entry(line, number)  # any damage counts
            last[index] = number, line
        self._entries = [self._entry(line, number) for number, line in last.values()]

    def _entry(self, line: Mapping[str, Any], number: int) -> _Entry:
        kinds: dict[str, type] = {**_KINDS, **({} if self._chain is None else {"origin": int})}
        for name, value in line.items():
            if name not in kinds or type(value) is not kinds[name] or (isinstance(value, int) and value < 0):
                raise LedgerError(
                    f"{self.path} is damaged: line {number}: field {name} is {value!r}; without it ε is not known"
                )
        try:
            steps, event = line["steps"], events.from_json(line["event"])
        except (KeyError, ValueError) as error:
            raise LedgerError(
                f"{self.path} is damaged: line {number}: {error} in {dict(line)}; without it ε is not known"
            ) from error
        origin = None if self._chain is None else line.get("origin", 0)
        return _Entry(
            steps, event, line.get("once") is True, line.get("draws"), line.get("start"), line.get("again", 0), origin
        )


_KINDS: Mapping[str, type] = {
    "segment": int,
    "steps": int,
    "event": dict,
    "once": bool,
    "draws": str,
    "start": str,
    "again": int,
}
"""The fields of an entry."""


def _parsed(path: Path | None, line: bytes, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise LedgerError(
            f"{path} is damaged: line {number}: {error}; without it the ε of this run is not known"
        ) from error
    if not isinstance(found, dict):
        raise LedgerError(f"{path} is damaged: line {number} is {found!r}, not an object; without it ε is not known")
    return found


def spent(path: Path, run: str | None = None) -> tuple[int, float, float | None]:
    """Steps, ε and δ by the ledger in a file, of the run with this digest or of whichever; δ is None where nothing was charged yet.

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
    ledger = Ledger(path, delta=delta, adjacency=adjacency, ceiling=ceiling, run=run)
    return ledger.total_steps, ledger.epsilon(), float(delta)


def _line(index: int, entry: _Entry) -> dict[str, Any]:
    line: dict[str, Any] = {"segment": index, "steps": entry.steps, "event": events.to_json(entry.event)}
    known = {
        "once": entry.once or None,
        "draws": entry.draws,
        "start": entry.start,
        "again": entry.again or None,
        "origin": entry.origin or None,
    }
    return line | {name: value for name, value in known.items() if value is not None}


def _repeats(entry: _Entry, cost: Callable[[int], DpEvent], draws: str | None, start: str | None) -> bool:
    """Whether steps with these draws, this cost and this start are those of the entry once more."""
    if draws is None or entry.once or entry.draws != draws:
        return False
    if start is not None and entry.start is not None and start != entry.start:
        return False
    again = cost(entry.steps) if entry.steps else _NOTHING
    return bool(events.to_json(again) == events.to_json(entry.event))
