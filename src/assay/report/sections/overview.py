"""The first section: how many runs there are, or the result of the only one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay._util.figures import at_least, at_most
from assay.report.collect import Collected
from assay.report.elements import badge
from assay.report.groups import Group, Tone, accuracy, verdict
from assay.report.html import Html, tag
from assay.report.sections import Section
from assay.runs.metrics import shown


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
    found, figures = accuracy(run), shown(run.record.get("result", {}))
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
        *(
            []
            if found is None and figures
            else [(f"{group.scored} accuracy", "–" if found is None else f"{found:.2%}")]
        ),
        *figures.items(),
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


SECTION = Section(name="overview", order=10, render=lambda page: _overview(page.found, page.groups))
