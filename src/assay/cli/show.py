"""What the commands print: the progress of a run, and its outcome."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from assay._util.figures import at_most
from assay.cli.output import console, note
from assay.errors import BudgetSpentError
from assay.runs.callbacks import Callback

if TYPE_CHECKING:
    from assay.distributed.world import World
    from assay.runs.result import Progress, Result


def print_json(data: Mapping[str, Any]) -> None:
    """JSON on standard output, nothing else."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def progress(allowed: float | None, ranks: World | None = None, *, scored: str = "test") -> Iterator[Callback]:
    """A live bar on a terminal, a line for each epoch elsewhere; on standard error, and on the leading rank only.

    Args:
        allowed: The ceiling on ε, if there is one.
        ranks: The processes that train, if there are several.
        scored: On which records accuracy is measured (`assay.runs.statement.scored`).

    Yields:
        A callback that shows the progress.
    """
    lines = console(stderr=True, wrap=True)
    if ranks is not None and not ranks.leader:
        yield Callback()
        return
    if not lines.is_terminal:
        yield _Lines(lines, allowed, scored)
        return
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=lines) as bar:
        yield _Bar(bar, allowed, scored)


class _Lines(Callback):
    """A line for each epoch."""

    def __init__(self, console: Console, allowed: float | None, scored: str) -> None:
        self._console, self._allowed, self._scored = console, allowed, scored

    def on_step(self, progress: Progress) -> None:
        if progress.epoch_end:
            line = f"step {progress.step}/{progress.steps}  {_facts(progress, self._allowed, self._scored)}"
            self._console.print(line, soft_wrap=True)


class _Bar(Callback):
    """A bar that every step moves."""

    def __init__(self, bar: Bar, allowed: float | None, scored: str) -> None:
        self._bar, self._allowed, self._scored = bar, allowed, scored
        self._task = bar.add_task("train", total=None, facts="")

    def on_step(self, progress: Progress) -> None:
        facts = _facts(progress, self._allowed, self._scored)
        self._bar.update(self._task, total=progress.steps, completed=progress.step, facts=facts)


def _facts(now: Progress, allowed: float | None, scored: str) -> str:
    facts = [f"epoch {now.epoch:.1f}"]
    if now.loss is not None:
        facts.append(f"loss {now.loss:.3f}")
    if now.accuracy is not None:
        facts.append(f"{called(scored)} {now.accuracy:.2%}")
    if now.epsilon is not None:
        spent = "∞" if math.isinf(now.epsilon) else at_most(now.epsilon)
        facts.append(f"ε {spent}" + (f" of {allowed:g}" if allowed is not None else ""))
    return "  ".join(facts)


def called(scored: str) -> str:
    """The short name of an accuracy: "accuracy" alone is on test records."""
    return "accuracy" if scored == "test" else f"{scored} accuracy"


def outcome(result: Result) -> None:
    """The end of a run: accuracy, the three ε, and where everything is."""
    from assay.runs.metrics import shown as shown_figures
    from assay.runs.statement import choices, initial_weights, scored, shown
    from assay.training.tuning import in_words

    record = result.record
    eps = record["epsilon"]
    accuracy = record["result"]["test_accuracy"]
    asked = {"verified": "", "claimed": ""}
    if eps["target"]:
        asked[eps["target_is"]] = f" ({'allowed' if eps['target_is'] == 'verified' else 'asked for'} {eps['target']:g})"
    tuning = record.get("tuning") or {}
    rows = {
        f"{scored(record)} accuracy": None if accuracy is None else f"{accuracy:.2%}",
        "figures": ", ".join(f"{name} {value}" for name, value in shown_figures(record["result"]).items()) or None,
        "ε verified": f"{shown(eps['verified'])} at δ = {eps['delta']:g}{asked['verified']}",
        "ε claimed": f"{shown(eps['claimed'])}{asked['claimed']} (what the paper's accountant would report)",
        "steps": f"{record['steps']}" + (", the budget is spent" if result.budget_spent else ""),
        "chosen": in_words(tuning["chosen"]) if "chosen" in tuning else None,
        "settings": "; then ".join(choices(record.get("tuning"))) or None,
        "weights": initial_weights(record),
        "note": None if record["seed"] is None else "fixed seed: reproducible, not private",
    }
    if result.directory is not None:
        rows["statement"] = str(result.directory.statement)
        rows["record"] = str(result.directory.record)
        rows["model"] = str(result.directory.model)
    out = console()  # paths stay whole, however narrow the terminal
    for name, value in rows.items():
        if value is not None:
            out.print(f"{name:<14} {value}")


def end(result: Result, as_json: bool, *, left_out: str, steps: str = "steps", ranks: World | None = None) -> None:
    """Print the outcome of a run or its record, and end with an error if the budget ended it early.

    With several ranks the leader prints, and none ends with an error: a launcher would take that for a failure and
    start them again.

    Args:
        result: The run's.
        as_json: Print the record.
        left_out: What was left out, after a number: "answers were not usable".
        steps: What advances are called.
        ranks: The processes that trained, if there are several.

    Raises:
        BudgetSpentError: The budget ended the run early.
    """
    if ranks is not None and not ranks.leader:
        return
    if result.nonfinite:
        note(f"{result.nonfinite} {left_out} and were left out; this count is not private")
    if as_json:
        print_json(result.record)
    else:
        outcome(result)
    if result.budget_spent:
        when = f"after {result.record['steps']} {steps}, before its planned end"
        early = f"the budget ended the run {when}; its record is complete"
        if ranks is None or ranks.size == 1:
            raise BudgetSpentError(early)
        note(early)
