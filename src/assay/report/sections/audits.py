"""Audits that trained on the private records again, which no ε covers."""

from __future__ import annotations

from collections.abc import Sequence

from assay.audit.aside import NOT_COVERED
from assay.report.collect import Finished
from assay.report.elements import path_name, section, table
from assay.report.html import Html, tag
from assay.report.sections import Section


def _audits(runs: Sequence[Finished]) -> Html | None:
    """The results of audits that trained on the records again."""
    rows = [
        tag(
            "tr",
            tag("th", path_name(run.name), scope="row"),
            tag("td", str(audit.get("sentence", ""))),
            tag("td", f"{audit.get('estimator', '')}: {audit.get('how', '')}"),
            data_method=str(run.record["method"]),
            data_data=str(run.record["data"]),
        )
        for run in runs
        for audit in run.aside
    ]
    if not rows:
        return None
    heads = [("run", False), ("verdict", False), ("how", False)]
    return section(
        "audits-aside",
        "Audits that trained again",
        tag("p", f"{NOT_COVERED[0].upper()}{NOT_COVERED[1:]}.", class_="hint"),
        table("Lower bounds on ε from training on the same records again", heads, rows),
    )


SECTION = Section(name="audits", order=55, render=lambda page: _audits(page.found.finished))
