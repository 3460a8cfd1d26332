"""The entries of a budget: what each must hold, and what they add up to.

A file that says what cannot be is refused (`BudgetError`): an entry that is misread gives a wrong ε.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent

from assay._util import journal
from assay._util.journal import Journal, JournalError
from assay._util.signatures import PublicKey
from assay.accounting import events
from assay.accounting.adjacency import Adjacency
from assay.accounting.epsilon import epsilon
from assay.accounting.filters import Costs, RenyiFilter

SCHEMA = "assay.budget/1"
_MOST_NOISE = 1e4


class BudgetError(JournalError):
    """A budget's file is not what was written, or says what cannot be."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """One run in a budget.

    Attributes:
        token: The random name by which the run and its entries know each other.
        name: What its operator calls it, such as its directory.
        what: What kind of run it is, in words.
        path: Where it was written; None where it was not.
        digest: The digest of its run.json, which its ledger names; None where it has none.
        epsilon: The verified ε of its plan by itself, and at which `delta`.
        delta: The run's own δ.
        reserved: What it reserved at each order.
        costs: What it counts for now: what it reserved, or what its ledger said when it was settled.
        event: What was released, or may be, as JSON.
        open: Whether the reservation still stands.
        steps: How many steps its ledger had when it was settled.
        how: Why it was settled: `finished`, `ledger` or `failed`.
        began: When it reserved.
        changed: When its last entry was written.
        by: Who wrote that.
        marked: Whether the budget keeps notes about its ledger; not of runs of earlier versions, or without a folder.
        clients: Whom ε protects in a federation, and what they hold; None elsewhere, and for earlier versions.
    """

    token: str
    name: str
    what: str
    path: str | None
    digest: str | None
    epsilon: float | str
    delta: float
    reserved: tuple[float, ...]
    costs: tuple[float, ...]
    event: Mapping[str, Any]
    open: bool
    steps: int | None
    how: str | None
    began: str
    changed: str
    by: str
    marked: bool = False
    clients: str | None = None


@dataclass(frozen=True, kw_only=True)
class State:
    """A budget as its entries say it is.

    Attributes:
        header: The first entry: ceiling, unit, filter.
        accounts: One for each run, in the order in which they reserved.
        records: How many records or persons are covered.
        overlaps: Other budgets that some of the records are in too.
        known: The digest of the file of records.
        heads: The digest of each entry.
        draws: Which runs draw random numbers that can be drawn again, by the name of the numbers: those of a seed.
    """

    header: Mapping[str, Any]
    accounts: tuple[Account, ...]
    records: int
    overlaps: tuple[Mapping[str, Any], ...]
    known: str | None
    heads: tuple[str, ...]
    draws: Mapping[str, Sequence[str]]

    @property
    def filter(self) -> RenyiFilter:
        """The orders and weights."""
        return RenyiFilter(tuple(self.header["orders"]), tuple(self.header["weights"]))

    @property
    def costs(self) -> Costs:
        """What all runs count for, added up."""
        whole = np.zeros(len(self.header["orders"]))
        for account in self.accounts:
            whole = whole + np.array(account.costs)
        return whole

    def spent(self, *, with_open: bool = True) -> float:
        """The ε of all runs together; without those whose reservation still stands if not `with_open`."""
        counted = [np.array(one.costs) for one in self.accounts if with_open or not one.open]
        return self.filter.epsilon(np.sum(counted, axis=0), self.header["delta"]) if counted else 0.0

    def left(self) -> float:
        """How much is left, roughly: the ε of one more release with Gaussian noise that would fit, at the budget's δ.

        Runs of many steps cost a little more than that for the same ε.
        """
        adjacency, delta = Adjacency(self.header["adjacency"]), self.header["delta"]
        if not self.fits(self.filter.costs(GaussianDpEvent(_MOST_NOISE), adjacency)):
            return 0.0
        low, high = 1e-2, _MOST_NOISE
        while high / low > 1 + 1e-4:
            middle = math.sqrt(low * high)
            fits = self.fits(self.filter.costs(GaussianDpEvent(middle), adjacency))
            low, high = (low, middle) if fits else (middle, high)
        return epsilon(GaussianDpEvent(high), delta, adjacency)

    def so_far(self) -> list[float]:
        """The ε of all runs up to each one, in the order in which they reserved."""
        if not self.accounts:
            return []
        costs = np.cumsum([one.costs for one in self.accounts], axis=0)
        return [self.filter.epsilon(each, self.header["delta"]) for each in costs]

    def fits(self, costs: Costs) -> bool:
        """Whether something that costs this may be released, beside all that is charged or reserved."""
        return self.filter.allows(self.costs + costs, self.header["epsilon"], self.header["delta"])


def public_key(header: Mapping[str, Any]) -> PublicKey | None:
    """The key that signs the entries of a budget, by its first entry."""
    raw = header["public_key"]
    return None if raw is None else PublicKey(bytes.fromhex(raw))


_HEADER: Mapping[str, type | tuple[type, ...]] = {
    "id": str,
    "name": str,
    "epsilon": float,
    "delta": float,
    "unit": str,
    "adjacency": str,
    "orders": list,
    "weights": list,
    "public_key": (str, type(None)),
    "records": int,
    "known": str,
    "overlaps": list,
    "time": str,
    "by": str,
}
_ENTRIES: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "reserve": {
        "run": str,
        "name": str,
        "what": str,
        "costs": list,
        "event": dict,
        "delta": float,
        "time": str,
        "by": str,
    },
    "settle": {"run": str, "costs": list, "event": dict, "how": str, "time": str, "by": str},
    "records": {"records": int, "known": str, "overlaps": list, "time": str, "by": str},
    "seed": {"run": str, "draws": str, "time": str, "by": str},
}


def read_entries(file: Journal) -> State:
    """What the entries add up to."""
    if not file.lines:
        raise BudgetError(f"{file.path} is empty: the budget was never made whole")
    header = file.lines[0]
    if header.get("schema") != SCHEMA:
        raise BudgetError(f"{file.path} has schema {header.get('schema')!r}; this version of Assay reads {SCHEMA!r}")
    _check(file, 1, header, _HEADER)
    key = public_key(header)
    if key is not None and (wrong := journal.unsigned(file, key)):
        raise BudgetError(
            f"{file.path} is damaged: entry {wrong[0]} is not signed with the budget's key. Somebody without it wrote "
            "there"
        )
    accounts: dict[str, Account] = {}
    draws: dict[str, list[str]] = {}
    records, known, overlaps = header["records"], header["known"], list(header["overlaps"])
    for number, line in enumerate(file.lines[1:], start=2):
        kind = str(line.get("kind"))
        if kind not in _ENTRIES:
            raise BudgetError(f"{file.path} is damaged: entry {number} is of kind {kind!r}")
        _check(file, number, line, _ENTRIES[kind])
        if kind == "records":
            records, known = line["records"], line["known"]
            overlaps += line["overlaps"]
            continue
        if kind == "seed":
            draws.setdefault(line["draws"], []).append(line["run"])
            continue
        before = accounts.get(line["run"])
        if kind == "settle" and before is None:
            raise BudgetError(f"{file.path} is damaged: entry {number} settles a run that reserved nothing")
        accounts[line["run"]] = _account(file, number, line, before, len(header["orders"]))
    return State(
        header=header,
        accounts=tuple(accounts.values()),
        records=records,
        overlaps=tuple(overlaps),
        known=known,
        heads=tuple(file.heads),
        draws=draws,
    )


def _account(file: Journal, number: int, line: Mapping[str, Any], before: Account | None, orders: int) -> Account:
    try:
        costs = tuple(float(cost) for cost in line["costs"])
        events.from_json(line["event"])
    except ValueError as error:
        raise BudgetError(f"{file.path} is damaged: entry {number}: {error}") from error
    if len(costs) != orders or not all(cost >= 0 for cost in costs):
        raise BudgetError(f"{file.path} is damaged: entry {number} has costs {line['costs']}")
    settled = line["kind"] == "settle"
    first = line if before is None else vars(before)
    return Account(
        token=line["run"],
        name=first["name"],
        what=first["what"],
        path=line.get("path") or first.get("path"),
        digest=line.get("digest") or first.get("digest"),
        epsilon=first.get("epsilon", "inf"),
        delta=first["delta"],
        reserved=before.reserved if before is not None else costs,
        costs=costs,
        event=line["event"],
        open=not settled,
        steps=line.get("steps") if settled else None,
        how=line["how"] if settled else None,
        began=line["time"] if before is None else before.began,
        changed=line["time"],
        by=line["by"],
        marked=bool(first.get("marked")),
        clients=first.get("clients"),
    )


def _check(file: Journal, number: int, line: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    for name, kind in fields.items():
        if not isinstance(line.get(name), kind) or isinstance(line.get(name), bool):
            raise BudgetError(f"{file.path} is damaged: entry {number}: field {name} is {line.get(name)!r}")
