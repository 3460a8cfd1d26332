"""What the commands print of a run: its outcome."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from assay.cli.output import console, note
from assay.errors import BudgetSpentError

if TYPE_CHECKING:
    from assay.distributed.world import World
    from assay.runs.result import Result


def print_json(data: Mapping[str, Any]) -> None:
    """JSON on standard output, nothing else."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def outcome(result: Result) -> None:
    """The end of a run: accuracy, the three ε, and where everything is."""
    from assay._util.figures import shown
    from assay.runs.metrics import shown as shown_figures
    from assay.runs.statement import choices, initial_weights, scored
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
        "ε claimed": f"{shown(eps['claimed'])}{asked['claimed']} (what the paper's accountant would report"
        f"{': it finds no finite ε' if eps['claimed'] == 'inf' else ''})",
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


def end(
    result: Result,
    as_json: bool,
    *,
    left_out: str,
    steps: str = "steps",
    ranks: World | None = None,
    quiet: bool = False,
) -> None:
    """Print the outcome of a run or its record, and end with an error if the budget ended it early.

    With several ranks the leader prints, and none ends with an error: a launcher would take that for a failure and
    start them again.

    Args:
        result: The run's.
        as_json: Print the record.
        left_out: What was left out, after a number: "answers were not usable".
        steps: What advances are called.
        ranks: The processes that trained, if there are several.
        quiet: Do not print the outcome.

    Raises:
        BudgetSpentError: The budget ended the run early.
    """
    if ranks is not None and not ranks.leader:
        return
    if result.nonfinite:
        note(f"{result.nonfinite} {left_out} and were left out; this count is not private")
    if as_json:
        print_json(result.record)
    elif not quiet:
        outcome(result)
    if result.budget_spent:
        when = f"after {result.record['steps']} {steps}, before its planned end"
        early = f"the budget ended the run {when}; its record is complete"
        if ranks is None or ranks.size == 1:
            raise BudgetSpentError(early)
        note(early)
