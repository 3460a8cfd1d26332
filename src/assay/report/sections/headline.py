"""The table of all settings: claimed, verified and audited ε beside accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from assay.report.elements import badge, epsilon, num, section, table
from assay.report.groups import Group, verdict
from assay.report.html import Html, tag
from assay.report.sections import Section

_ERRORS = (("mean absolute error", "test_mae"), ("R²", "test_r2"))
"""What is shown beside accuracy where a number was predicted."""


def _error(value: float | None) -> Html:
    return num(value, None if value is None else f"{value:.4g}")


def _headline(groups: Sequence[Group]) -> Html | None:
    if not groups:
        return None
    meant, more = _differing(groups, _MEANT), _differing(groups, _SETTINGS)
    sent = ("up", "down") if any(group.sent("up") is not None for group in groups) else ()
    errors = [(head, what) for head, what in _ERRORS if any(group.measured(what) is not None for group in groups)]
    tuned = any(run.record.get("tuning") for group in groups for run in group.runs)
    validated = all(group.scored == "validation" for group in groups)
    accuracy_head = "validation accuracy (%)" if validated else "accuracy (%)"
    heads = [
        ("method", False),
        ("ε asked for", True),
        ("ε claimed", True),
        ("ε verified", True),
        ("ε audited", True),
        *((name, False) for name in meant),
        (accuracy_head, True),
        *((head, True) for head, _ in errors),
        ("verdict", False),
        ("data", False),
        ("model", False),
        *((name, False) for name in more),
        *((f"MB {way}", True) for way in sent),
        *([("settings tried", False)] if tuned else []),
        ("seeds", True),
    ]
    rows = [_headline_row(group, meant, more, errors, sent, tuned=tuned) for group in groups]
    deltas = ", ".join(sorted({f"{group.delta:g}" for group in groups}))
    unit = "" if "unit of privacy" in meant else f" of {groups[0].unit}"
    caption = f"Claimed, verified and audited ε{unit} at δ = {deltas}; accuracy is mean ± standard deviation over seeds"
    words = tag(
        "p",
        tag("b", "Claimed"),
        " is what the method's paper would report, ",
        tag("b", "verified"),
        " what follows from the noise, clipping and sampling really done (an upper bound, rounded up), ",
        tag("b", "audited"),
        " what an attack could show (a lower bound, rounded down).",
        class_="hint",
    )
    return section("headline", "Privacy and accuracy", words, table(caption, heads, rows))


_Columns = Mapping[str, Callable[[Group], str]]
_MEANT: _Columns = {"unit of privacy": lambda group: group.unit, "δ": lambda group: f"{group.delta:g}"}
"""What ε is about, beside it: that of a client cannot be compared with one of a record, nor 1e-5 with 1e-3."""
_SETTINGS: _Columns = {
    "setting": lambda group: group.setting,
    "accuracy on": lambda group: f"{group.scored} records",
}


def _differing(groups: Sequence[Group], columns: _Columns) -> _Columns:
    """The columns in which rows differ; others are not shown."""
    return {name: value for name, value in columns.items() if len({value(group) for group in groups}) > 1}


def _headline_row(
    group: Group,
    meant: _Columns,
    more: _Columns,
    errors: Sequence[tuple[str, str]],
    sent: Sequence[str],
    *,
    tuned: bool,
) -> Html:
    said = verdict(group)
    mean, spread = group.mean, group.deviation
    text = None if mean is None else f"{100 * mean:.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")
    asked = "–" if group.target is None else f"{group.target:g} {group.target_is}"
    spoken = tag(
        "td",
        badge(said.tone, said.words),
        " ",
        tag("span", said.detail, class_="detail"),
        class_="verdict",
        data_value=said.words,
    )
    return tag(
        "tr",
        tag("th", group.label, scope="row"),
        tag("td", asked, class_="num", data_value="" if group.target is None else group.target),
        epsilon(group.claimed),
        epsilon(group.verified),
        epsilon(group.audited, lower_bound=True),
        [tag("td", value(group), class_="setting") for value in meant.values()],
        num(mean, text),
        [_error(group.measured(what)) for _, what in errors],
        spoken,
        tag("td", group.data, class_="text"),
        tag("td", group.model, class_="text"),
        [tag("td", value(group), class_="setting") for value in more.values()],
        [num(group.sent(way)) for way in sent],
        tag("td", group.tried, class_="text") if tuned else None,
        num(len(group.runs)),
        data_method=group.method,
        data_data=group.data,
    )


SECTION = Section(name="headline", order=30, render=lambda page: _headline(page.groups))
