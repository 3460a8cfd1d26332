"""Each finished run."""

from __future__ import annotations

from assay.report.sections import Section
from assay.report.single import runs_section

SECTION = Section(name="runs", order=70, render=lambda page: runs_section(page.found.finished))
