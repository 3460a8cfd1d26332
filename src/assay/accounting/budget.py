"""One budget for all runs on the same records: a ceiling (ε, δ) that nothing passes.

    budget = assay.Budget.create("patients", epsilon=3, delta=1e-5, contents=assay.data.contents(train))
    assay.fit(model, train, plan=plan, budget=budget, out="runs/one")
    print(budget.spent(), budget.state().accounts)

**How it holds.** Before a run begins it reserves the Rényi divergences of all that it may release. The reservation is
written only if everything charged and reserved so far, with it, satisfies the rule of `assay.accounting.filters`. The
run's ledger refuses to charge more than the reservation (`Ledger.covers`), so at every moment the releases of all runs
satisfy the rule, and by the theorem there they are (ε, δ)-differentially private together, although each run was chosen
after seeing others. When a run ends, its reservation becomes what its ledger says. A run that was killed keeps its
whole reservation until it is resumed and ends, or until it is settled by its ledger, which was written before anything
was released: from then on it may not charge more than that, unless it reserves again.

A folder of a run that was copied cannot spend its reservation twice (`assay.accounting.marks`). A seed serves one run:
the theorem is about releases with noise of their own.

**The folder** `NAME.budget` holds two files, and a folder `runs` with notes about ledgers. `budget.jsonl` is
append-only, and each line carries the digest of the one before and, with a key, a signature (`assay._util.journal`).
`records.bin` says which records are meant, and is as private as they are (`assay.accounting.recognition`). A process
has `budget.jsonl` to itself from reading it to writing its entry, so that of several that reserve at once each sees the
others. A full disk or a kill leaves the entries as they were.

An earlier copy in place of the present one is seen by whoever has used the later one on this machine
(`assay.accounting.remembered`), and by runs whose records name a later entry.

**What cannot be seen here**: an earlier copy of the whole folder, if neither is there; runs that did not name the
budget.
"""

from __future__ import annotations

import datetime
import functools
import getpass
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from dp_accounting.dp_event import DpEvent

from assay._util import journal
from assay._util.figures import at_least, at_most
from assay._util.files import make_folder
from assay._util.journal import Journal
from assay._util.signatures import PublicKey, read_private
from assay.accounting import events
from assay.accounting.adjacency import CLIENT, RECORD, Adjacency
from assay.accounting.budget_entries import SCHEMA, BudgetError, State, public_key, read_entries
from assay.accounting.epsilon import epsilon
from assay.accounting.filters import Costs, RenyiFilter
from assay.accounting.ledger import Ledger
from assay.accounting.marks import Mark
from assay.accounting.recognition import Beside, Compared, KnownRecords, Recognised, hash_records, one_for_both
from assay.accounting.remembered import Remembered
from assay.errors import BudgetSpentError, ConfigError, DataError

SUFFIX = ".budget"
_SLACK = 1 + 1e-9  # entries say this much more: the same releases, added up in another order, must not seem to be more
_MOST_NOISE = 1e4


class Spends(Protocol):
    """What a budget asks of a plan, central or federated."""

    @property
    def delta(self) -> float: ...
    @property
    def adjacency(self) -> Adjacency: ...
    @property
    def epsilon_limit(self) -> float | None: ...
    def event(self) -> DpEvent: ...


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What a run may spend: a bound on its Rényi divergences. It can be sent to other processes."""

    token: str
    filter: RenyiFilter
    adjacency: Adjacency
    costs: tuple[float, ...]

    def covers(self, event: DpEvent) -> bool:
        """Whether a ledger may hold this."""
        return bool(np.all(self.filter.costs(event, self.adjacency) <= np.array(self.costs)))


class Budget:
    """A budget on disk. Every answer is read from its file, which other processes may have changed meanwhile.

    Args:
        path: The folder `NAME.budget`, or NAME for short.
        key: The private key that signs entries, for a budget that was made with one.

    Raises:
        ConfigError: There is no such budget, or the key is not the budget's.
        BudgetError: The file is damaged.
    """

    def __init__(self, path: str | Path, *, key: str | Path | None = None) -> None:
        self.path = folder_of(path)
        if not self._journal.exists():
            raise ConfigError("budget", str(path), f"a budget; there is none at {self.path} (assay budget new)")
        self.key: Path | None = None if key is None else Path(key)
        self._key = None if key is None else read_private(key)
        header = self.state().header
        self.name: str = header["name"]
        self.id: str = header["id"]
        self.epsilon: float = header["epsilon"]
        self.delta: float = header["delta"]
        self.unit: str = header["unit"]
        self.adjacency = Adjacency(header["adjacency"])
        self.filter = RenyiFilter(tuple(header["orders"]), tuple(header["weights"]))
        self.public_key: PublicKey | None = public_key(header)
        if self._key is not None and self._key.public != self.public_key:
            raise ConfigError("budget_key", str(key), f"the key that {self.path} was made with")

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        epsilon: float,
        delta: float,
        contents: Iterable[bytes],
        unit: str = RECORD,
        adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
        key: str | Path | None = None,
        by: str | None = None,
        rows: Iterable[bytes] = (),
    ) -> Budget:
        """Make a new budget for records that have none.

        Args:
            path: The folder `NAME.budget`, or NAME for short; new.
            epsilon: The ceiling for all runs together.
            delta: Its δ, above 0.
            contents: What each record is recognised by (`assay.data.contents`).
            unit: What ε protects: `record`, `client`, or the name of the column that says whose a record is.
            adjacency: Which data sets are neighbours. Every run under the budget must have the same.
            key: A private key (`assay keys new`) that signs every entry; runs then need it too.
            by: Who makes it; the user of this process by default.
            rows: Where persons are protected, what each row of the table is recognised by: budgets of rows know those.

        Returns:
            The budget.

        Raises:
            ConfigError: A setting is not accepted, there is a budget of that name, or all of the records have one.
        """
        where = folder_of(path)
        chosen = RenyiFilter.for_ceiling(epsilon, delta)
        signer = None if key is None else read_private(key)
        others = _beside(where)
        found = Compared.of(contents, rows, KnownRecords.empty(), others, unit)
        if not found.records:
            raise ConfigError("data", "no records", "at least one record")
        found.check_new()
        make_folder(where, mode=0o700)
        with journal.alone(where / _JOURNAL, create=True) as file:
            if file.lines:
                raise ConfigError("budget", str(path), "a name that is not taken; there is a budget of that name")
            found.known.write(where / _RECORDS)
            header = {
                "schema": SCHEMA,
                "kind": "new",
                "id": secrets.token_hex(8),
                "name": where.name.removesuffix(SUFFIX),
                "epsilon": float(epsilon),
                "delta": float(delta),
                "unit": unit,
                "adjacency": adjacency.value,
                "orders": chosen.orders,
                "weights": chosen.weights,
                "public_key": None if signer is None else signer.public.raw.hex(),
                "records": found.records,
                "known": found.known.digest,
                "overlaps": found.overlaps,
                **_now(by),
            }
            file.append(header, signer)
        return cls(where, key=key)

    @property
    def _journal(self) -> Path:
        return self.path / _JOURNAL

    def state(self) -> State:
        """What the file says now.

        Raises:
            BudgetError: It is damaged, or an entry that should be signed is not.
        """
        return read_entries(journal.read(self._journal))

    def latest(self) -> State:
        """What the file says now, if it is not an earlier copy; every entry that is written asks the same.

        Raises:
            EarlierCopyError: The user who runs this process has seen more entries, or others.
        """
        remembered = Remembered("budget", self.id, self._journal)
        note = remembered.note()  # before the file: another process may write both
        state = self.state()
        remembered.check(state.heads, note)
        return state

    def spent(self) -> float:
        """The ε of all runs so far at the budget's δ; unfinished runs count with all that they reserved.

        Raises:
            EarlierCopyError: As `latest`.
        """
        return self.latest().spent()

    def recognise(self, contents: Iterable[bytes]) -> Recognised:
        """How many of these records the budget covers.

        Raises:
            AssayError: The file of records is missing, damaged, or not the budget's.
        """
        known = self._known(self.state())
        return known.look_up(hash_records(contents, [known])[0])

    def check_records(self, contents: Iterable[bytes]) -> Recognised:
        """Refuse records that the budget does not cover.

        Raises:
            ConfigError: There is no record.
            DataError: Some or all of them are not among those that the budget was made for.
        """
        found = self.recognise(contents)
        if not found.records:
            raise ConfigError("contents", "no record", "those of the run; a generator that was read before is empty")
        if found.known < found.records:
            overlap = "none of these" if not found.known else f"the two overlap: {found.known} of these"
            noun = "records" if self.unit in (RECORD, CLIENT) else "persons"
            raise DataError(
                f"the budget {self.name} is for other records: {overlap} {found.records} {noun} are in it. Make a "
                "budget for these records (assay budget new), or have this one cover them too: assay budget add "
                f"{self.name}"
            )
        return found

    def add_records(self, contents: Iterable[bytes], *, by: str | None = None, rows: Iterable[bytes] = ()) -> int:
        """Cover more records: they have the same ceiling, and count as if they had been there from the beginning.

        Args:
            contents: What each record is recognised by.
            by: Who adds them.
            rows: As for `create`.

        Returns:
            How many of them are new.
        """
        others = _beside(self.path)
        with self._alone() as file:
            state = read_entries(file)
            found = Compared.of(contents, rows, self._known(state), others, self.unit)
            # the entry first: until the file follows it is refused, which is the safe side
            line = {
                "kind": "records",
                "records": state.records + found.new,
                "known": found.known.digest,
                "overlaps": found.overlaps,
            }
            file.append({**line, **_now(by)}, self._key)
            found.known.write(self.path / _RECORDS)
        return found.new

    def check_terms(self, *, adjacency: Adjacency, unit: str) -> None:
        """Refuse a run whose ε does not mean what the budget's means.

        Raises:
            ConfigError: Unit or adjacency differ, or the budget is signed and there is no key.
        """
        if adjacency is not self.adjacency:
            raise ConfigError("adjacency", adjacency.value, f"{self.adjacency.value}, that of the budget {self.name}")
        if unit != self.unit:
            accepted = f"{self.unit}, that of the budget {self.name}: what ε protects must be one"
            raise ConfigError("unit", unit, accepted + one_for_both(self.unit, unit))
        self._check_key()

    def check_fits(self, event: DpEvent, noisier: Callable[[float], tuple[DpEvent, float]] | None = None) -> None:
        """Refuse a run that would pass the ceiling.

        Args:
            event: All that it may release.
            noisier: Gives the event with this many times the noise, and the ε of such a run: for the message.

        Raises:
            BudgetSpentError: It does not fit. Says what would.
            EarlierCopyError: An earlier copy is where the budget was.
        """
        state = self.latest()
        costs = self.filter.costs(event, self.adjacency)
        if state.fits(_with_slack(costs)):
            return
        raise BudgetSpentError(self._refusal(state, costs, noisier))

    def _refusal(self, state: State, costs: Costs, noisier: Callable[[float], tuple[DpEvent, float]] | None) -> str:
        if np.isinf(costs).all():
            return (
                f"the budget {self.name} cannot cover this run: something in it has no Rényi bound, so that no number "
                "of such runs has a total. It leaves without noise, or is sampled in a way that is accounted for by "
                "other means only"
            )
        spent, whole = state.spent(), self.filter.epsilon(state.costs + costs, self.delta)
        still, runs = sum(one.open for one in state.accounts), len(state.accounts)
        so_far = (
            "; there is no other run"
            if not runs
            else f"; {runs} so far, {still} of them not ended,"
            if still
            else f"; {runs} so far"
        )
        said = (
            f"the budget {self.name} does not allow this run: all runs together would spend ε = {_shown(whole)} of"
            f" {self.epsilon:g} at δ = {self.delta:g}{so_far}"
            + (f" spent or reserved ε = {_shown(spent)}" if runs else "")
        )
        fitting = None if noisier is None else self._fitting(state, noisier)
        if fitting is None:
            return said + ". Nothing was trained"
        fits = f"What is left allows a run like this with ε ≤ {at_least(fitting, 3)} (--epsilon)"
        return f"{said}. {fits}. Nothing was trained"

    def _fitting(self, state: State, noisier: Callable[[float], tuple[DpEvent, float]]) -> float | None:
        """About the largest ε of a run like this that would fit, rounded down; None if there is none to speak of."""

        def fits(times: float) -> bool:
            return state.fits(_with_slack(self.filter.costs(noisier(times)[0], self.adjacency)))

        low, high = 1.0, 2.0
        while not fits(high):
            low, high = high, 2 * high
            if high > _MOST_NOISE:
                return None
        while high / low > 1.005:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if fits(middle) else (middle, high)
        epsilon = noisier(high)[1]
        if not 0 < epsilon < math.inf:
            return None
        unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
        return math.floor(0.99 * epsilon / unit) * unit

    def reserve(
        self,
        event: DpEvent,
        *,
        token: str | None = None,
        name: str = "a run from Python",
        what: str = "",
        path: str | None = None,
        digest: str | None = None,
        epsilon: float = math.inf,
        delta: float | None = None,
        by: str | None = None,
        clients: str | None = None,
    ) -> Reservation:
        """Reserve all that a run may release; it is on disk when this returns. An earlier reservation is used again.

        A run that was settled and is resumed gets its reservation back if it still fits, and otherwise what it was
        settled with: enough for what it has released, and for nothing more.

        Args:
            event: All that the run may release, under the budget's adjacency.
            token: Names the run; a new one by default.
            name: What its operator calls it.
            what: What kind of run it is, in words.
            path: Where it is written.
            digest: The digest of its run.json.
            epsilon: The verified ε of the run by itself.
            delta: At which δ; the budget's by default.
            by: Who runs it.
            clients: As for `check_clients`.

        Returns:
            What its ledger may hold.

        Raises:
            BudgetSpentError: The ceiling does not allow it; nothing was written.
            ConfigError: The clients are others than those of another run.
        """
        token = secrets.token_hex(16) if token is None else token
        costs = _with_slack(self.filter.costs(event, self.adjacency))
        with self._alone() as file:
            state = read_entries(file)
            self._check_clients(state, clients)
            known = next((one for one in state.accounts if one.token == token), None)
            if known is not None:
                costs = np.maximum(costs, known.costs)
                same = digest is None or digest == known.digest  # an estimate of columns reserves before the run does
                if (known.open and same) or not state.fits(costs - np.array(known.costs)):
                    return self._reservation(token, known.costs)
            elif not state.fits(costs):
                raise BudgetSpentError(self._refusal(state, costs, None))
            if path is not None and known is None:  # before the entry that says so
                self.mark(token).create()
            line = {
                "kind": "reserve",
                "run": token,
                "name": name,
                "what": what,
                "path": path,
                "digest": digest,
                "marked": (path is not None) if known is None else known.marked,
                "epsilon": "inf" if math.isinf(epsilon) else float(epsilon),
                "delta": float(self.delta if delta is None else delta),
                "costs": _json(costs),
                "event": events.to_json(event),
                "clients": clients,
            }
            file.append({**line, **_now(by)}, self._key)
        return self._reservation(token, tuple(costs.tolist()))

    def mark(self, token: str) -> Mark:
        """The notes about the ledger of a run (`assay.accounting.marks`)."""
        return Mark(self.path / _RUNS / f"{token}.jsonl", self._key, self.public_key)

    def check_mark(self, token: str, heads: Sequence[str]) -> None:
        """Refuse a ledger that lacks the line which was noted last of a run.

        Args:
            token: The run. One that has reserved nothing, or without notes, is not checked.
            heads: The digests of the ledger's lines.

        Raises:
            LedgerError: It lacks the line.
            BudgetError: The notes are missing.
        """
        known = next((one for one in self.state().accounts if one.token == token), None)
        if known is None or not known.marked:
            return
        mark = self.mark(token)
        if not mark.exists:
            raise BudgetError(f"{self.path / _RUNS} lacks the notes about {known.name}: what it released is not known")
        mark.check(heads)

    def check_draws(self, draws: str | None) -> None:
        """Refuse random numbers that a run of this budget has drawn, before another begins; as `claim`."""
        if draws is not None:
            self._check_draws(self.state(), draws, "")

    def _check_draws(self, state: State, draws: str, token: str) -> None:
        runs = state.draws.get(draws, ())
        for one in state.accounts:
            if one.token in runs and one.token != token and any(one.costs):
                raise ConfigError(
                    "seed",
                    draws.removeprefix("seed "),
                    f"another seed, or none: {one.name} under the budget {self.name} has drawn the noise of this one, "
                    "and two runs with the same noise show what it hides",
                )

    def check_clients(self, clients: str | None) -> None:
        """Refuse clients that hold other records than those of the runs so far; `reserve` does so as well.

        Their ε would be about others: one client of the one partition may be in all clients of the other.

        Args:
            clients: How many there are and how they got their records; None where no client is the unit.

        Raises:
            ConfigError: A run whose costs count had others.
        """
        self._check_clients(self.state(), clients)

    def _check_clients(self, state: State, clients: str | None) -> None:
        for one in state.accounts:
            if clients is not None and one.clients not in (None, clients) and any(one.costs):
                raise ConfigError(
                    "partition",
                    clients,
                    f"the clients of the budget {self.name}: {one.clients} in {one.name}. What a client holds must be "
                    "the same in all runs, or their ε do not add up",
                )

    def claim(self, token: str, draws: str, *, by: str | None = None) -> None:
        """Note that a run draws random numbers that can be drawn again; it is on disk when this returns.

        Two runs with one seed have one noise, and whoever subtracts what they release sees none: the theorem is about
        noise drawn for each release.

        Args:
            token: The run.
            draws: The name of the numbers (`Randomness.fingerprint`).
            by: Who runs it.

        Raises:
            ConfigError: Another run of this budget has drawn them, and what it released counts.
        """
        with self._alone() as file:
            state = read_entries(file)
            self._check_draws(state, draws, token)
            if token not in state.draws.get(draws, ()):
                file.append({"kind": "seed", "run": token, "draws": draws, **_now(by)}, self._key)

    def _reservation(self, token: str, costs: tuple[float, ...]) -> Reservation:
        return Reservation(token=token, filter=self.filter, adjacency=self.adjacency, costs=costs)

    def settle(
        self, token: str, event: DpEvent, *, steps: int | None = None, how: str = "finished", by: str | None = None
    ) -> None:
        """Replace what a run reserved by what its ledger says; durable when this returns.

        Args:
            token: The run.
            event: Everything that its ledger was charged with. Nobody may be charging it any more.
            steps: How many steps those are.
            how: Why: `finished`, `ledger` or `failed`.
            by: Who does it.

        Raises:
            BudgetError: The run never reserved anything here.
        """
        costs = _with_slack(self.filter.costs(event, self.adjacency))
        with self._alone() as file:
            known = {one.token: one for one in read_entries(file).accounts}.get(token)
            if known is None:
                raise BudgetError(f"{self.path} has no reservation of this run")
            if not known.open and known.costs == tuple(costs.tolist()):
                return
            line = {"kind": "settle", "run": token, "costs": _json(costs), "event": events.to_json(event)}
            file.append({**line, "steps": steps, "how": how, **_now(by)}, self._key)

    @contextmanager
    def ledger(
        self, plan: Spends, contents: Iterable[bytes], *, unit: str = RECORD, name: str = "a loop of one's own"
    ) -> Iterator[Ledger]:
        """Reserve for a loop of one's own; give back at its end, however it ends, what its ledger does not hold.

            with budget.ledger(plan, assay.data.contents(train)) as ledger:
                step = assay.PrivateStep(model, plan, ledger=ledger)

        `assay.fit` does this by itself. The ledger is in memory: a process that is killed leaves the whole reservation.

        Args:
            plan: What the loop may release.
            contents: What each of its records is recognised by.
            unit: What the plan's ε protects.
            name: What the loop is called in the budget.

        Yields:
            A ledger that holds no more than was reserved.

        Raises:
            ConfigError: The budget's unit or adjacency is another.
            DataError: The budget is for other records.
            BudgetSpentError: The ceiling does not allow it.
        """
        self.check_terms(adjacency=plan.adjacency, unit=unit)
        check_independent(plan)
        self.check_records(contents)
        event = plan.event()
        held = self.reserve(event, name=name, epsilon=epsilon(event, plan.delta, plan.adjacency), delta=plan.delta)
        mine = Ledger(None, delta=plan.delta, adjacency=plan.adjacency, ceiling=plan.epsilon_limit)
        mine.covers, mine.unit, mine.budget = held.covers, unit, self.id
        mine.claim = functools.partial(self.claim, held.token)
        try:
            yield mine
        finally:
            mine.end()  # who still has it, or a step that was made with it, may charge nothing more
            self.settle(held.token, mine.event(), steps=mine.total_steps)

    def _known(self, state: State) -> KnownRecords:
        known = KnownRecords.read(self.path / _RECORDS)
        if known.digest != state.known:
            raise BudgetError(
                f"{self.path / _RECORDS} is not the file that {self._journal} names: which records are covered is not "
                "known. If assay budget add was interrupted, repeat it"
            )
        return known

    @contextmanager
    def _alone(self) -> Iterator[Journal]:
        self._check_key()
        with journal.alone(self._journal) as file, Remembered("budget", self.id, self._journal).alone(file.heads):
            yield file

    def _check_key(self) -> None:
        if self.public_key is not None and self._key is None:
            raise ConfigError(
                "budget_key", None, f"the private key of the budget {self.name} (--budget-key): its entries are signed"
            )


_JOURNAL, _RECORDS, _RUNS = "budget.jsonl", "records.bin", "runs"


def folder_of(name: str | Path) -> Path:
    """The folder of a budget by its name: `patients` is `patients.budget`."""
    path = Path(name)
    return path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)


def check_independent(plan: object) -> None:
    """Refuse noise that several steps have in common: the filter's theorem is about releases with separate noise.

    Raises:
        ConfigError: The plan's noise schedule correlates steps.
    """
    schedule = getattr(plan, "noise_schedule", None)
    if schedule is not None and schedule.correlated:
        raise ConfigError(
            "noise_schedule",
            str(schedule),
            "constant or decay under a budget: noise that steps share is not covered there",
        )


def check_lines(budget: Budget) -> list[str]:
    """What is wrong with the entries of a budget, apart from damage, which is an error when they are read.

    Every cost is computed again from its event, and every reservation is held against the ceiling as it was then.

    Returns:
        A sentence for each thing; none if all is well.
    """
    lines = journal.read(budget.path / _JOURNAL).lines
    wrong: list[str] = []
    now: dict[str, Costs] = {}
    for number, line in enumerate(lines[1:], start=2):
        if line["kind"] not in ("reserve", "settle"):
            continue
        said = np.array([float(cost) for cost in line["costs"]])
        least = budget.filter.costs(events.from_json(line["event"]), budget.adjacency)
        if not np.all(said >= least):
            wrong.append(f"entry {number} says less than its event costs")
        now[line["run"]] = said
        whole = np.sum(list(now.values()), axis=0)
        if not budget.filter.allows(whole, budget.epsilon, budget.delta):
            wrong.append(f"with entry {number} the runs together are above the ceiling")
    return wrong


def _with_slack(costs: Costs) -> Costs:
    return np.asarray(costs * _SLACK, dtype=np.float64)


def _json(costs: Costs) -> list[float | str]:
    return ["inf" if math.isinf(cost) else cost for cost in costs.tolist()]


def _shown(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else at_most(epsilon)


def _now(by: str | None) -> dict[str, Any]:
    if by is None:
        try:
            by = getpass.getuser()
        except (OSError, KeyError, ImportError):  # a user without a name
            by = "unknown"
    return {"time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "by": by}


def _beside(where: Path) -> list[Beside]:
    """The budgets in the same folder, and which records they cover."""
    found = []
    for path in sorted(where.absolute().parent.glob(f"*{SUFFIX}")):
        if path != where.absolute() and (path / _JOURNAL).exists() and (path / _JOURNAL).stat().st_size:
            other = Budget(path)
            state = other.state()
            said = {"id": other.id, "name": other.name, "epsilon": other.epsilon}
            found.append(Beside(said=said, unit=other.unit, records=state.records, known=other._known(state)))
    return found
