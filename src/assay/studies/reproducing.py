"""Reproduce tables of papers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from assay.studies import rehearsal, results, running, tables
from assay.studies.directory import Study
from assay.studies.running import Listener, Silent

Listening = Callable[[Study, int | None], AbstractContextManager[Listener]]


def reproduce(
    table: str | Sequence[str],
    *,
    scale: str = "full",
    only: Sequence[str] = (),
    seeds: int | None = None,
    missing: bool = False,
    experiments: Path | None = None,
    runs: Path | str = Path("runs"),
    workers: int | None = None,
    measure: bool = True,
    listening: Listening | None = None,
) -> Iterator[str]:
    """Run tables of papers, write the results beside their TOML, and show theirs and ours side by side.

        for text in assay.studies.reproduce("gredp/table1", scale="small"):
            print(text)

    Args:
        table: Tables of the experiments folder, by name.
        scale: `full`: the paper's settings; `small`: reduced as the table's file says.
        only: Run only these labels, each AXIS=LABEL. What was measured before stays.
        seeds: Run only this many of its seeds, from the first.
        missing: Run only what the results do not have yet, from any machine.
        experiments: The experiments folder; None for `experiments` here or above.
        runs: Where run directories go.
        workers: Runs at a time; None for one on each core.
        measure: False runs nothing, and shows what was measured before.
        listening: Makes a listener, from a study and the number of runs that are left.

    Yields:
        Each table in Markdown, when it is done.

    Raises:
        ConfigError: There is no such table, label or scale, or a run's settings are not accepted. Nothing was trained.
        UnfinishedStudyError: Runs failed, or the study was asked to stop.
    """
    where = tables.folder(experiments)
    wanted = [tables.read(where, name, scale) for name in ([table] if isinstance(table, str) else table)]
    grids = [tables.subset(asked, list(only), seeds) for asked in wanted]  # errors come before anything is trained
    for asked, grid in zip(wanted, grids, strict=True):
        if measure:
            known = results.known(asked) if missing else frozenset()
            study = Study(Path(runs) / asked.study, grid, known)
            _measure(asked, study, Path(runs), workers or os.cpu_count() or 1, listening or _silent)
        yield results.render(asked, results.read(asked), None if measure else grid)


def _silent(study: Study, left: int | None) -> AbstractContextManager[Listener]:  # noqa: ARG001
    return nullcontext(Silent())


def _measure(table: tables.Table, asked: Study, runs: Path, workers: int, listening: Listening) -> None:
    """Run some of a table's runs in the directory of all of them: finished ones are not repeated."""
    if not any(asked.of(run).spec.exists() for run in asked.grid.runs()):
        rehearsal.rehearse(asked.grid, ", ".join)
    study = Study.at(asked.path, table.grid)
    try:
        with listening(asked, None) as listener:
            running.complete(asked, workers, listener, beside=runs)
        if table.attack:
            with listening(asked, len(running.unattacked(asked, table.attack))) as listener:
                running.attack(asked, table.attack, workers, listener)
    finally:
        results.write(table, results.collect(table, study))
