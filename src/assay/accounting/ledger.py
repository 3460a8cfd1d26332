"""The ledger: what has been spent, written down before it is spent.

An entry is appended and flushed to disk before the step that it pays for moves a parameter. So a run that is killed at
any moment never shows less than it spent. Steps are charged ahead in blocks, because a flush costs more than a small
step. A run that ends or pauses in order settles the last block to the steps that were taken; a killed run keeps it.

A release made once, before the steps, is a separate segment, marked `once`. Making it again costs another one.

A *segment* is a sequence of steps with one source of randomness. A process that resumes with fresh randomness begins a
new segment, and the lost steps of the old one stay charged. A resumed run with a fixed seed repeats the same steps with
the same noise and continues its segment, because repeating an answer releases nothing new. The ledger checks that they
are the same: a segment has the fingerprint of its random numbers, and must cost what the run says. It also has a digest
of the model before its first step, because two models under the same noise would reveal the difference of their
gradients. Other steps under the same seed form a new segment, with other random numbers (`Segment.own`).

The file has JSON lines: a header, then entries {"segment": …, "steps": …, "event": …}. The last entry of a segment
counts. An entry may also have "once": true; "draws", the fingerprint of numbers that can be drawn again; "start", the
digest of the model before the first step; "again", the number of earlier segments with the same draws; and "origin",
the plan's step that the segment begins with, if that is not the first. Every line ends with a digest of itself and all
lines before it (`assay._util.seals`). The header of a run's ledger names the digest of its `run.json`. A torn last line
is ignored, because its step did not happen. Any other damage is an error, never a smaller ε. Ledgers of schema 1, from
before there were digests, are read and charged as they are.

Before every charge the ledger checks that the open file is still the one at its path, with the size that it had. A file
that was deleted, replaced or changed would show less than was spent.

Whoever charges locks the file from the first charge until `close`. Otherwise two processes would each leave out the
other's steps. Reading takes no lock and changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from assay._util import seals
from assay._util.figures import at_most
from assay._util.files import has_name, lock, sync_folder, unlock, writing
from assay._util.process import Unique
from assay.accounting import events
from assay.accounting.calibrate import most_steps
from assay.accounting.epsilon import Adjacency, epsilon
from assay.errors import AssayError, BudgetSpentError

if TYPE_CHECKING:
    from assay.randomness.streams import Randomness

SCHEMA = "assay.ledger/2"
UNSEALED = "assay.ledger/1"
"""The schema of earlier versions, without digests."""


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
    origin: int | None = 0  # None where an earlier version did not store it


Fits = Callable[[int, int | None, DpEvent, bool], bool]
"""Whether an entry fits the plan: its steps, their origin (None if unknown), its event, whether it is `once`."""
_NOTHING = ComposedDpEvent([])


def _no_more(_event: DpEvent) -> bool:
    return False


class Witness(Protocol):
    """Is told the digest of every line that a ledger is given."""

    def noting(self, head: str, lines: int) -> AbstractContextManager[None]:
        """Inside, this line is written, the last of `lines`. It must be noted when this ends, or may raise before."""
        ...


class Segment(Unique):
    """Steps with one source of randomness, paid for one after the other (`Ledger.begin`).

    Several segments of a ledger may be open at a time. Together they stay within the ceiling.
    """

    def __init__(self, ledger: Ledger, index: int, cost: Callable[[int], DpEvent], wanted: int) -> None:
        self._ledger, self._index, self._cost = ledger, index, cost
        self._file = ledger._file
        self._wanted = max(0, wanted)
        self.charged = ledger._entries[index].steps
        """The number of steps that are paid for."""
        self._floor = self.charged  # a killed process may have taken all steps that it had paid for
        self._clear()

    def own(self, randomness: Randomness) -> Randomness:
        """Fresh random numbers: reusing another segment's noise would void ε."""
        from assay.randomness.streams import Within

        again = self._ledger._entries[self._index].again
        return Within(randomness, f"again {again}") if again else randomness

    def _clear(self) -> None:
        """Compute how many of the wanted steps the ceiling allows beside all other segments."""
        ceiling, covers, others = self._ledger.ceiling, self._ledger.covers, self._others()
        allowed = self._wanted
        if allowed and ceiling is not None and self._with(self._cost(allowed)) > ceiling:
            allowed = most_steps(lambda n: self._with(self._cost(n)), ceiling, limit=self._wanted)
        if allowed and not self._covered(allowed):
            allowed = most_steps(lambda n: 0.5 if self._covered(n) else 2.0, 1.0, limit=allowed)
        # Last, because an exception must not leave more steps allowed than the ceiling permits.
        self.allowed = allowed
        self._under = ceiling, covers, others

    def charge(self, steps: int) -> None:
        """Pay for all steps up to `steps`. The charge is on disk when this returns.

        Raises:
            BudgetSpentError: this would exceed the ceiling.
            LedgerError: the file was changed, replaced or closed.
        """
        if self._under != (self._ledger.ceiling, self._ledger.covers, self._others()):
            self._clear()  # other segments were charged, or less is allowed: the run gave its reservation back
        if steps > self.allowed:
            raise BudgetSpentError(
                f"the budget is spent: {self._ledger.bounds()} allows {self.allowed} steps here, not {steps}"
            )
        self._write(steps)

    def settle(self, steps: int) -> None:
        """Take back what was charged ahead: only `steps` steps of this segment happened.

        No other step may be taken before the next charge.

        Raises:
            LedgerError: more steps were taken than charged.
        """
        if steps > self.charged:
            raise LedgerError(f"{steps} steps were taken but only {self.charged} charged")
        if max(steps, self._floor) < self.charged:
            self._write(max(steps, self._floor))

    def epsilon_after(self, steps: int) -> float:
        """The verified ε of all segments if this one had `steps` steps, for a run's history.

        Fewer steps never cost more, but two bounds computed separately may differ by half a percent. The bound of all
        allowed steps holds for fewer steps too.
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
        if self._ledger._file is not self._file:
            raise LedgerError(
                f"{self._ledger.path} was closed since this segment began: others may have charged it, begin another"
            )
        known = self._ledger._entries[self._index]
        self._ledger._write(self._index, replace(known, steps=steps, event=self._event(steps)))
        self.charged = steps


class Ledger(Unique):
    """Charges steps against a ceiling.

    Args:
        path: the file, created by the first charge. None keeps the ledger in memory only.
        delta: the δ that ε is stated for.
        adjacency: which data sets are neighbours.
        ceiling: the largest ε that may be charged; None for no ceiling.
        run: the digest of the `run.json` that the ledger belongs to. None accepts any run that the file names, or none.

    Raises:
        LedgerError: the file is damaged, or belongs to another run.
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
        """The digest of the run that the ledger belongs to, if any."""
        self.unit: str | None = None
        """What its ε protects, once a budget or a step says so: one ledger adds up for one unit only."""
        self.budget: str | None = None
        """The id of the budget that the run is under; None without one."""
        self.covers: Callable[[DpEvent], bool] | None = None
        """Whether the run's budget allows this event in total; None without a budget."""
        self.witness: Witness | None = None
        """Is told every line before anything is released on it; None without a budget (`assay.accounting.marks`)."""
        self.claim: Callable[[str], None] | None = None
        """Refuses random numbers that another run of the budget has drawn; None without a budget."""
        self._claimed: set[str] = set()
        self._heads: list[str] = []  # the digest of each line
        self._entries: list[_Entry] = []
        self._written = 0  # entries that have a line; a segment has none before its first charge
        self._last: Segment | None = None
        self._file: IO[bytes] | None = None
        self._size = 0  # of the file when it was locked or last written
        self._chain: str | None = ""  # the digest of the last line; None for a file of schema 1
        if path is not None and path.exists():
            self._read(path.read_bytes())

    @property
    def heads(self) -> tuple[str, ...]:
        """The digest of each line of the file; none of a ledger in memory, or of an earlier version."""
        return tuple(self._heads)

    def charges(self) -> list[_Entry]:
        """What was charged, for `reading` in another process."""
        return [replace(entry) for entry in self._entries]

    def reading(self, charges: list[_Entry]) -> Ledger:
        """A ledger of these charges in memory, for a process that must know ε while another one holds the file."""
        copy = Ledger(None, delta=self.delta, adjacency=self.adjacency, ceiling=self.ceiling, run=self.run)
        copy._entries, copy.covers, copy.unit, copy.budget = charges, self.covers, self.unit, self.budget
        return copy

    def lock(self) -> None:
        """Read the file again and lock it until `close`. Charging does so by itself.

        Raises:
            LedgerError: somebody else has locked it, or it is damaged.
        """
        self.check_process()
        if self.path is None or self._file is not None:
            return
        known = self._entries, self._last, self._written, self._chain, self._heads, self.run
        new = not self.path.exists()
        file = self.path.open("ab+", buffering=0)  # closing the file must not repeat a failed write
        try:
            if not lock(file):
                raise LedgerError(
                    f"{self.path} is in use: another run, or a PrivateStep that was not closed, is charging it. "
                    "Stop or close that one first."
                )
            file.seek(0)
            raw = file.read()
            self._entries, self._last = [], None
            whole = self._read(raw)
            if whole < len(raw):  # the torn line's step never happened; the next entry must begin a new line
                file.truncate(whole)
                os.fsync(file.fileno())
            self._file, self._size = file, whole
            if not whole:
                self._append(self._header())
            elif raw[whole - 1 : whole] != b"\n":  # a whole line that only lacks its end
                self._put(b"\n")
            if new:
                sync_folder(self.path.parent)
        except BaseException:
            self._file = None
            self._entries, self._last, self._written, self._chain, self._heads, self.run = (
                known  # all or nothing of the file
            )
            file.close()
            raise

    def close(self) -> None:
        """Let others charge the file. What was charged can still be read."""
        if self._file is not None:
            if not self.is_inherited:  # otherwise the lock is the parent's
                unlock(self._file)
            self._file.close()
            self._file = None

    def end(self) -> None:
        """Allow no further charge, to nobody who still has a segment: what is left is given back to the budget.

        Raises:
            AssayError: This process is a fork of the one that charges, which goes on.
        """
        self.check_process()
        self.covers = _no_more

    def claim_draws(self, draws: str | None) -> None:
        """Take random numbers that can be drawn again, if the run is under a budget; charging does so by itself.

        Raises:
            ConfigError: Another run of the budget has drawn them.
        """
        if draws is not None and self.claim is not None and draws not in self._claimed:
            self.claim(draws)
            self._claimed.add(draws)

    def begin(
        self,
        cost: Callable[[int], DpEvent],
        wanted: int,
        *,
        draws: str | None = None,
        start: str | None = None,
        origin: int = 0,
    ) -> Segment:
        """Open a segment, or continue the last one if it has the same draws, cost and start: its steps are repeated.

        Args:
            cost: the cost of the first n steps of the segment.
            wanted: the number of steps; the ceiling may allow fewer.
            draws: the fingerprint of random numbers that can be drawn again.
            start: a digest of the model before the first step; None for a resumed run, which does not know it.
            origin: the plan's step that the segment begins with.

        Raises:
            LedgerError: somebody else has locked the file, or it is damaged.
            ConfigError: another run of the budget has drawn these numbers.
        """
        self.lock()
        self.claim_draws(draws)
        index = len(self._entries) - 1
        if not (self._entries and _repeats(self._entries[index], cost, draws, start)):
            index += 1
            again = 0 if draws is None else sum(not e.once and e.draws == draws for e in self._entries)
            self._entries.append(_Entry(0, _NOTHING, draws=draws, start=start, again=again, origin=origin))
        self._last = Segment(self, index, cost, wanted)
        return self._last

    def pay(self, event: DpEvent, *, draws: str | None = None) -> None:
        """Charge a release made once, before any step. The charge is on disk when this returns.

        A release with the same `draws` as one that was charged is not charged again.

        Raises:
            BudgetSpentError: this would exceed the ceiling.
            LedgerError: somebody else has locked the file, or it is damaged.
            ConfigError: another run of the budget has drawn these numbers.
        """
        self.lock()
        self.claim_draws(draws)
        if draws is not None and any(e.once and e.draws == draws and e.event == event for e in self._entries):
            return
        spent = epsilon(ComposedDpEvent([self.event(), event]), self.delta, self.adjacency)
        if self.ceiling is not None and spent > self.ceiling:
            raise BudgetSpentError(
                f"the budget is spent: a release before training would make it ε = {at_most(spent)} of {self.ceiling} "
                f"(δ = {self.delta:g})"
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

    def pay_once(self, event: DpEvent) -> None:
        """Charge a release that was made before the run, unless one of this cost was charged.

        Raises:
            BudgetSpentError: this would exceed the ceiling.
            LedgerError: somebody else has locked the file, or it is damaged.
        """
        self.lock()
        if not self.paid(event):
            self.pay(event)

    def bounds(self) -> str:
        """What limits the steps, in words."""
        limits = [] if self.ceiling is None else [f"the ceiling of ε = {self.ceiling} (δ = {self.delta:g})"]
        limits += [] if self.covers is None else ["what is reserved in the budget of these records"]
        return ", or ".join(limits)

    def paid(self, event: DpEvent) -> bool:
        """Whether a release of this cost was charged."""
        return any(entry.once and entry.event == event for entry in self._entries)

    @property
    def is_empty(self) -> bool:
        """Whether nothing that costs anything was charged."""
        return not list(events.flatten(self.event()))

    @property
    def total_steps(self) -> int:
        """The number of steps charged in all segments, including those that a killed process lost."""
        return sum(entry.steps for entry in self._entries)

    def check_covers(self, steps: int) -> None:
        """Refuse a ledger with fewer steps than its run's checkpoint: entries are missing.

        Raises:
            LedgerError: fewer steps were charged.
        """
        if self.total_steps < steps:
            raise LedgerError(
                f"{self.path} is damaged: {self.total_steps} steps are charged, but the checkpoint beside it was "
                f"written after {steps}. Without the missing entries the ε of this run is not known"
            )

    def check_fits(self, fits: Fits) -> None:
        """Refuse a ledger whose entries do not cost what the plan of its run says.

        Raises:
            LedgerError: names the segment.
        """
        for index, entry in enumerate(self._entries):
            if not fits(entry.steps, entry.origin, entry.event, entry.once):
                what = "a release made once" if entry.once else f"{entry.steps} steps"
                raise LedgerError(
                    f"{self.path} is damaged: segment {index} charges {what} with {entry.event}, which is not what the "
                    "plan of the run gives; without it the ε of this run is not known"
                )

    @property
    def draws(self) -> frozenset[tuple[str, int]]:
        """The random numbers that can be drawn again: a seed's, and which of its numbers; -1 for those drawn once."""
        return frozenset((e.draws, -1 if e.once else e.again) for e in self._entries if e.draws is not None)

    def event(self) -> DpEvent:
        """The cost of everything charged so far."""
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
        with contextlib.nullcontext() if self.witness is None else self.witness.noting(digest, len(self._heads) + 1):
            self._put(text + b"\n")
            self._chain = digest
            self._heads.append(digest)

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
            with contextlib.suppress(OSError):  # half a line followed by others would be damage
                self._file.truncate(self._size)
            raise
        self._size = os.fstat(self._file.fileno()).st_size

    def _check_in_place(self) -> None:
        """Refuse to charge a file that is no longer at its path, or that somebody else changed."""
        assert self._file is not None
        assert self.path is not None
        if not has_name(self._file, self.path):
            raise LedgerError(
                f"{self.path} was deleted or replaced while it was being charged: what is spent would not be found "
                "there. No further step is taken"
            )
        size = os.fstat(self._file.fileno()).st_size
        if size != self._size:
            raise LedgerError(
                f"{self.path} was changed by somebody else while it was being charged ({size} bytes, {self._size} were "
                "written). No further step is taken"
            )

    def _read(self, raw: bytes) -> int:
        """Read the entries of a file, and return how many of its bytes are whole lines."""
        lines = raw.split(b"\n")
        torn = lines.pop()
        self._chain, self._entries, self._heads = "", [], []
        if lines and _parsed(self.path, lines[0], 1).get("schema") == UNSEALED:
            self._chain = None
        whole = len(raw) - len(torn)
        bodies = self._unsealed(lines)
        if torn and self._chain is not None:
            last = seals.unchained(torn, self._chain)
            if last is not None:  # only the end of the line is missing; counting it is safe
                bodies.append(last[0])
                self._heads.append(last[1])
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
        """The lines as JSON without their digests, after checking the chain of digests."""
        if self._chain is None:
            return lines
        bodies, chain = [], self._chain
        for number, line in enumerate(lines, start=1):
            found = seals.unchained(line, chain)
            if found is None:
                raise LedgerError(
                    f"{self.path} is damaged: line {number} is not what its digest was made of; without it the ε of "
                    "this run is not known"
                )
            bodies.append(found[0])
            self._heads.append(found[1])
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
                f"{self.path} belongs to another run: it says {found}, expected "
                f"{self._header() if self.run else expected}"
            )

    def _take(self, bodies: list[bytes]) -> None:
        """Read the entries of these lines. Digests prove the lines, so only the last line of a segment is parsed."""
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


def read_ledger(path: Path, run: str | None = None) -> Ledger | None:
    """A ledger by its file alone: δ, adjacency and ceiling are those of its first line.

    Args:
        path: The file.
        run: The digest of the run that it must belong to; None for whichever it names.

    Returns:
        The ledger, to be read; None where nothing was charged yet.

    Raises:
        LedgerError: The ledger is damaged, or belongs to another run.
    """
    whole = path.read_bytes() if path.exists() else b""
    if b"\n" not in whole:
        return None
    try:
        header = json.loads(whole.split(b"\n", 1)[0])
        delta, adjacency, ceiling = header["delta"], Adjacency(header["adjacency"]), header["ceiling"]
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} is damaged: {error!r}; without it the ε of its run is not known") from error
    return Ledger(path, delta=delta, adjacency=adjacency, ceiling=ceiling, run=run)


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
    """Whether steps with these draws, this cost and this start repeat those of the entry."""
    if draws is None or entry.once or entry.draws != draws:
        return False
    if start is not None and entry.start is not None and start != entry.start:
        return False
    again = cost(entry.steps) if entry.steps else _NOTHING
    return bool(events.to_json(again) == events.to_json(entry.event))
