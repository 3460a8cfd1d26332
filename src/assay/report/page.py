"""The page: everything in one file, nothing fetched from anywhere, nothing trusted that came from a run's files."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from assay.attacks.evaluation import NOT_PRIVATE
from assay.figures import at_least, at_most
from assay.report import curves, statement
from assay.report.charts import Axis, Series, legend, plot
from assay.report.collect import Collected, Damaged, Finished, Unfinished
from assay.report.groups import Group, Tone, accuracy, finite, grouped, verdict
from assay.report.html import Child, Html, join, tag

_OPEN_AT_MOST = 2  # runs whose statement is open from the start
_MARKED_AT_MOST = 60  # runs whose own curves have a mark for each value; with more the values are in their tables only
_TIME = Axis(label="epoch", from_zero=True)
_SIGNS = {Tone.GOOD: "✓", Tone.NOTE: "•", Tone.BAD: "✕"}


def render(found: Collected, *, live: bool = False, token: str = "") -> str:
    """The whole page. A `live` one asks the server it came from whether there is news."""
    groups = grouped(found.finished)
    styles = _styles(groups)
    script = _asset("report.js")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    body = join(
        _overview(found, groups),
        _controls(groups),
        _headline(groups),
        _trouble(found),
        _panels(groups, styles) if len(found.finished) > 1 else None,  # one run has its curves beside its statement
        _attacks(found.finished),
        _runs(found.finished),
    )
    return Template(_asset("page.html")).substitute(
        title=tag("span", found.title),
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


def epsilon(value: float | None, *, lower_bound: bool = False) -> Html:
    """An ε in a cell, rounded to the side that is true; with its exact value for sorting."""
    if value is None:
        return tag("td", tag("span", "–", class_="none"), class_="num", data_value="")
    if math.isinf(value):
        return tag("td", "∞", class_="num", data_value="Infinity", aria_label="infinite")
    text = f"≥ {at_least(value)}" if lower_bound else at_most(value)
    return tag("td", text, class_="num", data_value=repr(value))


def _path(name: str) -> Html:
    """A path that may be broken after its slashes."""
    first, *rest = name.split("/")
    return join(first, *(join("/", tag("wbr"), part) for part in rest))


def _ident(name: str) -> str:
    """The same from page to page, so that what was open stays open."""
    return f"run-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _num(value: float | None, text: str | None = None) -> Html:
    said = "–" if value is None else text if text is not None else f"{value:g}"
    return tag("td", said, class_="num", data_value="" if value is None else repr(float(value)))


def _table(caption: str, heads: Iterable[tuple[str, bool]], rows: Sequence[Html], **attributes: str) -> Html:
    """A table whose columns can be sorted; (heading, is it a number)."""
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


def _section(ident: str, heading: str, *content: Child, count: int | None = None) -> Html:
    counted = None if count is None else tag("span", count, class_="count")
    return tag(
        "section",
        tag("h2", heading, " " if counted else None, counted, id=ident),
        join(*content),
        aria_labelledby=ident,
    )


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
        ("test accuracy", "–" if found is None else f"{found:.2%}"),
        ("δ", f"{group.delta:g}"),
    ]
    return tag(
        "div",
        tag(
            "div",
            [tag("div", tag("strong", value), tag("span", name), class_="tile") for name, value in tiles],
            class_="tiles",
        ),
        tag("p", _badge(said.tone, said.words), " ", said.detail, f". Unit of privacy: {group.unit}."),
    )


def _badge(tone: Tone, words: str) -> Html:
    return tag("span", tag("span", _SIGNS[tone], aria_hidden="true"), " ", words, class_=f"badge {tone.value}")


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


def _trouble(found: Collected) -> Html | None:
    if not (found.unfinished or found.damaged or found.waiting):
        return None
    return _section(
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
    rows = [tag("tr", tag("th", _path(entry.name), scope="row"), tag("td", entry.why)) for entry in entries]
    return _table("Damaged: these count nowhere else on this page", [("run", False), ("what is wrong", False)], rows)


def _unfinished(entries: Sequence[Unfinished]) -> Html | None:
    if not entries:
        return None
    rows = []
    for entry in entries:
        last = entry.history[-1] if entry.history else {}
        part = entry.charged / entry.planned if entry.charged is not None and entry.planned else None
        latest = finite(last.get("test_accuracy"))
        steps = "not known" if entry.charged is None else f"{entry.charged} of {entry.planned}"
        bar = None if part is None else tag("progress", max=1, value=min(1.0, part), aria_label=f"{part:.0%}")
        rows.append(
            tag(
                "tr",
                tag("th", _path(entry.name), scope="row"),
                tag("td", entry.method),
                tag("td", f"{entry.data}, {entry.model}"),
                tag("td", steps, " ", bar, class_="num", data_value="" if part is None else part),
                epsilon(entry.epsilon),
                _num(latest, None if latest is None else f"{100 * latest:.2f}"),
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
        ("ε spent so far", True),
        ("accuracy so far (%)", True),
        ("last charged", False),
    ]
    return _table("Unfinished: what is charged so far is spent; assay resume goes on with a run", heads, rows)


def _going(entry: Unfinished) -> Html:
    """The curves of a run that is not at its end."""
    return tag(
        "details",
        tag("summary", tag("span", _path(entry.name), class_="run-name"), tag("span", "so far", class_="hint")),
        tag("div", _curves(entry.name, entry.history), class_="figures small"),
        id=_ident(entry.name),
        class_="going",
        data_method=entry.method,
        data_data=entry.data,
    )


def _curves(name: str, history: Sequence[Mapping[str, Any]], *, marks: bool = True) -> list[Html | None]:
    """What happened while one run trained."""
    return [
        _figure(plot(f"{words} of {name}", curves.of_history(history, what, name, marks=marks), _TIME, axis), words)
        for what, words, axis in (
            ("test_accuracy", "Test accuracy", curves.ACCURACY),
            ("test_loss", "Test loss", curves.LOSS),
            ("epsilon", "Verified ε spent", curves.SPENT),
        )
    ]


def _waiting(names: Sequence[str]) -> Html | None:
    if not names:
        return None
    listed = tag("ul", [tag("li", name) for name in names], class_="names")
    return tag("details", tag("summary", f"{len(names)} runs of the study are not begun"), listed)


def _headline(groups: Sequence[Group]) -> Html | None:
    if not groups:
        return None
    more = _differing(groups)
    heads = [
        ("method", False),
        ("ε asked for", True),
        ("ε claimed", True),
        ("ε verified", True),
        ("ε audited", True),
        ("accuracy (%)", True),
        ("verdict", False),
        ("data", False),
        ("model", False),
        *((name, False) for name in more),
        ("seeds", True),
    ]
    rows = [_headline_row(group, more) for group in groups]
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
    return _section("headline", "Privacy and accuracy", words, _table(caption, heads, rows))


def _differing(groups: Sequence[Group]) -> dict[str, Callable[[Group], str]]:
    """Columns that are there only where rows differ in them: an ε for a client is no ε for a record, one at 1e-5 none at 1e-3."""
    columns: dict[str, Callable[[Group], str]] = {
        "setting": lambda group: group.setting,
        "unit of privacy": lambda group: group.unit,
        "δ": lambda group: f"{group.delta:g}",
    }
    return {name: value for name, value in columns.items() if len({value(group) for group in groups}) > 1}


def _headline_row(group: Group, more: Mapping[str, Callable[[Group], str]]) -> Html:
    said = verdict(group)
    mean, spread = group.mean, group.deviation
    text = None if mean is None else f"{100 * mean:.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")
    asked = "–" if group.target is None else f"{group.target:g} {group.target_is}"
    spoken = tag(
        "td",
        _badge(said.tone, said.words),
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
        _num(mean, text),
        spoken,
        tag("td", group.data, class_="text"),
        tag("td", group.model, class_="text"),
        [tag("td", value(group), class_="setting") for value in more.values()],
        _num(len(group.runs)),
        data_method=group.method,
        data_data=group.data,
    )


def _panels(groups: Sequence[Group], styles: Mapping[str, int]) -> Html | None:
    panels: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        panels.setdefault((group.data, group.model), []).append(group)
    made = [_panel(data, model, members, styles) for (data, model), members in panels.items()]
    return _section("charts", "Charts", made) if made else None


def _panel(data: str, model: str, groups: Sequence[Group], styles: Mapping[str, int]) -> Html:
    name = f"{data}, {model}"
    final = curves.against_epsilon(groups, styles)
    history = curves.over_time(groups, styles, "test_accuracy")
    spent = curves.over_time(groups, styles, "epsilon")
    unbounded = sum(any(curves.infinite_epsilon(run.record.get("history") or []) for run in g.runs) for g in groups)
    figures = [
        _figure(
            plot(f"Accuracy against verified ε: {name}", final, curves.EPSILON, curves.ACCURACY),
            "Accuracy against verified ε; bars are ± one standard deviation over seeds, hollow marks published variants.",
        ),
        _figure(
            plot(f"Test accuracy while training: {name}", history, _TIME, curves.ACCURACY),
            "Test accuracy while training, mean over seeds.",
        ),
        _figure(
            plot(f"Privacy spent while training: {name}", spent, _TIME, curves.SPENT),
            "Verified ε spent while training."
            + (f" {unbounded} setting{'s' if unbounded > 1 else ''} with ε = ∞ cannot be drawn." if unbounded else ""),
        ),
    ]
    shown: list[Series] = [*final, *history]
    return tag(
        "div", tag("h3", name), legend(shown), tag("div", figures, class_="figures"), class_="panel", data_data=data
    )


def _figure(chart: Html | None, caption: str) -> Html | None:
    if chart is None:
        return None
    return tag("figure", tag("div", chart, class_="scroll"), tag("figcaption", caption))


def _attacks(runs: Sequence[Finished]) -> Html | None:
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
    return _section(
        "attacks",
        "Attacks",
        tag("p", f"{NOT_PRIVATE[0].upper()}{NOT_PRIVATE[1:]}.", class_="hint"),
        _table(caption, heads, rows),
    )


def _attack_row(run: Finished, result: Mapping[str, Any]) -> Html | None:
    rates = {
        finite(rate.get("fpr")): rate.get("tpr") for rate in result.get("tpr_at_fpr", []) if isinstance(rate, Mapping)
    }
    return tag(
        "tr",
        tag("th", _path(run.name), scope="row"),
        tag("td", str(result.get("attack", "unnamed"))),
        _estimate(result.get("auc")),
        _estimate(result.get("balanced_accuracy")),
        _estimate(rates.get(0.001)),
        _estimate(rates.get(0.01)),
        _num(finite(result.get("members"))),
        data_method=str(run.record["method"]),
        data_data=str(run.record["data"]),
    )


def _estimate(found: object) -> Html:
    if not isinstance(found, Mapping):
        return _num(None)
    value, low, high = (finite(found.get(key)) for key in ("value", "low", "high"))
    if value is None:
        return _num(None)
    around = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return _num(value, f"{value:.3f}{around}")


def _runs(runs: Sequence[Finished]) -> Html | None:
    if not runs:
        return None
    opened = len(runs) <= _OPEN_AT_MOST
    every = tag("button", "Open all", type="button", id="open-all") if len(runs) > _OPEN_AT_MOST else None
    made = [_run(run, opened, marks=len(runs) <= _MARKED_AT_MOST) for run in runs]
    return _section("runs", "Runs", tag("p", every, class_="no-print") if every else None, made, count=len(runs))


def _run(run: Finished, opened: bool, *, marks: bool) -> Html:
    record = run.record
    found, spent = accuracy(run), float(record["epsilon"]["verified"])
    facts = [
        "" if found is None else f"{found:.2%}",
        f"ε {'∞' if math.isinf(spent) else at_most(spent)}",
        "" if record.get("status", "done") == "done" else str(record["status"]),
    ]
    head = tag(
        "summary",
        tag("span", _path(run.name), class_="run-name"),
        tag("span", f"{record['method']} on {record['data']}", class_="hint"),
        tag("span", ", ".join(filter(None, facts)), class_="facts"),
    )
    history = [entry for entry in record.get("history") or [] if isinstance(entry, Mapping)]
    return tag(
        "details",
        head,
        tag("p", run.trouble, class_="trouble") if run.trouble else None,
        tag("div", _curves(run.name, history, marks=marks) if len(history) > 1 else None, class_="figures small"),
        _pictures(run),
        tag("div", statement.render(run.statement), class_="statement"),
        _history(history),
        id=_ident(run.name),
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


def _history(history: Sequence[Mapping[str, Any]]) -> Html | None:
    """Every value of the history as a table, fields that this version does not know included."""
    if not history:
        return None
    columns = list(dict.fromkeys(key for entry in history for key in entry))
    head = tag("tr", [tag("th", str(key).replace("_", " "), scope="col", class_="num") for key in columns])
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
