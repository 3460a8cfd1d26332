"""The elements of a page's sections: cells, sortable tables, figures."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay._util.figures import at_least, at_most
from assay.report import curves
from assay.report.charts import Axis, plot
from assay.report.groups import Tone
from assay.report.html import Child, Html, join, tag

_SIGNS = {Tone.GOOD: "✓", Tone.NOTE: "•", Tone.BAD: "✕"}


def epsilon(value: float | None, *, lower_bound: bool = False) -> Html:
    """An ε in a cell: an upper bound rounded up, a lower bound down, with its exact value for sorting."""
    if value is None or math.isinf(value):
        return num(value)
    return num(value, f"≥ {at_least(value)}" if lower_bound else at_most(value))


def num(value: float | None, text: str | None = None) -> Html:
    """A number in a cell, with its exact value for sorting. Without a value, the text says what is not known."""
    if value is None:
        said = tag("span", "–", class_="none") if text in (None, "–") else text
        return tag("td", said, class_="num", data_value="")
    if math.isinf(value):
        return tag("td", "∞", class_="num", data_value="Infinity", aria_label="infinite")
    return tag("td", f"{value:g}" if text is None else text, class_="num", data_value=repr(float(value)))


def path_name(name: str) -> Html:
    """A path that may be broken after its slashes."""
    first, *rest = name.split("/")
    return join(first, *(join("/", tag("wbr"), piece) for piece in rest))


def ident(name: str) -> str:
    """An id that is the same from page to page, so that what was open stays open."""
    return f"run-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def table(caption: str, heads: Iterable[tuple[str, bool]], rows: Sequence[Html], **attributes: str) -> Html:
    """A table whose columns can be sorted; `heads` are pairs (heading, whether it is a number)."""
    columns = [
        tag("th", tag("button", name, type="button"), scope="col", class_="num" if numeric else None, aria_sort="none")
        for name, numeric in heads
    ]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", tag("span", caption)),
            tag("thead", tag("tr", columns)),
            tag("tbody", rows),
            class_="sortable",
        ),
        class_="scroll",
        role="region",
        tabindex=0,
        aria_label=caption,
        **attributes,
    )


def section(ident: str, heading: str, *content: Child, count: int | None = None) -> Html:
    """A section of the page that screen readers can jump to."""
    counted = None if count is None else tag("span", count, class_="count")
    return tag(
        "section",
        tag("h2", heading, " " if counted else None, counted, id=ident),
        join(*content),
        aria_labelledby=ident,
    )


def badge(tone: Tone, words: str) -> Html:
    """A verdict, marked by sign and colour."""
    return tag("span", tag("span", _SIGNS[tone], aria_hidden="true"), " ", words, class_=f"badge {tone.value}")


def figure(chart: Html | None, caption: str) -> Html | None:
    """A chart with its caption; nothing if there is no chart."""
    if chart is None:
        return None
    return tag("figure", tag("div", chart, class_="scroll"), tag("figcaption", caption))


def curves_of(name: str, history: Sequence[Mapping[str, Any]], scored: str, *, marks: bool = True) -> list[Html | None]:
    """The course of one run's training, scored on `test` or `validation` records."""
    time = curves.time_axis([history])
    return [
        figure(plot(f"{words} of {name}", curves.of_history(history, what, name, marks=marks), time, axis), words)
        for what, words, axis in (
            ("test_accuracy", f"{scored.capitalize()} accuracy", curves.accuracy_axis(scored)),
            ("test_loss", f"{scored.capitalize()} loss", Axis(label=f"{scored} loss")),
            ("epsilon", "Verified ε spent", curves.SPENT),
        )
    ]
