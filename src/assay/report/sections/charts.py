"""Charts of all runs on one data set and model that predict the same and protect the same: others do not compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assay.report import curves
from assay.report.charts import Series, legend, plot
from assay.report.elements import figure, section
from assay.report.groups import Group
from assay.report.html import Html, tag
from assay.report.sections import Page, Section


def _charts(page: Page) -> Html | None:
    several = len(page.found.finished) > 1  # one run has its curves beside its statement
    return _panels(page.groups, page.styles) if several else None


def _panels(groups: Sequence[Group], styles: Mapping[str, int]) -> Html | None:
    panels: dict[tuple[str | None, ...], list[Group]] = {}
    for group in groups:
        about = (group.data, group.model, group.scored, group.predicts, group.unit)
        panels.setdefault(about, []).append(group)
    units = len({group.unit for group in groups}) > 1
    made = [_panel(members, styles, units=units) for members in panels.values()]
    return section("charts", "Charts", made) if made else None


def _panel(groups: Sequence[Group], styles: Mapping[str, int], *, units: bool) -> Html:
    first_one = groups[0]
    data, scored = first_one.data, first_one.scored
    name = ", ".join(
        [
            *(data, first_one.model),
            *([] if first_one.predicts is None else [f"predicting {first_one.predicts}"]),
            *([] if scored == "test" else [f"on {scored} records"]),
            *([f"ε of {first_one.unit}"] if units else []),
        ]
    )
    accuracies, axis = f"{scored.capitalize()} accuracy while training", curves.accuracy_axis(scored)
    final = curves.against_epsilon(groups, styles)
    history = curves.over_time(groups, styles, "test_accuracy")
    spent = curves.over_time(groups, styles, "epsilon")
    time = curves.time_axis(run.record.get("history") or [] for group in groups for run in group.runs)
    unbounded = sum(any(curves.infinite_epsilon(run.record.get("history") or []) for run in g.runs) for g in groups)
    figures = [
        figure(
            plot(f"Accuracy against verified ε: {name}", final, curves.EPSILON, axis),
            "Accuracy against verified ε; bars are ± one standard deviation over seeds,"
            " hollow marks published variants.",
        ),
        figure(
            plot(f"{accuracies}: {name}", history, time, axis),
            f"{accuracies}, mean over seeds.",
        ),
        figure(
            plot(f"Privacy spent while training: {name}", spent, time, curves.SPENT),
            "Verified ε spent while training."
            + (f" {unbounded} setting{'s' if unbounded > 1 else ''} with ε = ∞ cannot be drawn." if unbounded else ""),
        ),
    ]
    first, others = figures[:1], figures[1:]
    courses: list[Series] = [*history, *spent]
    if {one.label for one in courses} <= {one.label for one in final}:
        drawn = [legend([*final, *history]), tag("div", figures, class_="figures")]
    else:  # a setting has a colour of its own where its course is drawn
        drawn = [legend(final), tag("div", first, class_="figures"), legend(courses)]
        drawn.append(tag("div", others, class_="figures"))
    return tag("div", tag("h3", name), drawn, class_="panel", data_data=data)


SECTION = Section(name="charts", order=50, render=_charts)
