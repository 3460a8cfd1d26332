"""`--schema auto`: what is not declared of a table's columns is estimated from its training rows, with noise, and paid.

The order is what makes ε true, whenever the process ends:

1. The settings are checked, and the whole run, estimate included, is reserved in the budget if there is one.
2. The estimate is charged in `estimate.jsonl`, on disk.
3. It is made, and `schema.json` keeps what it showed. Only now does anything depend on the rows.
4. The run begins. Its plan has the estimate's cost, its ledger is charged with it first, and training is calibrated to
   what is left of ε.

A run that is started again in the same directory with the same request for the same rows uses what `schema.json`
shows, at no further cost. If the charge is there and the answer is not, somebody may have seen it: such a directory is
refused, and --force puts its ledger among those of earlier runs, which count.

`assay.data.tables.estimates` has the release and its proof.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dp_accounting.dp_event import GaussianDpEvent

from assay._util import seals
from assay._util.files import make_folder, replace_json
from assay.accounting.adjacency import Adjacency
from assay.accounting.calibrate import smallest_noise
from assay.accounting.epsilon import epsilon
from assay.accounting.ledger import Ledger, read_ledger
from assay.data.tables import cells, estimates
from assay.data.tables.columns import Column
from assay.data.tables.drafts import Draft, Private
from assay.data.tables.schema import Schema
from assay.errors import AssayError, ConfigError
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.types import Bounded
from assay.methods.columns import Columns
from assay.randomness.streams import Randomness, Stream, Within, fresh_source
from assay.runs.directory import ROWS, RunDirectory

_LOG = logging.getLogger("assay")
_MOST = 0.25  # a bound or level must be shared by fewer than this share of all, or the estimate would show nothing


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the cost of an estimate is relative to.

    Attributes:
        epsilon: Of the whole run.
        delta: δ.
        adjacency: Which data sets are neighbours.
        budget: The folder of the budget that the run is under.
        data: What the table is called.
        unit: The column that says whose a row is; None where a record is the unit.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    budget: str | None = None
    data: str = "unnamed"
    unit: str | None = None


def cost_of(draft: Draft, units: int, terms: Terms) -> Columns:
    """The noise of an estimate, from public facts alone: ε, its share, the columns, and the number of records.

    Args:
        draft: What is to be estimated.
        units: How many records, or persons, there are.
        terms: Of the run.

    Raises:
        ConfigError: So few records, under so much noise, would show nothing.
    """
    count = len(draft.wanted)
    aim = draft.share * terms.epsilon
    noise = smallest_noise(lambda z: epsilon(GaussianDpEvent(z), terms.delta, terms.adjacency), aim)
    least = estimates.STANDS_OUT * _std(noise, count)
    if least > _MOST * units:
        raise ConfigError(
            "schema",
            "auto",
            f"declared columns, or more of ε for the estimate (auto:share=...): a bound of one of {count} columns "
            f"would have to be shared by {math.ceil(least)} of {units} to stand out of the noise of ε = {aim:.3g}",
        )
    return Columns(noise=noise, count=count)


def _std(noise: float, count: int) -> float:
    """The standard deviation of the noise of a count, in a round that counts this many columns."""
    return noise * math.sqrt(estimates.ROUNDS * count)


def release(
    private: Private, draft: Draft, columns: Columns, randomness: Randomness, request: str
) -> dict[str, Column]:
    """What the noisy counts show of every column. The caller must have charged `columns.event()`.

    Args:
        private: The training rows.
        draft: What is to be estimated.
        columns: The noise.
        randomness: The source of all noise.
        request: Names what is asked for, and of which rows. With a fixed seed, another request has other noise: two
            answers with the same noise would show the counts.

    Returns:
        A column for each that is wanted; `skip` where nothing stands out.
    """
    reading = draft.reading
    source = Within(fresh_source(randomness), f"columns {request}")
    names = list(draft.wanted)
    counts = {name: cells.count_cells(private.table, name, private.weights, reading) for name in names}
    noisy = _release(counts, columns.noise, source.stream("cells", 0))
    std = _std(columns.noise, len(names))
    found = {name: estimates.found_in(noisy[name], std, draft.wanted[name]) for name in names}
    texts = [name for name in names if found[name] is None]
    if not texts:
        return {name: column for name, column in found.items() if column is not None}
    levels = {name: cells.count_levels(private.table, name, private.weights, reading) for name in texts}
    values = {name: np.array(list(levels[name].values()), dtype=np.float64) for name in texts}
    noisy = _release(values, columns.noise, source.stream("levels", 0))
    coins = source.stream("levels that nobody has", 0)
    rule = estimates.Levels(_std(columns.noise, len(texts)), lambda n: coins.uniform(n).numpy().astype(np.float64))
    for name in texts:
        shown = rule.released(dict(zip(levels[name], noisy[name].tolist(), strict=True)))
        found[name] = estimates.category(shown)
    return {name: column for name, column in found.items() if column is not None}


def _release(counts: Mapping[str, Any], noise: float, stream: Stream) -> dict[str, Any]:
    """One round: counts of some columns with noise. One record, or person, moves them all by at most √columns."""
    total = {name: torch.from_numpy(np.ascontiguousarray(one)).double() for name, one in counts.items()}
    mechanism = Gaussian(multiplier=noise * math.sqrt(estimates.ROUNDS))
    released = mechanism.release(Bounded(total, math.sqrt(len(total))), stream)
    return {name: value.numpy() for name, value in released.value.items()}


@dataclass(frozen=True, kw_only=True)
class Estimated:
    """What an estimate showed.

    Attributes:
        schema: How rows are prepared.
        columns: What it cost.
        units: How many records, or persons, there are in the training part, whatever their targets. Public.
        counted: How many of what is sampled there are: records, persons, or the rows that are kept of them.
        lease: The run's part in a budget, as `run.json` holds it; None without one.
    """

    schema: Schema
    columns: Columns
    units: int
    counted: int
    lease: Mapping[str, Any] | None = None


def estimate(
    private: Private,
    draft: Draft,
    counted: int,
    columns: Columns,
    terms: Terms,
    randomness: Randomness,
    *,
    out: Path | None,
    force: bool,
    reserve: Callable[[str, Ledger], Mapping[str, Any]] | None = None,
) -> Estimated:
    """Charge and make an estimate, or take the one that `out` has for the same request.

    Args:
        private: The training rows.
        draft: What is to be estimated.
        counted: How many of what is sampled there are.
        columns: What it costs.
        terms: Of the run.
        randomness: The source of all noise.
        out: The directory of the run to come; None keeps nothing on disk.
        force: Set aside what an earlier run or estimate left there.
        reserve: Reserves the whole run in its budget, for the ledger of this request, and gives the lease.

    Raises:
        ConfigError: The directory is not free, or the target cannot be predicted by what was found.
        BudgetSpentError: The budget does not allow the run.
    """
    request = {
        "draft": draft.to_json(),
        "noise": columns.noise,
        "delta": terms.delta,
        "adjacency": terms.adjacency.value,
        "budget": terms.budget,
    }
    digest, rows = seals.of_json(request), seals.of_text(*(str(key) for key in private.keys.tolist()))
    directory = None if out is None else RunDirectory(out)
    if directory is not None:
        directory.check_free(force=force)
        if (kept := _kept(directory, digest, rows)) is not None:
            # an earlier run that began here has used its reservation; the new one makes its own
            unused = not directory.spec.exists() and not directory.earlier.exists()
            lease = kept["lease"] if unused else None
            schema = Schema.from_json(kept["found"])
            return Estimated(schema=schema, columns=columns, units=private.units, counted=counted, lease=lease)
        _check_unspent(directory, force=force)
        make_folder(directory.path)
    ledger = Ledger(
        None if directory is None else directory.estimate_ledger,
        delta=terms.delta,
        adjacency=terms.adjacency,
        ceiling=terms.epsilon,
        run=digest,
    )
    lease = None
    with closing(ledger):  # locked until the answer is kept: nobody else may estimate here meanwhile
        ledger.lock()
        if not ledger.is_empty:
            raise _not_free(directory)
        if reserve is not None:
            try:
                lease = reserve(digest, ledger)
            except AssayError:
                ledger.close()
                if directory is not None:
                    directory.set_estimate_aside()  # nothing is charged: this leaves no trace
                raise
        ledger.pay(columns.event(), draws=randomness.fingerprint)
        schema = _usable(draft, release(private, draft, columns, randomness, f"{digest} {rows}"))
        if directory is not None:
            about = {"data": terms.data, "unit": terms.unit or "record", "records": counted}  # for a total
            kept = {"request": digest, ROWS: rows, "found": schema.to_json(), "lease": lease, "about": about}
            replace_json(directory.estimate, seals.sealed(kept), private=True)
    return Estimated(schema=schema, columns=columns, units=private.units, counted=counted, lease=lease)


def _kept(directory: RunDirectory, digest: str, rows: str) -> dict[str, Any] | None:
    """What the directory has of an estimate that was asked for in the same words, of the same rows."""
    kept = directory.read_estimate() if directory.estimate_ledger.exists() else None
    return kept if kept is not None and (kept["request"], kept.get(ROWS)) == (digest, rows) else None


def _check_unspent(directory: RunDirectory, *, force: bool) -> None:
    if not directory.estimate_ledger.exists():
        return
    charged = read_ledger(directory.estimate_ledger)
    if not force and charged is not None and not charged.is_empty:
        raise _not_free(directory)
    directory.set_estimate_aside()


def _not_free(directory: RunDirectory | None) -> ConfigError:
    return ConfigError(
        "out",
        None if directory is None else str(directory.path),
        "a new directory: another estimate of columns was charged there, and its answer may be known; --force sets"
        " it aside, and it stays charged",
    )


_OTHERWISE = (
    "numbers such as 1,492.18 and dates such as 05/17/2024 are found if a schema says how they are written: "
    '[table] columns = "auto", thousands = ",", dates = "%m/%d/%Y"'
)


def _usable(draft: Draft, found: Mapping[str, Column]) -> Schema:
    for name in draft.target:
        if name in found and found[name].type not in ("number", "category", "flag"):
            raise ConfigError(
                "target",
                name,
                f"a column that is declared in a schema: the estimate, which was charged, found {found[name].type!r}",
            )
    for name, column in found.items():
        _LOG.info("estimated: %s", describe(name, column))
    if (
        any(column.type == "skip" for column in found.values())
        and (draft.reading.thousands or draft.reading.dates) is None
    ):
        _LOG.info("%s", _OTHERWISE)
    return draft.schema(found)


def describe(name: str, column: Column) -> str:
    """A column in a few words.

    Example:
        >>> from assay.data.tables.schema import Number
        >>> describe("age", Number(low=16, high=96))
        'age: number from 16 to 96'
    """
    facts = column.to_json()
    if column.type == "number":
        return f"{name}: number from {facts['low']:g} to {facts['high']:g}"
    if column.type == "category":
        return f"{name}: category of {len(facts['levels'])} levels"
    if column.type == "date":
        return f"{name}: date from {facts['first']} to {facts['last']}"
    return f"{name}: left out, nothing stands out of the noise" if column.type == "skip" else f"{name}: {column.type}"
