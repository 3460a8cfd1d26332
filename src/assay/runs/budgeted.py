"""A run under a budget: what it reserves before it starts, what its ledger may hold, and what it gives back at its end.

The run's own ledger stays the truth about the run. The budget holds what all runs reserved, and in place of each
reservation what the ledger said once the run had ended.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent

from assay._util.files import lock
from assay._util.signatures import read_either
from assay.accounting.adjacency import CLIENT, RECORD
from assay.accounting.budget import Budget, Reservation, Spends, check_independent, check_lines
from assay.accounting.budget_entries import Account, BudgetError, State
from assay.accounting.epsilon import epsilon
from assay.accounting.ledger import Ledger, LedgerError, read_ledger
from assay.accounting.remembered import EarlierCopyError
from assay.errors import AssayError, ConfigError, DataError, check_fields
from assay.runs.directory import RunDirectory
from assay.runs.schema import read_record

FIELD = "budget"
"""The field of `run.json` and of `record.json`."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A run's part in a budget, as its `run.json` holds it.

    Attributes:
        path: The budget's folder.
        id: The budget's own random name: another one in the same place is refused.
        token: The random name of the run in the budget.
        name: What the operator calls the run.
        what: What kind of run it is, in words.
        data: A keyed digest of its records.
        key: The file of the private key, for a budget that is signed.
        by: Who runs it; None for the user of the process.
        clients: Whom ε protects in a federation (`unit_in`); None elsewhere.
    """

    path: str
    id: str
    token: str
    name: str
    what: str
    data: str
    key: str | None = None
    by: str | None = None
    clients: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As `run.json` holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Lease | None:
        """The lease of a run; None for a run without a budget.

        Raises:
            ConfigError: A field is not known, or missing.
        """
        if data is None:
            return None
        check_fields(FIELD, data, [field.name for field in fields(cls)])
        try:
            return cls(**data)
        except TypeError as error:
            raise ConfigError(FIELD, data, f"the fields of a lease ({error})") from error

    def budget(self) -> Budget:
        """The budget.

        Raises:
            ConfigError: It is not there, or another one is in its place.
        """
        found = Budget(self.path, key=self.key)
        if found.id != self.id:
            raise ConfigError(FIELD, self.path, "the budget that the run began under; another one is in its place")
        return found

    def check_records(self, contents: Iterable[bytes]) -> None:
        """Refuse to resume a run on other records than it began with: their own budget would not know of it.

        Raises:
            DataError: These are others.
        """
        found = self.budget()
        if found.check_records(contents).digest != self.data:
            raise DataError(
                f"the run {self.name} began on other records of the budget {found.name}: resume it on those"
            )

    def begin(
        self, plan: Spends, directory: RunDirectory | None, ledger: Ledger, *, digest: str | None = None
    ) -> Reservation:
        """Reserve what the plan may release, or take up what was reserved before.

        Args:
            plan: What the run may release.
            directory: Where the run is written, if anywhere.
            ledger: What will be charged. The budget notes each of its lines, so that no copy of it can be charged too.
            digest: Names the ledger of an estimate that comes before the run; by default that of the run.

        Raises:
            BudgetSpentError: The ceiling does not allow it.
            LedgerError: Another copy of the run has been charged.
            BudgetError: The run was charged, and the budget does not know it; or the lease has served a run that ended.
        """
        event, budget = plan.event(), self.budget()
        heads = _heads(ledger, directory)
        if not ledger.is_empty and all(one.token != self.token for one in budget.state().accounts):
            raise BudgetError(
                f"{budget.path} has no entry of {self.name}, which was charged under it: an earlier copy of the budget "
                "was put in its place, and what others have spent since is not known"
            )
        self._check_unused(budget)
        budget.check_mark(self.token, heads)
        held = budget.reserve(
            event,
            token=self.token,
            name=self.name,
            what=self.what,
            path=None if directory is None else str(directory.path.absolute()),
            digest=digest if digest is not None or directory is None else directory.digest(),
            epsilon=epsilon(event, plan.delta, plan.adjacency),
            delta=plan.delta,
            by=self.by,
            clients=self.clients,
        )
        if (mark := budget.mark(self.token)).exists:
            mark.bind(ledger, heads)
        ledger.budget = self.id
        ledger.covers, ledger.claim = held.covers, functools.partial(budget.claim, self.token, by=self.by)
        return held

    def _check_unused(self, budget: Budget) -> None:
        """Refuse a second run on the reservation of one that had its ledger in memory, and has ended.

        Such a ledger is gone, so that nothing can be charged after it. A run on disk goes on with its own.
        """
        known = next((one for one in budget.state().accounts if one.token == self.token), None)
        if known is not None and known.path is None and not known.open and any(known.costs):
            raise BudgetError(
                f"{self.name} has ended: what it released is in the budget {budget.name}, and its ledger, which was in "
                "memory, cannot be charged any more. Give each run the budget, or a lease of its own"
            )

    def end(self, ledger: Ledger, how: str = "finished") -> dict[str, Any]:
        """Give back what the ledger does not hold; nobody may charge it any more.

        Returns:
            What the record says of the budget.
        """
        budget = self.budget()
        ledger.end()  # before: what is charged after it would be in no budget
        budget.settle(self.token, ledger.event(), steps=ledger.total_steps, how=how, by=self.by)
        return facts(budget, self)


def _heads(ledger: Ledger, directory: RunDirectory | None) -> list[str]:
    """The digests of a ledger's lines, and of those of the estimate of columns that came before it."""
    before = None if directory is None else read_ledger(directory.estimate_ledger)
    return [*ledger.heads, *(() if before is None else before.heads)]


def id_of(budget: Budget | Lease | str | Path | None) -> str | None:
    """The id of a budget, however it is given; None where there is none.

    Raises:
        ConfigError: There is no budget of this name.
    """
    if budget is None or isinstance(budget, Budget | Lease):
        return None if budget is None else budget.id
    return Budget(budget).id


def unit_of(plan: object) -> str:
    """What the ε of a plan protects: `record`, `client`, or the column that says whose a record is."""
    unit = getattr(plan, "unit", None)
    return RECORD if unit is None else str(getattr(unit, "name", unit))


def unit_in(spec: Mapping[str, Any]) -> str | None:
    """What ε protects, by what a run or an estimate was asked for; None if that does not say.

    As `unit_of`, and of clients also how they got their records: those of another partition are others.
    """
    if "plan" not in spec:
        return (spec.get("about") or {}).get("unit")
    plan, names = spec["plan"], spec["names"]
    said = plan.get("unit")
    if isinstance(said, dict):
        return str(said.get("name"))
    if said == CLIENT and "partition" in names:
        divided = f"{plan['clients']} of {names.get('records')} records, {names['partition']}"
        return f"{CLIENT} ({divided}, seed {names.get('partition_seed')})"
    return str(said or RECORD) if "clients" in plan or said else str(names.get("unit_column") or RECORD)


def lease(
    budget: Budget | str | Path,
    plan: Spends,
    contents: Iterable[bytes],
    *,
    name: str,
    what: str,
    key: str | Path | None = None,
    by: str | None = None,
    noisier: Callable[[float], tuple[DpEvent, float]] | None = None,
    draws: str | None = None,
    clients: str | None = None,
) -> Lease:
    """Check that a run may begin under a budget; nothing is written yet.

    Args:
        budget: The budget, its name or its folder.
        plan: All that decides what the run may release.
        contents: What each of its records is recognised by.
        name: What the operator calls the run.
        what: What kind of run it is, in words.
        key: The private key, for a budget that is signed.
        by: Who runs it.
        noisier: For the message of a refusal (`Budget.check_fits`).
        draws: Names its random numbers, if they can be drawn again (`Randomness.fingerprint`).
        clients: Whom ε protects in a federation (`unit_in`).

    Returns:
        What goes into its `run.json`.

    Raises:
        ConfigError: The budget's unit or adjacency is another, its clients are others, the run's noise is not covered
            by its theorem, or another run has drawn it.
        DataError: The budget is for other records.
        BudgetSpentError: The run would pass the ceiling. Says what would fit.
    """
    found = budget if isinstance(budget, Budget) else Budget(budget, key=key)
    found.check_terms(adjacency=plan.adjacency, unit=unit_of(plan))
    check_independent(plan)
    recognised = found.check_records(contents)
    found.check_draws(draws)
    found.check_clients(clients)
    found.check_fits(plan.event(), noisier)
    return Lease(
        path=str(found.path.absolute()),
        id=found.id,
        token=secrets.token_hex(16),
        name=name,
        what=what,
        data=recognised.digest,
        key=None if found.key is None else str(found.key.absolute()),
        by=by,
        clients=clients,
    )


def facts(budget: Budget, mine: Lease) -> dict[str, Any]:
    """What a record says of its budget: this run, and all so far."""
    state = budget.state()
    own = next(one for one in state.accounts if one.token == mine.token)
    return {
        "name": budget.name,
        "id": budget.id,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "unit": budget.unit,
        "adjacency": budget.adjacency.value,
        "orders": list(budget.filter.orders),
        "weights": list(budget.filter.weights),
        "costs": ["inf" if cost == float("inf") else cost for cost in own.costs],
        "spent": _finite(state.spent()),
        "runs": len(state.accounts),
        "open": sum(one.open for one in state.accounts),
        "records": state.records,
        # how many records both have is an exact figure about them: only the budget's holder reads it
        "overlaps": [{name: one[name] for name in one if name != "records"} for one in state.overlaps],
        "entries": len(state.heads),
        "head": state.heads[-1],
        "data": mine.data,
        "token": mine.token,
        "signed_by": None if budget.public_key is None else budget.public_key.fingerprint,
    }


def _finite(value: float) -> float | str:
    return "inf" if value == float("inf") else value


def settle_by_ledgers(
    budget: Budget, runs: Sequence[Path] = (), *, by: str | None = None
) -> list[tuple[Account, str | None]]:
    """Settle runs that have stopped, by what their ledgers hold.

    A ledger is on disk before anything is released, so what it holds is all that was. From then on the run may charge
    no more, unless it is resumed and what it had reserved still fits.

    Args:
        budget: The budget.
        runs: Where to look, beside the places that the budget knows.
        by: Who does it.

    Returns:
        Every run whose reservation stood, and why it still does; None for those that were settled.
    """
    said: list[tuple[Account, str | None]] = []
    for account in [one for one in budget.latest().accounts if one.open]:
        folders = [*([] if account.path is None else [Path(account.path)]), *runs]
        try:
            with _idle_ledger(account, folders, budget) as ledger:
                budget.settle(account.token, ledger.event(), steps=ledger.total_steps, how="ledger", by=by)
            said.append((account, None))
        except (AssayError, OSError) as error:
            said.append((account, str(error)))
    return said


@contextlib.contextmanager
def _idle_ledger(account: Account, folders: Sequence[Path], budget: Budget) -> Any:
    """The ledger of a run that nobody charges now, nor can while this lasts. A copy that lacks a charge is refused."""
    if account.digest is None:
        raise BudgetError("it was run from Python without a directory: what it released is not known")
    for path in _ledgers(folders):
        if _header(path).get("run") != account.digest:
            continue
        with path.open("rb") as file:
            if not lock(file):
                raise LedgerError(f"it is still at work in {path.parent}")
            if (ledger := read_ledger(path, account.digest)) is not None:
                budget.check_mark(account.token, _heads(ledger, RunDirectory(path.parent)))
                yield _with_estimate(ledger, path.parent)
                return
    for folder in folders:
        if (run := RunDirectory(folder)).spec.exists() and run.digest() == account.digest and not run.ledger.exists():
            # its run.json is there and nothing was ever charged
            nothing = Ledger(None, delta=account.delta, adjacency=budget.adjacency, ceiling=None)
            budget.check_mark(account.token, _heads(nothing, run))
            yield _with_estimate(nothing, folder)
            return
    raise BudgetError("its ledger was not found: it may have released all that it reserved")


def _with_estimate(ledger: Ledger, folder: Path) -> Ledger:
    """The ledger of a run; where it is empty, that of the estimate of columns which came first."""
    if not ledger.is_empty:
        return ledger
    return read_ledger(RunDirectory(folder).estimate_ledger) or ledger


def _ledgers(folders: Sequence[Path]) -> list[Path]:
    """The ledgers of runs, and of those that were replaced with --force."""
    found = []
    for folder in folders:
        run = RunDirectory(folder)
        found += [path for path in (run.ledger, run.estimate_ledger) if path.exists()]
        found += sorted(run.earlier.glob("*.jsonl"))
    return found


def _header(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes().split(b"\n", 1)[0])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found when a budget was held against the runs under it.

    Attributes:
        problems: What is wrong, in sentences; none if all is well.
        compared: How many runs were found and agree.
        missing: The names of runs that were not found.
    """

    problems: tuple[str, ...]
    compared: int
    missing: tuple[str, ...]


def verify(budget: Budget, runs: Sequence[Path] = (), *, key: Path | None = None) -> Verdict:
    """Hold a budget against itself and against the runs that can be found.

    Its chain of digests and its signatures are checked when it is read. Here every cost is computed again from its
    event, and the ceiling is checked entry by entry. Each run's ledger is compared with its last entry. A record that
    names the budget must name an entry that is there: this shows entries that were cut off at the end.

    Args:
        budget: The budget.
        runs: Directories of runs, or folders of them, beside the places that the budget knows.
        key: The public key that it must be signed with. Whoever rewrites a whole budget can sign it with a key of their
            own.

    Returns:
        What was found.
    """
    state = budget.state()
    problems = check_lines(budget)
    try:
        budget.latest()
    except EarlierCopyError as error:
        problems.append(str(error))
    if key is not None and budget.public_key != read_either(key):
        problems.append("it is not signed with the key that was given")
    if not (budget.path / "records.bin").exists():
        problems.append("records.bin is missing: records are not recognised any more")
    places = {Path(one.path) for one in state.accounts if one.path is not None and Path(one.path).is_dir()}
    for run in runs:
        places |= {run} if (run / "run.json").exists() else {spec.parent for spec in run.rglob("run.json")}
    seen: set[str] = set()
    for place in sorted(places):
        token, trouble = _compare(budget, state, RunDirectory(place))
        problems += trouble
        if token is not None:
            seen.add(token)
    missing = tuple(one.name for one in state.accounts if one.token not in seen)
    return Verdict(problems=tuple(problems), compared=len(seen), missing=missing)


def _compare(budget: Budget, state: State, run: RunDirectory) -> tuple[str | None, list[str]]:
    """The token of a run under this budget, and what of it does not agree."""
    try:
        mine = Lease.from_json(run.read_spec().get(FIELD))
        if mine is None or mine.id != budget.id:
            return None, []
        account = next((one for one in state.accounts if one.token == mine.token), None)
        if account is None:
            charged = run.ledger.exists()
            return mine.token, [f"{run.path} ran under this budget, which has no entry of it"] if charged else []
        problems = _against_ledger(budget, account, run) + _against_record(state, mine, run)
    except AssayError as error:
        return None, [str(error)]
    return mine.token, problems


def _against_ledger(budget: Budget, account: Account, run: RunDirectory) -> list[str]:
    if not run.ledger.exists() or _header(run.ledger).get("run") != account.digest:
        return []
    ledger = read_ledger(run.ledger)
    if ledger is None:
        return []
    try:
        budget.check_mark(account.token, _heads(ledger, run))
    except AssayError as error:
        return [f"{run.path}: {error}"]
    held = Reservation(token="", filter=budget.filter, adjacency=budget.adjacency, costs=account.costs)
    if held.covers(ledger.event()):
        return []
    return [f"the ledger of {run.path} holds more than the budget was charged with"]


def _against_record(state: State, mine: Lease, run: RunDirectory) -> list[str]:
    if not run.record.exists():
        return []
    said = read_record(run.record).get(FIELD) or {}
    if said.get("id") != mine.id:
        return [f"the record of {run.path} does not name the budget that its run.json names"]
    place = int(said["entries"])
    if place > len(state.heads) or state.heads[place - 1] != said["head"]:
        return [
            f"{run.path} was written when the budget had {place} entries; they are not those of today. Entries were"
            " removed or changed, or an earlier copy was put in their place"
        ]
    return []
