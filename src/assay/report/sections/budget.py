"""What runs on the same records spend together: by their budget, or added up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from assay._util.figures import at_most
from assay.errors import AssayError
from assay.report.charts import Axis, Point, Series, plot
from assay.report.collect import Collected, Finished
from assay.report.elements import epsilon, figure, ident, num, path_name, section, table
from assay.report.html import Html, tag
from assay.report.sections import Page, Section
from assay.runs.totals import Part, compose


def _section(page: Page) -> Html | None:
    shown = [*_budgets(page.found), *_together(page.found)]
    return section("together", "Runs on the same records", shown) if shown else None


def _budgets(found: Collected) -> list[Html]:
    """Each budget that runs on the page are under, in the order of its entries."""
    under: dict[str, list[Finished]] = {}
    for run in found.finished:
        said = run.record.get("budget")
        if isinstance(said, Mapping) and _is_whole(said):
            under.setdefault(said["id"], []).append(run)
    return [_budget(sorted(runs, key=lambda run: int(run.record["budget"]["entries"]))) for runs in under.values()]


def _is_whole(said: Mapping[str, Any]) -> bool:
    """Whether a record says of its budget what it should: records are anybody's files."""
    numbers = all(type(said.get(name)) in (int, float) for name in ("epsilon", "delta"))
    counts = all(type(said.get(name)) is int for name in ("runs", "entries"))
    texts = all(isinstance(said.get(name), str) for name in ("id", "name"))
    return numbers and counts and texts and (said.get("spent") == "inf" or type(said.get("spent")) in (int, float))


def _budget(runs: Sequence[Finished]) -> Html:
    last = runs[-1].record["budget"]
    name, ceiling, delta = last["name"], float(last["epsilon"]), float(last["delta"])
    rows = [
        tag(
            "tr",
            tag("th", tag("a", path_name(run.name), href=f"#{ident(run.name)}"), scope="row"),
            epsilon(_number(run.record["epsilon"]["verified"])),
            epsilon(_number(run.record["budget"]["spent"])),
            num(run.record["budget"]["runs"]),
            tag("td", str(run.record.get("date") or "–"), class_="text"),
            tag("td", str(run.record.get("operator") or "–"), class_="text"),
        )
        for run in runs
    ]
    heads = [
        ("run", False),
        ("ε of the run", True),
        ("ε of all so far", True),
        ("runs so far", True),
        ("date", False),
        ("operator", False),
    ]
    spent = _number(last["spent"])
    others = int(last["runs"]) - len(runs)
    words = (
        f"Budget {name}: when the last of these runs ended, {_runs(int(last['runs']))} had spent or reserved"
        f" ε = {'∞' if math.isinf(spent) else at_most(spent)} of at most {ceiling:g} at δ = {delta:g}"
        + (f"; {others} of them are not on this page." if others > 0 else ".")
        + f" assay budget show {name} says what is left now."
    )
    return tag(
        "div",
        tag("p", words),
        table(f"Runs under the budget {name}", heads, rows),
        tag(
            "div", figure(_drawn(name, runs, ceiling), f"ε of all runs under {name}, and the ceiling"), class_="figures"
        ),
    )


def _drawn(name: str, runs: Sequence[Finished], ceiling: float) -> Html | None:
    spent = [_number(run.record["budget"]["spent"]) for run in runs]
    if any(math.isinf(value) for value in spent):
        return None
    places = range(1, len(runs) + 1)
    points = [Point(x=0, y=0, tip="before the first run")]
    points += [
        Point(x=i, y=value, tip=f"{run.name}: ε = {at_most(value)}")
        for i, run, value in zip(places, runs, spent, strict=True)
    ]
    most = [Point(x=x, y=ceiling, tip=f"ceiling: ε = {ceiling:g}") for x in (0, len(runs))]
    series = [
        Series(label="all runs so far", style=0, points=points, method="all runs so far"),
        Series(label="ceiling", style=1, points=most, method="ceiling", marks=None),
    ]
    counted = Axis(label="runs", least=1, from_zero=True)
    return plot(f"Budget {name}", series, counted, Axis(label="ε of all so far", from_zero=True))


def _together(found: Collected) -> list[Html]:
    """Runs on records of one name that have no common budget: what they spend together."""
    alike: dict[tuple[Any, ...], list[Part]] = {}
    spent = [run.part for run in found.finished] + [run.part for run in found.unfinished]
    for part in spent:
        if part is not None:
            alike.setdefault((part.data, part.unit, part.adjacency), []).append(part)
    said = []
    for (data, unit, adjacency), parts in alike.items():
        under = {part.budget for part in parts}
        if len(parts) < 2 or (len(under) == 1 and None not in under):  # their budget says it
            continue
        said.append(_total(data, unit, adjacency.value, parts))
    for data in dict.fromkeys(data for data, _, _ in alike):
        kinds = [f"{unit}, {adjacency.value}" for other, unit, adjacency in alike if other == data]
        if len(kinds) > 1:
            said.append(
                tag(
                    "p",
                    f"Runs on {data} protect different units ({'; '.join(kinds)}). If they are on the same records, no"
                    " number here says what all of them spend together.",
                )
            )
    if said and None in spent:
        said.append(tag("p", f"{spent.count(None)} runs of this page are not counted: their ledgers cannot be read."))
    return said


def _total(data: str, unit: str | None, adjacency: str, parts: Sequence[Part]) -> Html:
    delta = min(part.delta for part in parts)
    head = f"{len(parts)} runs on {data} (unit: {unit}, {adjacency})"
    try:
        whole = compose(parts, delta=delta)
    except AssayError as error:
        return tag("p", f"{head}: together, no ε is known. {error}")
    most = "no finite ε holds" if math.isinf(whole.epsilon) else f"ε ≤ {at_most(whole.epsilon)} at δ = {delta:g}"
    return tag(
        "p",
        f"{head}: ",
        tag("strong", f"together {most}"),
        ", if they are on the same records. Valid although each may have been chosen after seeing others. Runs that are"
        " not on this page add to it.",
    )


def _runs(count: int) -> str:
    return "it alone" if count == 1 else f"all {count} runs together"


def _number(value: Any) -> float:
    return math.inf if value == "inf" else float(value)


SECTION = Section(name="budget", order=35, render=_section)
