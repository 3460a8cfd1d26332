"""Charts as SVG without a library to bundle: sharp in print, coloured by the page's style sheet.

A series has a colour and a shape, so that nobody depends on colour alone. Each mark carries its values as text. The
page shows them when a reader points at the mark or reaches it with the arrow keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from assay.report.html import Html, join, tag

WIDTH, HEIGHT = 480, 320
_RIGHT, _TOP, _BOTTOM = 14, 12, 56
_LETTER = 9.2  # the width of the widest digit of an axis
_BEYOND = 46  # the width of the strip for infinite values
_PLUS = ((-0.45, -1.15), (0.45, -1.15), (0.45, -0.45), (1.15, -0.45), (1.15, 0.45), (0.45, 0.45))
_POLYGONS = (
    ((-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)),
    ((0, -1.2), (1.15, 0.8), (-1.15, 0.8)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((0, 1.2), (1.15, -0.8), (-1.15, -0.8)),
    (*_PLUS, *((-x, -y) for x, y in _PLUS)),
    ((-1, -0.5), (1, -0.5), (1, 0.5), (-1, 0.5)),
)
"""The corners of marks, in units of their size; the first mark is a circle."""
_TICKS = 6  # numbers on an axis, about
SHAPES = 1 + len(_POLYGONS)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A value with its spread; x may be infinite."""

    x: float
    y: float
    tip: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one kind. `hollow` is for published variants. `marks` are large, small (False) or absent (None)."""

    label: str
    style: int
    points: Sequence[Point]
    method: str
    hollow: bool = False
    marks: bool | None = True


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What is drawn along one side. `least` is the smallest distance of its numbers: 1 where things are counted."""

    label: str
    least: float = 0.0
    log: bool = False
    percent: bool = False
    from_zero: bool = False


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool
    least: float = 0.0

    def at(self, value: float) -> float:
        """The position of a value; of 0, which has no logarithm, the low end of the axis."""
        value = max(value, self.low) if self.log else value
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        share = ((math.log(value) if self.log else value) - low) / (high - low)
        return self.start + share * (self.end - self.start)


@dataclass
class _Frame:
    x: _Scale
    y: _Scale
    beyond: float | None
    left: float
    right: float


def plot(title: str, series: Sequence[Series], x: Axis, y: Axis) -> Html | None:
    """A chart, or nothing if there is nothing to draw."""
    shown = [s for s in series if s.points]
    finite = [p for s in shown for p in s.points if math.isfinite(p.x)]
    if not shown:
        return None
    infinite = any(math.isinf(p.x) for s in shown for p in s.points)
    right = WIDTH - _RIGHT - (_BEYOND if infinite else 0)
    heights = [v for s in shown for p in s.points for v in (p.y, p.low, p.high) if v is not None]
    up = _scale(heights, y, HEIGHT - _BOTTOM, _TOP, pad=True)
    # wide enough for the axis's name and the longest of its numbers
    left = max(64.0, 34 + _LETTER * max((len(_said(value, y)) for value in _ticks(up, _TICKS)), default=0))
    frame = _Frame(
        x=_scale([p.x for p in finite] or [1.0], x, left, right, pad=not x.from_zero),
        y=up,
        left=left,
        beyond=WIDTH - _RIGHT - _BEYOND / 2 if infinite else None,
        right=right,
    )
    return tag(
        "svg",
        tag("title", title),
        _axes(frame, x, y, drawn=bool(finite)),
        [_series(one, frame) for one in shown],
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        tabindex=0,
        class_="chart",
        aria_label=f"{title}. Arrow keys read out the values one by one.",
    )


def _scale(values: Sequence[float], axis: Axis, start: float, end: float, *, pad: bool) -> _Scale:
    if axis.log:  # 0 is drawn at the end, and must not stretch the axis
        values = [value for value in values if value > 0] or [1.0]
    low, high = min(values), max(values)
    whole = 1.0 if high <= 1 else math.inf
    if axis.log:
        return _Scale(_round_below(max(low, 1e-9)), _round_above(max(high, 1e-9)), start, end, True)
    if axis.from_zero:
        low = 0.0
    if high - low < (1e-3 if axis.percent else 1e-6 * max(abs(low), abs(high), 1e-6)):  # in effect one value
        around = 0.05 if axis.percent else 0.5 * max(abs(low), abs(high)) or 0.5
        low, high = low - around, high + around
    margin = (0.08 if pad else 0.0) * (high - low)
    low, high = (low if axis.from_zero else low - margin), high + margin
    if axis.percent:
        low, high = max(0.0, low), min(whole, high)
    step = max(axis.least, _step(low, high, _TICKS))  # the axis ends at a number, beyond the data
    low, high = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    return _Scale(low, high, start, end, False, axis.least)


def _round_below(value: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is not above the value."""
    power = 10.0 ** math.floor(math.log10(value) + 1e-12)
    return max(power * factor for factor in (1, 2, 5) if power * factor <= value * (1 + 1e-12))


def _round_above(value: float) -> float:
    """The next of 1, 2 and 5 times a power of ten above the value."""
    power = 10.0 ** math.floor(math.log10(value) + 1e-12)
    return min(power * factor for factor in (1, 2, 5, 10) if power * factor > value * (1 + 1e-12))


def _step(low: float, high: float, wanted: int) -> float:
    """The distance of numbers on an axis of about this many."""
    raw = (high - low) / wanted
    size = 10.0 ** math.floor(math.log10(raw))
    return next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * (1 - 1e-9))


def _ticks(scale: _Scale, wanted: int) -> list[float]:
    if scale.log:
        first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
        for factors in ((1, 2, 5), (1, 3), (1,)):
            every = (m * 10.0**e for e in range(first, last + 1) for m in factors)
            ticks = [value for value in every if scale.low <= value <= scale.high]
            if len(ticks) <= wanted:
                break
        else:
            ticks = ticks[:: math.ceil(len(ticks) / wanted)]
        return sorted({*ticks, scale.low, scale.high})
    step = max(scale.least, _step(scale.low, scale.high, wanted))
    first_tick = math.ceil(scale.low / step - 1e-9)
    return [n * step for n in range(first_tick, math.floor(scale.high / step + 1e-9) + 1)]


def _axes(frame: _Frame, x: Axis, y: Axis, *, drawn: bool) -> Html:
    bottom, drawing = HEIGHT - _BOTTOM, []
    for value in _ticks(frame.y, _TICKS):
        at = round(frame.y.at(value), 1)
        drawing.append(tag("line", x1=frame.left, x2=WIDTH - _RIGHT, y1=at, y2=at, class_="gridline"))
        drawing.append(tag("text", _said(value, y), x=frame.left - 8, y=at + 5, text_anchor="end"))
    free, end = 0.0, WIDTH if frame.beyond is None else frame.beyond - _LETTER
    for value in _ticks(frame.x, _TICKS) if drawn else []:
        at, half = round(frame.x.at(value), 1), _LETTER * len(_said(value, x)) / 2
        drawing.append(tag("line", x1=at, x2=at, y1=bottom, y2=bottom + 5, class_="axis"))
        if free <= at - half and at + half <= end:  # a number that would touch its neighbour is left out
            drawing.append(tag("text", _said(value, x), x=at, y=bottom + 25, text_anchor="middle"))
            free = at + half
    if frame.beyond is not None:
        drawing.append(tag("line", x1=frame.right, x2=frame.right, y1=_TOP, y2=bottom, class_="beyond"))
        drawing.append(tag("text", "∞", x=frame.beyond, y=bottom + 25, text_anchor="middle"))
    drawing.append(tag("line", x1=frame.left, x2=WIDTH - _RIGHT, y1=bottom, y2=bottom, class_="axis"))
    middle, height = (frame.left + WIDTH - _RIGHT) / 2, f"{(_TOP + bottom) / 2:g}"
    drawing.append(tag("text", x.label, x=middle, y=HEIGHT - 9, text_anchor="middle", class_="name"))
    turned = f"rotate(-90 16 {height})"
    drawing.append(tag("text", y.label, x=16, y=height, text_anchor="middle", transform=turned, class_="name"))
    return tag("g", drawing, class_="axes", aria_hidden="true")


def _said(value: float, axis: Axis) -> str:
    return f"{100 * value:.6g} %" if axis.percent else f"{value:.6g}"


def _series(one: Series, frame: _Frame) -> Html:
    line = [p for p in one.points if math.isfinite(p.x)]
    drawing: list[Html] = []
    if len(line) > 1:
        path = " ".join(f"{frame.x.at(p.x):.1f},{frame.y.at(p.y):.1f}" for p in line)
        drawing.append(tag("polyline", points=path, class_="line"))
    for p in one.points:
        across = frame.beyond if math.isinf(p.x) else frame.x.at(p.x)
        assert across is not None
        drawing += _bar(p, across, frame)
        if one.marks is not None:
            drawing.append(_mark(p, across, frame.y.at(p.y), one))
    return tag("g", drawing, class_=_styled(one.style, hollow=one.hollow), data_method=one.method)


def _styled(style: int, *, hollow: bool) -> str:
    """The class that gives a series its colour; with more series than colours, lines are dashed the second time."""
    return f"series s{style % SHAPES}{' hollow' if hollow else ''}{' dashed' if style // SHAPES % 2 else ''}"


def _bar(p: Point, across: float, frame: _Frame) -> list[Html]:
    if p.low is None or p.high is None:
        return []
    top, low = frame.y.at(p.high), frame.y.at(p.low)
    return [
        tag(
            "path",
            d=f"M{across:.1f} {top:.1f}V{low:.1f}M{across - 4:.1f} {top:.1f}h8M{across - 4:.1f} {low:.1f}h8",
            class_="bar",
        )
    ]


def _mark(p: Point, x: float, y: float, one: Series) -> Html:
    kind = "mark" if one.marks else "mark dot"
    return tag("path", d=shape(one.style, x, y, 4.6 if one.marks else 2.4), class_=kind, data_tip=p.tip)


def shape(style: int, x: float, y: float, r: float) -> str:
    """The outline of a series' mark. Series of one colour have different shapes, up to the square of `SHAPES`."""
    number = (style + style // SHAPES) % SHAPES
    if number == 0:
        return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z"
    return "M" + "L".join(f"{x + right * r:.1f} {y + down * r:.1f}" for right, down in _POLYGONS[number - 1]) + "Z"


def legend(entries: Sequence[Series]) -> Html:
    """What colour and shape stand for."""
    seen = {(s.label, s.style, s.hollow, s.method) for s in entries}
    ordered = sorted(seen, key=lambda entry: (entry[1], entry[2]))
    items = []
    for label, style, hollow, method in ordered:
        mark = tag("path", d=shape(style, 8, 8, 5), class_="mark")
        styled = _styled(style, hollow=hollow)
        drawing = tag(
            "svg", tag("g", mark, class_=styled), viewBox="0 0 16 16", width=16, height=16, aria_hidden="true"
        )
        items.append(tag("li", drawing, label, data_method=method))
    return tag("ul", join(*items), class_="legend", aria_label="Legend")
