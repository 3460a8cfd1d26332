"""Which parameters were trained on which records in this process.

A run that begins with what an earlier one has learnt about the same records shows what both have released. Its ledger
must then hold both, or a budget must. Copies are recognised by their numbers (`copy.deepcopy`, `load_state_dict`): no
other run ends with the same ones. Weights that were changed since, or that another process trained, are not recognised.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from assay.accounting.ledger import Ledger
from assay.data.records import Records
from assay.errors import ConfigError

_SECONDS = 0.2  # for fetching records


class Marked(NamedTuple):
    """What records are recognised by."""

    digest: str
    """Of some of them in their order."""
    marks: frozenset[str]
    """Of some of them."""
    seen: int
    """How many those are; equal ones have one mark."""
    records: int

    def shares(self, other: Marked) -> bool:
        """Whether both have more than one record in a hundred in common, beside copies inside one of them."""
        common = len(self.marks & other.marks)
        most = 0.01 * self.seen * other.seen / max(1, self.records, other.records)
        copies = self.seen - len(self.marks) + other.seen - len(other.marks)
        return (self.digest == other.digest) or common > max(most, 4 * copies)


class Trained(NamedTuple):
    """A run that has trained a parameter."""

    on: Marked
    """Its records."""
    ledger: Ledger
    """What it was charged to."""


class _Known(NamedTuple):
    parameter: weakref.ref[Tensor]
    version: int  # changes with every write to the parameter
    runs: frozenset[Trained]


_KNOWN: dict[int, _Known] = {}
_NUMBERS: deque[tuple[frozenset[bytes], frozenset[Trained]]] = deque(maxlen=32)  # marks of records take memory
"""The numbers that parameters ended with, and the runs that trained them; of the last runs of this process."""
_COMPARED, _LEAST = 1024, 4  # numbers of a parameter; fewer may be equal by chance


def numbers(parameters: Iterable[Tensor]) -> dict[int, bytes]:
    """A digest of some numbers of each parameter, by its identity. Parameters that cannot be told apart have none."""
    found = {}
    for p in parameters:
        if type(p) not in (Tensor, nn.Parameter) or p.layout is not torch.strided or p.is_meta or p.numel() < _LEAST:
            continue
        flat = p.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // _COMPARED)].cpu()
        if bool((some != some[0]).any()):  # all alike are initial values
            found[id(p)] = hashlib.sha256(f"{len(flat)}".encode() + some.double().numpy().tobytes()).digest()
    return found


class TrainedOn:
    """Notes, once a run is over, which records its model was trained on.

    Args:
        model: The model, before the run.
        records: The records.
    """

    def __init__(self, model: nn.Module, records: Records) -> None:
        self._model, self._behind, self._on = model, runs_behind(model), marked(records)
        self._began = numbers(model.parameters())

    def end(self, ledger: Ledger) -> None:
        """The run has taken a step, was charged to this ledger, and leaves the model as it is now."""
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        note(parameters, self._behind | {Trained(self._on, ledger)}, self._began)


def check_untrained(model: nn.Module, records: Records, *, budget: str | None = None) -> None:
    """Refuse a model that an earlier run has trained on these records, before a run with a ledger of its own.

    Args:
        model: The model.
        records: The records of the run.
        budget: The id of the budget that it is under; None without one.

    Raises:
        ConfigError: As `check`.
    """
    if behind := runs_behind(model):
        check(behind, marked(records), None, budget=budget)


def marked(records: Records) -> Marked:
    """What records are recognised by, in whatever order: all of at most 4,096, or as many as can be fetched quickly."""
    if not len(records):
        return Marked("", frozenset(), 0, 0)
    found = records.marks(512, tensors=4096, seconds=_SECONDS)
    return Marked(records.digest(), frozenset(found), len(found), len(records))


def runs_behind(model: nn.Module, *, copies: bool = True) -> frozenset[Trained]:
    """The runs that have trained parameters of this model, unless changed since; with `copies`, or the same numbers."""
    return runs_behind_these(model.parameters(), copies=copies)


def runs_behind_these(parameters: Iterable[Tensor], *, copies: bool = True) -> frozenset[Trained]:
    """As `runs_behind`, of tensors."""
    found: set[Trained] = set()
    several = list(parameters)
    here = set(numbers(several).values()) if _NUMBERS and copies else set()
    for known, runs in _NUMBERS:
        if not here.isdisjoint(known):
            found |= runs
    for parameter in several:
        this = _KNOWN.get(id(parameter))
        if this is not None and this.parameter() is parameter and this.version == parameter._version:
            found |= this.runs
    return frozenset(found)


def note(parameters: Iterable[Tensor], runs: Iterable[Trained], began: Mapping[int, bytes]) -> None:
    """Note which runs have trained these parameters, as they are now; `began` are their `numbers` before."""
    behind, several = frozenset(runs), list(parameters)
    ended = frozenset(digest for key, digest in numbers(several).items() if began.get(key) != digest)
    if ended:
        _NUMBERS.append((ended, behind))
    for parameter in several:
        key = id(parameter)
        gone = weakref.ref(parameter, lambda _, key=key: _KNOWN.pop(key, None))  # type: ignore[misc]
        _KNOWN[key] = _Known(gone, parameter._version, behind)


def check(runs: Iterable[Trained], on: Marked, ledger: Ledger | None, *, budget: str | None) -> None:
    """Refuse a second run on the same records, or some of them, that would state its ε alone.

    Args:
        runs: Those that have trained the model (`runs_behind`).
        on: The records of the run that begins (`marked`).
        ledger: What it will be charged to; None for a new one.
        budget: The id of the budget that it is under; None without one.

    Raises:
        ConfigError: An earlier run was on these records, and no ledger or budget holds both.
    """
    for run in runs:
        if not run.on.shares(on) or (budget is not None and run.ledger.budget == budget):
            continue
        if ledger is None or not _holds(ledger, run.ledger):
            raise ConfigError(
                "model",
                "one that an earlier run has trained on these records, or on some of them",
                "a model that was not: its weights hold what that run released, and ε would be that of this run alone. "
                "Make the model again, give the step the ledger of the earlier one, or put both runs under one budget",
            )


def _holds(ledger: Ledger, earlier: Ledger) -> bool:
    """Whether what an earlier ledger was charged is in this one."""
    return ledger is earlier or (bool(earlier.heads) and earlier.heads[-1] in ledger.heads)
