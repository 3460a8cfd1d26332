"""The charts of a report: accuracy against verified ε, and the course of training, over the seeds of each setting."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay._util.figures import at_most
from assay.report.charts import Axis, Point, Series
from assay.report.collect import number
from assay.report.groups import Group, finite

_MOST_MARKS = 3000  # in one chart; more would make a page slow and a chart unreadable

EPSILON = Axis(label="verified ε", log=True)
SPENT = Axis(label="verified ε so far", from_zero=True)


def accuracy_axis(scored: str) -> Axis:
    """The axis of accuracies on these records: `test` or `validation`."""
    return Axis(label=f"{scored} accuracy", percent=True)


def against_epsilon(groups: Sequence[Group], styles: Mapping[str, int]) -> list[Series]:
    """Mean accuracy ± standard deviation over seeds at the verified ε, a series for each method and its options."""
    by_label: dict[str, list[Group]] = {}
    for group in groups:
        if group.mean is not None:
            by_label.setdefault(group.label, []).append(group)
    return [
        Series(
            label=label,
            style=styles[members[0].family],
            method=members[0].method,
            hollow=members[0].published,
            points=[_point(group) for group in sorted(members, key=lambda g: g.verified)],
        )
        for label, members in by_label.items()
    ]


def _point(group: Group) -> Point:
    assert group.mean is not None
    spread = group.deviation
    seeds = f"{len(group.accuracies)} seed{'s' if len(group.accuracies) != 1 else ''}"
    around = "" if spread is None else f" ± {100 * spread:.2f}"
    spent = "∞" if math.isinf(group.verified) else at_most(group.verified)
    return Point(
        x=group.verified,
        y=group.mean,
        low=None if spread is None else group.mean - spread,
        high=None if spread is None else group.mean + spread,
        tip=f"{group.name}: {100 * group.mean:.2f}{around} % at verified ε {spent} ({seeds})",
    )


def over_time(groups: Sequence[Group], styles: Mapping[str, int], what: str) -> list[Series]:
    """The history of each setting, averaged over its seeds at the epochs that all of them reached.

    `what` is `test_accuracy`, `test_loss` or `epsilon`. `styles` has a colour and shape for each family. Where a family
    has several settings, each has its own in all charts: two curves of one colour could not be told apart.
    """
    all_of_them = [(at, group, _mean_history(group, what)) for at, group in enumerate(groups)]
    drawn = [one for one in all_of_them if one[2]]
    most = max(8, _MOST_MARKS // max(1, len(drawn)))
    apart = len({group.label for group in groups}) < len(groups)
    return [
        Series(
            label=_setting_label(group) if apart else group.label,
            style=at if apart else styles[group.family],
            method=group.method,
            hollow=group.published,
            marks=False,
            points=_thin(points, most),
        )
        for at, group, points in drawn
    ]


def _setting_label(group: Group) -> str:
    """What distinguishes a curve from others of its method."""
    target = "" if group.target is None else f", ε {group.target:g}"
    return f"{group.label}{target}" + (f", {group.setting}" if group.setting else "")


def _mean_history(group: Group, what: str) -> list[Point]:
    by_time: dict[float, list[float]] = {}
    named = "epoch"
    for run in group.runs:
        for entry in run.record.get("history") or []:
            value, time = finite(entry.get(what)), when(entry)
            if value is not None and time is not None:
                by_time.setdefault(time, []).append(value)
                named = _counted(entry)
    whole = {time: values for time, values in by_time.items() if len(values) == len(group.runs)}
    points = []
    for time, values in sorted(whole.items()):
        value = max(values) if what == "epsilon" else statistics.mean(values)
        points.append(Point(x=time, y=value, tip=f"{group.name}, {named} {time:g}: {_said(value, what)}"))
    return points


def when(entry: Mapping[str, Any]) -> float | None:
    """The time of a history entry: its round, or else its epoch, or else its step."""
    return next((time for key in ("round", "epoch", "step") if (time := finite(entry.get(key))) is not None), None)


def time_axis(histories: Iterable[Sequence[Mapping[str, Any]]]) -> Axis:
    """The axis for the times of `when`."""
    named = {_counted(entry) for history in histories for entry in history}
    return Axis(label=" or ".join(sorted(named)) or "epoch", from_zero=True)


def _counted(entry: Mapping[str, Any]) -> str:
    return "round" if "round" in entry else "epoch"


def _said(value: float, what: str) -> str:
    if what == "test_accuracy":
        return f"{100 * value:.2f} %"
    return f"verified ε {at_most(value)}" if what == "epsilon" else f"{value:.4g}"


def _thin(points: list[Point], most: int) -> list[Point]:
    """Every n-th point, and always the last."""
    step = math.ceil(len(points) / most)
    return points if step <= 1 else [*points[:-1:step], points[-1]]


def of_history(history: Sequence[Mapping[str, Any]], what: str, label: str, *, marks: bool) -> list[Series]:
    """The curve of one run; without marks where many runs would make the page slow."""
    points = []
    for entry in history:
        value, time = finite(entry.get(what)), when(entry)
        if value is not None and time is not None:
            points.append(Point(x=time, y=value, tip=f"{_counted(entry)} {time:g}: {_said(value, what)}"))
    return [Series(label=label, style=0, method="", marks=False if marks else None, points=_thin(points, 200))]


def infinite_epsilon(history: Sequence[Mapping[str, Any]]) -> bool:
    """Whether ε is infinite from some epoch on."""
    try:
        return any(math.isinf(number(entry.get("epsilon")) or 0.0) for entry in history)
    except ValueError:
        return False
