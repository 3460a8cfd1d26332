"""A privacy statement (the Markdown of `assay.runs.statement`) as HTML. What statements do not use is escaped."""

from __future__ import annotations

import re

from assay.report.html import Html, join, tag


def render(markdown: str) -> Html:
    """Headings, paragraphs, lists, quotes and tables; `**bold**` and `` `code` `` inside."""
    blocks: list[Html] = []
    for block in re.split(r"\n\s*\n", markdown.strip()):
        lines = block.strip().split("\n")
        heads = [line for line in lines if line.startswith("#")]
        for line in heads:
            level = min(6, 3 + len(line) - len(line.lstrip("#")))
            blocks.append(tag(f"h{level}", inline(line.lstrip("# "))))
        rest = [line for line in lines if not line.startswith("#")]
        if rest:
            blocks.append(_block(rest))
    return join(*blocks)


def _block(lines: list[str]) -> Html:
    if all(line.startswith("- ") for line in lines):
        return tag("ul", [tag("li", inline(line[2:])) for line in lines])
    if all(line.startswith(">") for line in lines):
        return tag("blockquote", inline(" ".join(line.lstrip("> ") for line in lines)))
    if len(lines) > 1 and lines[0].startswith("|") and set(lines[1]) <= set("|-: "):
        head, *body = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in (lines[0], *lines[2:])]
        rows = [tag("tr", [tag("td", inline(cell)) for cell in row]) for row in body]
        return tag(
            "table", tag("thead", tag("tr", [tag("th", inline(c), scope="col") for c in head])), tag("tbody", rows)
        )
    return tag("p", inline(" ".join(lines)))


def inline(text: str) -> Html:
    """Bold and code; everything else is text."""
    pieces: list[Html | str] = []
    for piece in re.split(r"(\*\*.+?\*\*|`[^`]+`)", text):
        if piece.startswith("**") and piece.endswith("**") and len(piece) > 4:
            pieces.append(tag("strong", piece[2:-2]))
        elif piece.startswith("`") and piece.endswith("`") and len(piece) > 2:
            pieces.append(tag("code", piece[1:-1]))
        else:
            pieces.append(piece)
    return join(*pieces)
