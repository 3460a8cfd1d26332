"""What membership inference could do."""

from __future__ import annotations

from assay.report.sections import Section
from assay.report.single import attacks

SECTION = Section(name="attacks", order=60, render=lambda page: attacks(page.found.finished))
