"""What is shown: by method and data set."""

from __future__ import annotations

from collections.abc import Sequence

from assay.report.groups import Group
from assay.report.html import Html, tag
from assay.report.sections import Section


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


SECTION = Section(name="controls", order=20, render=lambda page: _controls(page.groups))
