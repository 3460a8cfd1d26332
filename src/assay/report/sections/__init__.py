"""The sections of a page, one file each. The registry finds every file that defines `SECTION`.

`assay._util.registry` explains how to add a section from another package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from assay._util.registry import Registry
from assay.report.collect import Collected
from assay.report.groups import Group, group_runs
from assay.report.html import Html


@dataclass(frozen=True)
class Page:
    """What the sections are made from."""

    found: Collected

    @cached_property
    def groups(self) -> Sequence[Group]:
        """The finished runs, grouped by their settings."""
        return group_runs(self.found.finished)

    @cached_property
    def styles(self) -> dict[str, int]:
        """A colour and shape for each method and its options; a published variant has those of the sound one."""
        styles: dict[str, int] = {}
        for group in self.groups:
            styles.setdefault(group.family, len(styles))
        return styles


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page.

    Attributes:
        name: Its name.
        order: Sections are shown in this order.
        render: Makes its HTML; None where there is nothing to show.
    """

    name: str
    order: int
    render: Callable[[Page], Html | None]


SECTIONS: Registry[Section] = Registry(
    "report_section",
    of=Section,
    wanted="an assay.report.sections.Section",
    package=__name__,
    attribute="SECTION",
)


def render_all(page: Page) -> list[Html | None]:
    """Every section, in order."""
    return [section.render(page) for section in sorted(SECTIONS.values(), key=lambda section: section.order)]
