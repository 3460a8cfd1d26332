"""Runs that are not finished, not begun or damaged, with what is charged so far."""

from __future__ import annotations

from collections.abc import Sequence

from assay.report.collect import Damaged, Unfinished
from assay.report.elements import curves_of, epsilon, ident, num, path_name, section, table
from assay.report.groups import finite
from assay.report.html import Html, tag
from assay.report.sections import Page, Section


def unfinished(page: Page) -> Html | None:
    """The section; None if every run is finished and whole."""
    found = page.found
    if not (found.unfinished or found.damaged or found.waiting):
        return None
    return section(
        "unfinished",
        "Unfinished and damaged",
        _damaged(found.damaged),
        _unfinished(found.unfinished),
        [_going(entry) for entry in found.unfinished if len(entry.history) > 1],
        _waiting(found.waiting),
    )


def _damaged(entries: Sequence[Damaged]) -> Html | None:
    if not entries:
        return None
    rows = [tag("tr", tag("th", path_name(entry.name), scope="row"), tag("td", entry.why)) for entry in entries]
    return table("Damaged: these count nowhere else on this page", [("run", False), ("what is wrong", False)], rows)


def _unfinished(entries: Sequence[Unfinished]) -> Html | None:
    if not entries:
        return None
    rows = []
    for entry in entries:
        last = entry.history[-1] if entry.history else {}
        share = entry.charged / entry.planned if entry.charged is not None and entry.planned else None
        aside = "" if entry.scored == "test" else f" ({entry.scored})"
        latest = finite(last.get("test_accuracy"))
        steps = "not known" if entry.charged is None else f"{entry.charged} of {entry.planned}"
        bar = None if share is None else tag("progress", max=1, value=min(1.0, share), aria_label=f"{share:.0%}")
        rows.append(
            tag(
                "tr",
                tag("th", path_name(entry.name), scope="row"),
                tag("td", entry.method),
                tag("td", f"{entry.data}, {entry.model}"),
                tag("td", steps, " ", bar, class_="num", data_value="" if share is None else share),
                epsilon(entry.epsilon),
                num(latest, None if latest is None else f"{100 * latest:.2f}" + aside),
                tag("td", entry.changed, tag("div", entry.trouble, class_="trouble") if entry.trouble else None),
                data_method=entry.method,
                data_data=entry.data,
            )
        )
    heads = [
        ("run", False),
        ("method", False),
        ("data, model", False),
        ("steps charged", True),
        ("ε if it ends here", True),
        ("accuracy so far (%)", True),
        ("last charged", False),
    ]
    return table(
        "Unfinished: assay resume continues a run; one that ends here has spent the ε of its whole plan", heads, rows
    )


def _going(entry: Unfinished) -> Html:
    """The curves of an unfinished run."""
    return tag(
        "details",
        tag("summary", tag("span", path_name(entry.name), class_="run-name"), tag("span", "so far", class_="hint")),
        tag("div", curves_of(entry.name, entry.history, entry.scored), class_="figures small"),
        id=ident(entry.name),
        class_="going",
        data_method=entry.method,
        data_data=entry.data,
    )


def _waiting(names: Sequence[str]) -> Html | None:
    if not names:
        return None
    listed = tag("ul", [tag("li", name) for name in names], class_="names")
    return tag("details", tag("summary", f"{len(names)} runs of the study are not begun"), listed)


SECTION = Section(name="unfinished", order=40, render=unfinished)
