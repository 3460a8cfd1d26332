"""Runs that are not finished, not begun or damaged."""

from __future__ import annotations

from assay.report.sections import Section
from assay.report.unfinished import unfinished

SECTION = Section(name="unfinished", order=40, render=lambda page: unfinished(page.found))
