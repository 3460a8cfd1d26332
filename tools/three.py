"""Draw claimed, verified and audited ε of all methods: `python -m tools.three`

It reads what `assay audit --all --releases 4000 --seed 0 --json` printed (`experiments/audits/all-methods.json`) and
writes `docs/assets/three.svg`, without anything to install.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay._util.figures import shown
from assay.report.charts import shape
from assay.report.html import Html, tag

READ, WRITTEN = Path("experiments/audits/all-methods.json"), Path("docs/assets/three.svg")
_LEFT, _RIGHT, _ROW, _TOP, _WIDTH = 330, 70, 24, 66, 960
_KINDS = {"claimed": (0, "#b45309"), "verified": (1, "#1d4ed8"), "audited": (2, "#047857")}
_TICKS = (0.1, 1, 10, 100, 1e3, 1e4, 1e5, 1e6)


def figure(rows: Sequence[Mapping[str, Any]]) -> Html:
    """A row for each form of a method; ε on a logarithmic axis, 0 at its beginning, with a place for ∞ at its end."""
    found = [value for row in rows for kind in _KINDS if (value := _number(row[kind])) and math.isfinite(value)]
    low, high = min(found) / 1.2, max(found) * 1.2
    end = _WIDTH - _RIGHT

    def across(value: float) -> float:
        if math.isinf(value):
            return _WIDTH - _RIGHT / 2
        share = (math.log(max(value, low)) - math.log(low)) / (math.log(high) - math.log(low))
        return _LEFT + share * (end - _LEFT)

    height = _TOP + _ROW * len(rows) + 34
    lines = [
        (
            tag("line", x1=across(tick), x2=across(tick), y1=_TOP - 10, y2=height - 30, stroke="#d4d4d4"),
            tag(
                "text",
                f"{tick:,.0f}" if tick >= 1 else f"{tick:g}",
                x=across(tick),
                y=height - 12,
                text_anchor="middle",
            ),
        )
        for tick in _TICKS
        if low <= tick <= high
    ]
    lines.append((tag("text", "∞", x=across(math.inf), y=height - 12, text_anchor="middle"),))
    return tag(
        "svg",
        tag("title", "Claimed, verified and audited ε of every method and variant"),
        tag("rect", width=_WIDTH, height=height, fill="#ffffff"),
        _legend(),
        lines,
        [_row(row, _TOP + _ROW * i + _ROW / 2, across) for i, row in enumerate(rows)],
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        font_family="sans-serif",
        font_size=13,
        fill="#262626",
    )


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _legend() -> list[Html]:
    drawn = []
    for i, (kind, (style, colour)) in enumerate(_KINDS.items()):
        x = _LEFT + 150 * i
        drawn += [_mark(style, colour, x, 24), tag("text", f"ε {kind}", x=x + 14, y=28)]
    return drawn


def _row(row: Mapping[str, Any], y: float, across: Any) -> list[Html]:
    name = f"{row['method']}, {row['variant']}" + (f" ({row['form']})" if row["form"] else "")
    values = {kind: number for kind in _KINDS if (number := _number(row[kind])) is not None}
    ends = [across(value) for value in values.values()]
    said = "; ".join(f"{kind} {shown(value, lower_bound=kind == 'audited')}" for kind, value in values.items())
    return [
        tag("text", name, x=_LEFT - 16, y=y + 4, text_anchor="end"),
        tag("line", x1=min(ends), x2=max(ends), y1=y, y2=y, stroke="#a3a3a3"),
        tag("g", tag("title", f"{name}: {said}"), [_mark(*_KINDS[kind], across(v), y) for kind, v in values.items()]),
    ]


def _mark(style: int, colour: str, x: float, y: float) -> Html:
    return tag("path", d=shape(style, x, y, 5.5), fill=colour, fill_opacity=0.85)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.three", description=__doc__.splitlines()[0])
    parser.add_argument("--read", type=Path, default=READ)
    parser.add_argument("--out", type=Path, default=WRITTEN)
    given = parser.parse_args()
    rows = json.loads(given.read.read_text(encoding="utf-8"))["methods"]
    given.out.write_text(figure(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
