"""The page: one file that fetches nothing and trusts nothing from a run's files."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from string import Template

from assay.report.collect import Collected
from assay.report.html import Html, join, tag
from assay.report.sections import Page, render_all


def render(found: Collected, *, live: bool = False, token: str = "") -> str:
    """The whole page.

    Args:
        found: The runs.
        live: The page asks its server whether there is news.
        token: The state of the runs, for a live page.

    Returns:
        HTML.
    """
    return fill(found.title, join(*render_all(Page(found))), live=live, token=token)


def fill(title: str, body: Html, *, live: bool = False, token: str = "") -> str:
    """Put a body into a page with its style and script; nothing else may run."""
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
