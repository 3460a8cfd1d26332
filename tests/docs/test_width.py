"""Prose in Markdown is wrapped at 100 columns; tables, blocks, headings and pictures may be wider."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "experiments/README.md",
    *sorted(ROOT.glob("experiments/*/README.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_is_wrapped(page):
    inside, wide = False, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        if not inside and len(line) > 100 and not line.startswith("    ") and line.lstrip()[0] not in "|#!<":
            wide.append(number)
    assert not wide, f"{page.name}: lines {wide} have more than 100 columns"
