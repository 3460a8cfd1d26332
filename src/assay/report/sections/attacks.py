"""What membership inference could do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.attacks.evaluation import NOT_PRIVATE
from assay.report.collect import Finished
from assay.report.elements import num, path_name, section, table
from assay.report.groups import finite
from assay.report.html import Html, tag
from assay.report.sections import Section


def _attacks(runs: Sequence[Finished]) -> Html | None:
    """What membership inference achieved against the runs that were attacked."""
    rows = [row for run in runs for row in (_attack_row(run, result) for result in run.attacks) if row is not None]
    if not rows:
        return None
    heads = [
        ("run", False),
        ("attack", False),
        ("AUC", True),
        ("balanced accuracy", True),
        ("TPR at 0.1 % FPR", True),
        ("TPR at 1 % FPR", True),
        ("members", True),
    ]
    caption = "Membership inference; intervals in brackets, 0.5 is guessing for the first two"
    return section(
        "attacks",
        "Attacks",
        tag("p", f"{NOT_PRIVATE[0].upper()}{NOT_PRIVATE[1:]}.", class_="hint"),
        table(caption, heads, rows),
    )


def _attack_row(run: Finished, result: Mapping[str, Any]) -> Html | None:
    rates = {
        finite(rate.get("fpr")): rate.get("tpr") for rate in result.get("tpr_at_fpr", []) if isinstance(rate, Mapping)
    }
    return tag(
        "tr",
        tag("th", path_name(run.name), scope="row"),
        tag("td", str(result.get("attack", "unnamed"))),
        _estimate(result.get("auc")),
        _estimate(result.get("balanced_accuracy")),
        _estimate(rates.get(0.001)),
        _estimate(rates.get(0.01)),
        num(finite(result.get("members"))),
        data_method=str(run.record["method"]),
        data_data=str(run.record["data"]),
    )


def _estimate(found: object) -> Html:
    if not isinstance(found, Mapping):
        return num(None)
    value, low, high = (finite(found.get(key)) for key in ("value", "low", "high"))
    if value is None:
        return num(None)
    around = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return num(value, f"{value:.3f}{around}")


SECTION = Section(name="attacks", order=60, render=lambda page: _attacks(page.found.finished))
