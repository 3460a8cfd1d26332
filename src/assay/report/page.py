"""The page: everything in one file, nothing fetched from anywhere, nothing trusted that came from a run's files."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from string import Template

from assay._util.figures import at_least, at_most
from assay.report import curves
from assay.report.charts import Series, legend, plot
from assay.report.collect import Collected
from assay.report.groups import Group, Tone, accuracy, grouped, verdict
from assay.report.html import Html, join, tag
from assay.report.parts import badge, epsilon, figure, num, section, table
from assay.report.single import attacks, audits_aside, runs_section
from assay.report.unfinished import unfinished


def render(found: Collected, *, live: bool = False, token: str = "") -> str:
    """The whole page. A `live` one asks the server it came from whether there is news."""
    groups = grouped(found.finished)
    styles = _styles(groups)
    body = join(
        _overview(found, groups),
        _controls(groups),
        _headline(groups),
        unfinished(found),
        _panels(groups, styles) if len(found.finished) > 1 else None,  # one run has its curves beside its statement
        audits_aside(found.finished),
        attacks(found.finished),
        runs_section(found.finished),
    )
    return filled(found.title, body, live=live, token=token)


def filled(title: str, body: Html, *, live: bool = False, token: str = "") -> str:
    """A page around its body, with style and script inside and nothing else allowed to run."""
    script = _asset("report.js")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_asset("page.html")).substitute(
        title=tag("span", title),
        style=_asset("report.css"),
        script=script,
        allowed=f"'sha256-{allowed}'",
        connect="connect-src 'self'; " if live else "",
        live=tag("meta", name="assay-live", content=token) if live else "",
        body=body,
    )


def _asset(name: str) -> str:
    return (files("assay.report") / "assets" / name).read_text(encoding="utf-8")


def _styles(groups: Sequence[Group]) -> dict[str, int]:
    """A colour and shape for each method as it was set; a published variant shares them with the sound one, hollow."""
    styles: dict[str, int] = {}
    for group in groups:
        styles.setdefault(group.family, len(styles))
    return styles


def _overview(found: Collected, groups: Sequence[Group]) -> Html:
    if len(found.finished) == 1 and not (found.unfinished or found.damaged or found.waiting):
        return _one_run(groups[0])
    wrong = [group for group in groups if verdict(group).tone is Tone.BAD]
    tiles = [
        _tile(len(found.finished), "runs finished", to="runs"),
        _tile(len(groups), "settings", to="headline"),
        _tile(
            len(found.unfinished) + len(found.waiting),
            "runs unfinished or not begun",
            to="unfinished",
            bad=bool(found.unfinished),
        ),
        _tile(len(found.damaged), "damaged", to="unfinished", bad=bool(found.damaged)),
        _tile(len(wrong), "settings that do not hold what they claim", to="headline", bad=bool(wrong)),
    ]
    seeded = any(group.seeded for group in groups)
    return tag(
        "div",
        tag("div", tiles, class_="tiles"),
        tag("p", "Seeds are fixed in these runs: they are reproducible, and therefore not private.", class_="hint")
        if seeded
        else None,
    )


def _tile(value: int, words: str, *, to: str, bad: bool = False) -> Html:
    inner, styled = (tag("strong", value), tag("span", words)), "tile bad" if bad else "tile"
    return tag("a", *inner, href=f"#{to}", class_=styled) if value else tag("div", *inner, class_=styled)


def _one_run(group: Group) -> Html:
    run, said = group.runs[0], verdict(group)
    found = accuracy(run)
    tiles = [
        ("ε verified", "∞" if math.isinf(group.verified) else at_most(group.verified)),
        ("ε claimed", "–" if group.claimed is None else "∞" if math.isinf(group.claimed) else at_most(group.claimed)),
        (
            "ε audited",
            "not measured"
            if group.audited is None
            else "∞"
            if math.isinf(group.audited)
            else f"≥ {at_least(group.audited)}",
        ),
        (f"{group.scored} accuracy", "–" if found is None else f"{found:.2%}"),
        ("δ", f"{group.delta:g}"),
    ]
    return tag(
        "div",
        tag(
            "div",
            [tag("div", tag("strong", value), tag("span", name), class_="tile") for name, value in tiles],
            class_="tiles",
        ),
        tag("p", badge(said.tone, said.words), " ", said.detail, f". Unit of privacy: {group.unit}."),
    )


def _controls(groups: Sequence[Group]) -> Html | None:
    methods = list(dict.fromkeys(group.method for group in groups))
    data = list(dict.fromkeys(group.data for group in groups))
    if len(methods) < 2 and len(data) < 2:
        return None
    return tag(
        "form",
        [_filter(name, values) for name, values in (("method", methods), ("data", data)) if len(values) > 1],
        tag("p", id="shown", role="status", class_="hint"),
        class_="controls",
        aria_label="Filter",
    )


def _filter(name: str, values: Sequence[str]) -> Html:
    boxes = [
        tag("label", tag("input", type="checkbox", name=name, value=value, checked=True), " ", value)
        for value in values
    ]
    every = tag("button", "all", type="button", data_all=name)
    return tag("fieldset", tag("legend", name), boxes, every if len(values) > 2 else None)


def _headline(groups: Sequence[Group]) -> Html | None:
    if not groups:
        return None
    more = _differing(groups)
    sent = ("up", "down") if any(group.sent("up") is not None for group in groups) else ()
    tuned = any(run.record.get("tuning") for group in groups for run in group.runs)
    validated = all(group.scored == "validation" for group in groups)
    accuracy_head = "validation accuracy (%)" if validated else "accuracy (%)"
    heads = [
        ("method", False),
        ("ε asked for", True),
        ("ε claimed", True),
        ("ε verified", True),
        ("ε audited", True),
        (accuracy_head, True),
        ("verdict", False),
        ("data", False),
        ("model", False),
        *((name, False) for name in more),
        *((f"MB {way}", True) for way in sent),
        *([("settings tried", False)] if tuned else []),
        ("seeds", True),
    ]
    rows = [_headline_row(group, more, sent, tuned=tuned) for group in groups]
    deltas = ", ".join(sorted({f"{group.delta:g}" for group in groups}))
    caption = f"Claimed, verified and audited ε at δ = {deltas}; accuracy is mean ± standard deviation over seeds"
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


def _differing(groups: Sequence[Group]) -> dict[str, Callable[[Group], str]]:
    """Columns that are there only where rows differ in them: an ε for a client is no ε for a record, one at 1e-5 none at 1e-3."""
    columns: dict[str, Callable[[Group], str]] = {
        "setting": lambda group: group.setting,
        "unit of privacy": lambda group: group.unit,
        "δ": lambda group: f"{group.delta:g}",
        "accuracy on": lambda group: f"{group.scored} records",
    }
    return {name: value for name, value in columns.items() if len({value(group) for group in groups}) > 1}


def _headline_row(
    group: Group, more: Mapping[str, Callable[[Group], str]], sent: Sequence[str], *, tuned: bool
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
        num(mean, text),
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


def _panels(groups: Sequence[Group], styles: Mapping[str, int]) -> Html | None:
    panels: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        panels.setdefault((group.data, group.model, group.scored), []).append(group)
    made = [_panel(*about, members, styles) for about, members in panels.items()]
    return section("charts", "Charts", made) if made else None


def _panel(data: str, model: str, scored: str, groups: Sequence[Group], styles: Mapping[str, int]) -> Html:
    name = f"{data}, {model}" + ("" if scored == "test" else f", on {scored} records")
    accuracies, axis = f"{scored.capitalize()} accuracy while training", curves.accuracy_axis(scored)
    final = curves.against_epsilon(groups, styles)
    history = curves.over_time(groups, styles, "test_accuracy")
    spent = curves.over_time(groups, styles, "epsilon")
    time = curves.time_axis(run.record.get("history") or [] for group in groups for run in group.runs)
    unbounded = sum(any(curves.infinite_epsilon(run.record.get("history") or []) for run in g.runs) for g in groups)
    figures = [
        figure(
            plot(f"Accuracy against verified ε: {name}", final, curves.EPSILON, axis),
            "Accuracy against verified ε; bars are ± one standard deviation over seeds, hollow marks published variants.",
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
    shown: list[Series] = [*final, *history]
    return tag(
        "div", tag("h3", name), legend(shown), tag("div", figures, class_="figures"), class_="panel", data_data=data
    )
