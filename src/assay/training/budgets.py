"""Budgets by the names of data sets: what `assay budget` does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from assay.accounting.adjacency import CLIENT, RECORD, Adjacency
from assay.accounting.budget import Budget
from assay.data.identity import of_bundle, of_table, rows_of
from assay.data.tables.names import is_table
from assay.training.inputs import load


def create(
    name: str | Path,
    *,
    epsilon: float,
    delta: float,
    data: str,
    data_dir: Path | None = None,
    unit: str = RECORD,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    key: Path | None = None,
    by: str | None = None,
) -> Budget:
    """Make a budget for the records of a data set: `assay budget new` as a call.

    It covers the training records, or with a unit the persons whom they belong to. Test records are not protected.

    Args:
        name: The folder `NAME.budget`, or NAME for short.
        epsilon: The ceiling for all runs together.
        delta: Its δ.
        data: A data set's name, or a file.
        data_dir: Where data sets are.
        unit: What ε protects: `record`, `client`, or a column that says whose a record is.
        adjacency: Which data sets are neighbours.
        key: A private key that signs every entry.
        by: Who makes it.

    Returns:
        The budget.

    Raises:
        ConfigError: A setting is not accepted, or the records have a budget already.
    """
    return Budget.create(
        name,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        adjacency=adjacency,
        key=key,
        by=by,
        **_contents(data, data_dir, unit),
    )


def add(
    name: str | Path, *, data: str, data_dir: Path | None = None, key: Path | None = None, by: str | None = None
) -> tuple[Budget, int]:
    """Have a budget cover the training records of another data set too: `assay budget add` as a call.

    Args:
        name: The budget.
        data: A data set's name, or a file.
        data_dir: Where data sets are.
        key: The private key of a budget that is signed.
        by: Who adds them.

    Returns:
        The budget, and how many records are new.
    """
    budget = Budget(name, key=key)
    return budget, budget.add_records(by=by, **_contents(data, data_dir, budget.unit))


def _contents(data: str, data_dir: Path | None, unit: str) -> dict[str, Iterator[bytes]]:
    """What the training records are recognised by, or the persons and all rows of the table."""
    if unit in (RECORD, CLIENT):
        return {"contents": of_table(data) if is_table(data) else of_bundle(load(data, data_dir, None))}
    if is_table(data):
        return {"contents": of_table(data, unit), "rows": of_table(data, whole=True)}
    bundle = load(data, data_dir, None, unit=unit)
    return {"contents": of_bundle(bundle), "rows": rows_of(bundle)}
