"""The sections of a page: one file each. A file that defines `SECTION` is found by itself.

`assay._util.registry` tells how a section from outside is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from assay._util.registry import Registry
from assay.report.collect import Collected
from assay.report.groups import Group, grouped
from assay.report.html import Html


@dataclass(frozen=True)
class Page:
    """What the sections are made from."""

    found: Collected

    @cached_property
    def groups(self) -> Sequence[Group]:
        """The finished runs, those of equal settings together."""
        return grouped(self.found.finished)

    @cached_property
    def styles(self) -> dict[str, int]:
        """A colour and shape for each method as it was set; a published variant shares them with the sound one, hollow."""
        styles: dict[str, int] = {}
        for group in self.groups:
            styles.setdefault(group.family, len(styles))
        return styles


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page. `order` says where it stands; `render` gives None where there is nothing to show."""

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


def rendered(page: Page) -> list[Html | None]:
    """Every section, in order."""
    return [section.render(page) for section in sorted(SECTIONS.values(), key=lambda section: section.order)]
