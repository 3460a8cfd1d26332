"""Each finished run, with its curves, pictures, statement and history."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from assay._util.figures import at_most
from assay.report import statement
from assay.report.collect import Finished
from assay.report.elements import curves_of, ident, path_name, section
from assay.report.groups import accuracy, finite
from assay.report.html import Html, join, tag
from assay.report.sections import Section
from assay.runs.statement import scored

_OPEN_AT_MOST = 2  # runs whose statement is open from the start
_MARKED_AT_MOST = 60  # runs whose curves have a mark for each value; with more, only their tables have the values


def _runs(runs: Sequence[Finished]) -> Html | None:
    """Every finished run, to unfold."""
    if not runs:
        return None
    opened = len(runs) <= _OPEN_AT_MOST
    every = tag("button", "Open all", type="button", id="open-all") if len(runs) > _OPEN_AT_MOST else None
    made = [_run(run, opened, marks=len(runs) <= _MARKED_AT_MOST) for run in runs]
    return section("runs", "Runs", tag("p", every, class_="no-print") if every else None, made, count=len(runs))


def _run(run: Finished, opened: bool, *, marks: bool) -> Html:
    record = run.record
    found, spent, on = accuracy(run), float(record["epsilon"]["verified"]), scored(record)
    facts = [
        "" if found is None else f"{found:.2%}" + ("" if on == "test" else f" ({on})"),
        f"ε {'∞' if math.isinf(spent) else at_most(spent)}",
        "" if record.get("status", "done") == "done" else str(record["status"]),
    ]
    head = tag(
        "summary",
        tag("span", path_name(run.name), class_="run-name"),
        tag("span", f"{record['method']} on {record['data']}", class_="hint"),
        tag("span", ", ".join(filter(None, facts)), class_="facts"),
    )
    history = [entry for entry in record.get("history") or [] if isinstance(entry, Mapping)]
    return tag(
        "details",
        head,
        tag("p", run.trouble, class_="trouble") if run.trouble else None,
        tag("div", curves_of(run.name, history, on, marks=marks) if len(history) > 1 else None, class_="figures small"),
        _pictures(run),
        tag("div", statement.render(run.statement), class_="statement"),
        _history(history, on),
        id=ident(run.name),
        open=opened,
        class_="run",
        data_method=str(record["method"]),
        data_data=str(record["data"]),
    )


def _pictures(run: Finished) -> Html | None:
    shown = [
        tag(
            "figure",
            tag("img", src=f"data:image/png;base64,{picture.data}", alt=picture.name),
            tag("figcaption", picture.name),
        )
        for picture in run.pictures
        if picture.data
    ]
    left_out = [tag("li", f"{picture.name}: {picture.why}") for picture in run.pictures if picture.why]
    if not (shown or left_out):
        return None
    return join(
        tag("div", shown, class_="figures pictures"), tag("ul", left_out, class_="trouble") if left_out else None
    )


def _history(history: Sequence[Mapping[str, Any]], on: str) -> Html | None:
    """The whole history as a table, with fields that this version does not know; `test_...` are on `on` records."""
    if not history:
        return None
    columns = list(dict.fromkeys(key for entry in history for key in entry))
    names = [re.sub("^test_", f"{on}_", str(key)).replace("_", " ") for key in columns]
    head = tag("tr", [tag("th", name, scope="col", class_="num") for name in names])
    rows = [tag("tr", [tag("td", _cell(key, entry.get(key)), class_="num") for key in columns]) for entry in history]
    inner = tag("table", tag("caption", "History"), tag("thead", head), tag("tbody", rows))
    return tag(
        "details",
        tag("summary", "History in numbers"),
        tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label="History"),
    )


def _cell(key: str, value: object) -> str:
    if value is None:
        return "–"
    found = finite(value)
    if found is None:
        return "∞" if value == "inf" else str(value)
    return at_most(found) if key == "epsilon" else f"{found:.6g}"


SECTION = Section(name="runs", order=70, render=lambda page: _runs(page.found.finished))
