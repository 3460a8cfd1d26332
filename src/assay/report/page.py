"""The page: everything in one file, nothing fetched from anywhere, nothing trusted that came from a run's files."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from string import Template

from assay.report.collect import Collected
from assay.report.html import Html, join, tag
from assay.report.sections import Page, rendered


def render(found: Collected, *, live: bool = False, token: str = "") -> str:
    """The whole page. A `live` one asks the server it came from whether there is news."""
    return filled(found.title, join(*rendered(Page(found))), live=live, token=token)


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
