"""Do committed results repeat? `python -m tools.repeat [TABLE ...]` trains how their runs begin, and compares.

Of every table under `experiments/` (or those that are named) it takes the first run of each commit that trained any,
and trains that again up to its first measured accuracy: an epoch, or some rounds. It prints a line for each, and fails
if one differs by as much as one test record. Runs without such a curve, and those whose data are not on this machine,
are passed over. Most tables take seconds; `tests/studies/test_committed.py` does the cheapest.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from assay import presets
from assay.errors import AssayError
from assay.federated import from_names as federated
from assay.runs.callbacks import Callback
from assay.runs.result import Progress
from assay.studies import results, tables
from assay.studies.summary import Measured
from assay.studies.tables import Table
from assay.training import from_names

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


class _SeenError(Exception):
    """Ends a run at its first measured accuracy."""


class _First(Callback):
    """Keeps the first accuracy that a run measures."""

    accuracy: float | None = None

    def on_step(self, progress: Progress) -> bool | None:
        """End the run where there is one."""
        if progress.accuracy is not None:
            self.accuracy = progress.accuracy
            raise _SeenError
        return None


def begins(table: Table) -> Iterator[Measured]:
    """The first run of each commit that has a curve."""
    commits = set()
    for run in results.read(table).runs:
        if run.history and run.commit not in commits:
            commits.add(run.commit)
            yield run


def first_accuracy(table: Table, run: Measured) -> float | None:
    """What this run, trained today, measures first.

    Args:
        table: The table.
        run: One of its runs.

    Returns:
        The accuracy after its first epoch, or after the first rounds that are measured.

    Raises:
        DataError: Its data are not on this machine.
    """
    settings, seen = {**table.grid.run(run.labels, run.seed).settings, "seed": run.seed}, _First()
    try:
        if table.grid.command == "federate":
            with tempfile.TemporaryDirectory() as out:
                asked = federated.FederatedSettings.read(settings)
                federated.federate(asked, out=Path(out) / "run", callbacks=[seen])
        else:
            from_names.train(presets.of_options(settings), callbacks=[seen], progress=False)
    except _SeenError:
        pass
    return seen.accuracy


def main() -> int:
    """Train, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="*", help="all tables if none is named")
    torch.set_num_threads(1)
    differ = 0
    for name in parser.parse_args().table or tables.names(EXPERIMENTS):
        table = tables.read(EXPERIMENTS, name)
        if table.runs != name or not table.stem.with_name(f"{table.stem.name}.json").exists():
            continue  # it is about another table's runs, or nothing was measured
        for run in begins(table):
            said = f"{name}: {', '.join(run.labels)}, seed {run.seed}, commit {results.short(run.commit or 'not kept')}"
            try:
                found = first_accuracy(table, run)
            except AssayError as error:
                print(f"{said}: not here ({error})", flush=True)
                continue
            same = found == run.history[0][1]
            differ += not same
            print(f"{said}: {'repeats' if same else f'differs, {run.history[0][1]} then and {found} now'}", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
