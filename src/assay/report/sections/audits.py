"""Audits that trained on the private records again, which no ε covers."""

from __future__ import annotations

from assay.report.sections import Section
from assay.report.single import audits_aside

SECTION = Section(name="audits", order=55, render=lambda page: audits_aside(page.found.finished))
