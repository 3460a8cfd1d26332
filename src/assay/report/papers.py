"""One page about a folder of experiments: every table of every paper, theirs and ours side by side.

It comes from the results beside the TOMLs. Nothing is run, and the same results give the same page. Where the folder
has a prices.json (`python experiments/prices.py`), the page says what the missing runs would cost.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from assay.errors import AssayError, ConfigError
from assay.report.charts import Axis, Point, Series, legend, plot
from assay.report.curves import accuracy_axis
from assay.report.elements import badge, figure, num, section, table
from assay.report.groups import Tone
from assay.report.html import Html, join, tag
from assay.report.page import fill
from assay.studies import results, summary, tables
from assay.studies.columns import columns, number_in
from assay.studies.results import Results
from assay.studies.summary import Cell
from assay.studies.summary import Measured as OneRun
from assay.studies.tables import SCALES, Figure, Table

_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?")
Measured = tuple[Table, Results]


def render(where: Path) -> str:
    """The page.

    Args:
        where: The folder of experiments.

    Returns:
        HTML.

    Raises:
        ConfigError: No table has results.
    """
    names = tables.names(where)
    papers = list(dict.fromkeys(name.partition("/")[0] for name in names))
    found = {paper: list(_measured(where, [n for n in names if n.startswith(f"{paper}/")])) for paper in papers}
    if not any(found.values()):
        raise ConfigError("directory", str(where), "a folder of experiments with results; `assay reproduce` makes them")
    missing = [n for n in names if not any(t.name == n for t, _ in found[n.partition("/")[0]])]
    left = _prices(where)
    body = join(
        _overview(found, [f"{name} ({left[name]})" if name in left else name for name in missing]),
        [_paper(where, paper, measured, left) for paper, measured in found.items() if measured],
    )
    return fill("Papers, measured again", body)


def _prices(where: Path) -> Mapping[str, str]:
    """What the runs that a table lacks would cost, in words, by table."""
    path = where / "prices.json"
    if not path.exists():
        return {}
    try:
        left = json.loads(path.read_text(encoding="utf-8"))["left"]
        return {name: f"{of['runs']} runs, {_hours(of['hours'])} CPU-hours" for name, of in left.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise AssayError(f"{path} is damaged: {error!r}") from error


def _hours(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _measured(where: Path, names: Sequence[str]) -> Iterator[Measured]:
    """The tables with results: the paper's settings, or else reduced ones."""
    for name in names:
        for scale in SCALES:
            if (where / f"{name}{'' if scale == 'full' else f'.{scale}'}.json").exists():
                asked = tables.read(where, name, scale)
                yield asked, results.read(asked)
                break


def _overview(found: dict[str, list[Measured]], missing: Sequence[str]) -> Html:
    rows = []
    for paper, measured in found.items():
        cells = [cell for t, r in measured for cell in summary.cells(r.runs, list(t.grid.cells())) if cell.runs]
        broken = sum(_exceeds(t, cell) for t, r in measured for cell in summary.cells(r.runs, list(t.grid.cells())))
        reduced = sum(bool(r.reduced) for _, r in measured)
        rows.append(
            tag(
                "tr",
                tag("th", tag("a", paper, href=f"#{paper}") if measured else paper, scope="row"),
                num(len(measured)),
                num(reduced),
                num(len(cells)),
                num(sum(len(cell.runs) for cell in cells)),
                num(broken),
            )
        )
    heads = [
        ("paper", False),
        ("tables measured", True),
        ("of these reduced", True),
        ("settings", True),
        ("runs", True),
        ("settings that spend more than they claim, as we read them", True),
    ]
    words = tag(
        "p",
        tag("b", "Claimed"),
        " is what the paper would report for a setting, ",
        tag("b", "verified"),
        " what follows from the noise, clipping and sampling really done (an upper bound), ",
        tag("b", "audited"),
        " what an attack could show (a lower bound). The papers report at the claimed ε. All of this rests on how we "
        "read a paper: the README in its folder has the other readings, and what an author could reply.",
        class_="hint",
    )
    left = tag("p", "Not measured: ", ", ".join(missing), ".", class_="hint") if missing else None
    return section("overview", "Overview", words, table("Tables of each paper", heads, rows), left)


def _exceeds(asked: Table, cell: Cell) -> bool:
    """Whether a setting stands by its claim, and its verified ε is above it. Sound forms stand by the verified one."""
    if (
        cell.claimed is None
        or cell.verified is None
        or asked.grid.settings(cell.labels).get("variant") in {None, "sound"}
    ):
        return False
    return cell.verified > cell.claimed * (1 + 1e-9)


def _paper(where: Path, paper: str, measured: Sequence[Measured], left: Mapping[str, str]) -> Html:
    readme = where / paper / "README.md"
    first = readme.read_text(encoding="utf-8").partition("\n")[0] if readme.exists() else paper
    return section(paper, first.lstrip("# ").strip(), [_table(where, *one, left) for one in measured])


def _table(where: Path, asked: Table, found: Results, left: Mapping[str, str]) -> Html:
    cells = summary.cells(found.runs, list(asked.grid.cells()))
    broken = [cell for cell in cells if _exceeds(asked, cell)]
    done = sum(bool(cell.runs) for cell in cells)
    seeds = sorted({run.seed for run in found.runs})
    reduced = tag("p", badge(Tone.NOTE, "reduced"), " ", "; ".join(found.reduced), ".") if found.reduced else None
    spent = (
        tag(
            "p",
            badge(Tone.BAD, "more than is claimed"),
            f" As read here, {len(broken)} of {done} measured settings spend more.",
        )
        if broken
        else None
    )
    made = tag(
        "p",
        [[", " if i else None, tag("code", command)] for i, command in enumerate(results.commands(asked, found))],
        f". Measured: {found.date or 'date not kept'}. {results.commits(found).replace('`', '')}. "
        f"Machine: {found.machine}. {results.cost(found)}. "
        f"Seeds: {', '.join(map(str, seeds))}. Accuracy is mean ± standard deviation over seeds.",
        class_="hint",
    )
    return tag(
        "div",
        tag("h3", found.title),
        reduced,
        spent,
        tag("p", _with_code(asked.note.strip())) if asked.note else None,
        _drawing(asked, cells),
        _rows(asked, found, cells),
        [_picture(where / asked.name, name, caption) for name, caption in asked.pictures.items()],
        made,
        tag("p", f"Not measured: {left[asked.name]}.", class_="hint") if asked.name in left else None,
        class_="panel",
    )


def _with_code(note: str) -> list[str | Html]:
    """A note, with code between its backticks."""
    return [tag("code", part) if i % 2 else part for i, part in enumerate(note.split("`"))]


def _rows(asked: Table, found: Results, cells: Sequence[Cell]) -> Html:
    shown = columns(asked, found.runs)
    heads = [*((axis, False) for axis in asked.grid.axes), *((column.title, True) for column in shown)]
    rows = []
    for cell in cells:
        first, *others = cell.labels
        rows.append(
            tag(
                "tr",
                tag("th", first, scope="row"),
                [tag("td", label, class_="text") for label in others],
                [num(column.value(cell), column.text(cell)) for column in shown],
            )
        )
    return table(f"{asked.name}: ours{' and the paper’s' if asked.theirs else ''}", heads, rows)


def _drawing(asked: Table, cells: Sequence[Cell]) -> Html | None:
    """The paper's figure: a panel for each combination of labels of the axes that are neither x nor series."""
    how = asked.figure
    if how is None:
        return None
    axes = list(asked.grid.axes)
    rest = [i for i, axis in enumerate(axes) if axis not in (how.x, how.series)]
    panels: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        panels.setdefault(tuple(cell.labels[i] for i in rest), []).append(cell)
    styles = {label: i for i, label in enumerate(asked.grid.axes[how.series])}
    made, shown = [], []
    scored = "validation" if asked.grid.shared.get("validation") else "test"
    for (labels, members), drawn in itertools.product(panels.items(), how.y):
        lines = _lines(asked, how, members, styles, drawn)
        name = ", ".join(f"{axes[i]} {label}" for i, label in zip(rest, labels, strict=True))
        y = accuracy_axis(scored) if drawn == "accuracy" else Axis(label=drawn.replace("test", scored), log=True)
        x = Axis(label=how.x.removesuffix("s"), from_zero=True) if how.over_time else Axis(label=how.x, log=how.log)
        caption = [f"{name}."] if name else []
        if not how.over_time:
            caption.append("Bars are ± one standard deviation over seeds.")
        if any(line.hollow for line in lines):
            caption.append(f"Hollow marks are the paper's{' final numbers' if how.over_time else ''}.")
        chart = plot(f"{drawn.capitalize()} against {how.x}: {name or asked.title}", lines, x, y)
        made.append(figure(chart, " ".join(caption)))
        shown += lines
    return tag("div", legend(shown), tag("div", made, class_="figures")) if shown else None


def _lines(asked: Table, how: Figure, cells: Sequence[Cell], styles: dict[str, int], drawn: str) -> list[Series]:
    axes = list(asked.grid.axes)
    ours: dict[str, list[Point]] = {}
    theirs: dict[str, list[Point]] = {}
    for cell in cells:
        label = cell.labels[axes.index(how.series)]
        if how.over_time:
            drawn_here = _over_epochs(cell, drawn)
            at = drawn_here[-1].x if drawn_here and drawn == "accuracy" else None  # where the run ends
        else:
            drawn_here = _at_label(cell, cell.labels[axes.index(how.x)])
            at = _number(cell.labels[axes.index(how.x)])
        ours.setdefault(label, []).extend(drawn_here)
        theirs.setdefault(label, []).extend(_reported(cell, at, asked.reported(cell.labels)))
    both = [(label, points, False) for label, points in ours.items()]
    both += [(f"{label}, paper", points, True) for label, points in theirs.items()]
    return [
        Series(
            label=label,
            style=styles[label.removesuffix(", paper") if paper else label],
            method=label,
            points=sorted(points, key=lambda point: point.x),
            hollow=paper,
            marks=paper or not how.over_time,
        )
        for label, points, paper in both
        if points
    ]


def _number(label: str) -> float | None:
    found = _NUMBER.search(label)
    return None if found is None else float(found.group())


def _reported(cell: Cell, at: float | None, value: str) -> list[Point]:
    reported = number_in(value)
    if at is None or reported is None or not cell.runs:
        return []
    return [Point(x=at, y=reported / 100, tip=f"{', '.join(cell.labels)}: {value} % in the paper")]


def _at_label(cell: Cell, label: str) -> list[Point]:
    values = [run.test_accuracy for run in cell.runs if run.test_accuracy is not None]
    at = _number(label)
    if not values or at is None:
        return []
    mean, spread = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None
    return [
        Point(
            x=at,
            y=mean,
            low=None if spread is None else mean - spread,
            high=None if spread is None else mean + spread,
            tip=f"{', '.join(cell.labels)}: {cell.accuracy} %",
        )
    ]


def _over_epochs(cell: Cell, drawn: str) -> list[Point]:
    """The mean over the seeds at the epochs that all of them have."""
    curves = [curve for run in cell.runs if (curve := _curve(run, drawn))]
    common = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    means = {epoch: statistics.mean(curve[epoch] for curve in curves) for epoch in common}
    name = ", ".join(cell.labels)
    said = {epoch: f"{100 * y:.2f} %" if drawn == "accuracy" else f"{y:.4g}" for epoch, y in means.items()}
    return [Point(x=epoch, y=y, tip=f"{name}: {said[epoch]} after {epoch:g}") for epoch, y in means.items()]


def _curve(run: OneRun, drawn: str) -> dict[float, float]:
    """What a run has of this, by epoch."""
    if drawn == "accuracy":
        return dict(run.history)
    at = 1 if drawn == "training loss" else 2
    return {entry[0]: value for entry in run.losses if (value := entry[at]) is not None}


def _picture(stem: Path, name: str, caption: str) -> Html:
    path = stem.with_name(name)
    try:
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise AssayError(f"{stem}.toml names the picture {path}, which cannot be read: {error}") from error
    return tag("figure", tag("img", src=f"data:image/png;base64,{data}", alt=caption), tag("figcaption", caption))
