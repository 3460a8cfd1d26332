"""Write a page, as `assay report` does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from assay._util.files import replace_text
from assay.errors import ConfigError
from assay.report import papers
from assay.report.collect import Collected, Collector
from assay.report.page import render
from assay.studies import tables


@dataclass(frozen=True, kw_only=True)
class Written:
    """A page, and the runs that it is about; None for an experiments folder."""

    path: Path
    found: Collected | None = field(default=None, repr=False)


def write(directory: Path | str, *, out: Path | str | None = None, uncovered: bool = False) -> Written:
    """Write one self-contained HTML page about a run, a study, a tree of runs or an experiments folder.

        assay.report.write("runs").path

    Args:
        directory: What the page is about.
        out: The page to write; None for `report.html` in the directory.
        uncovered: Also show attacks and audits that trained again. No ε covers them: such a page is for the holder of
            the records.

    Returns:
        Where the page is, and which runs were found.

    Raises:
        ConfigError: There are no runs below the directory, or `out` is a directory.
    """
    root, target = Path(directory), None if out is None else Path(out)
    if tables.names(root):
        return Written(path=_write(papers.render(root), root, target))
    found = Collector(root, uncovered).collect()
    if not (found.finished or found.unfinished or found.damaged or found.waiting):
        raise ConfigError("directory", str(directory), "a directory with runs in it; there are none below this one")
    return Written(path=_write(render(found), root, target), found=found)


def _write(page: str, directory: Path, out: Path | None) -> Path:
    target = out or directory / "report.html"
    if target.is_dir():
        raise ConfigError("out", str(target), "the name of a file; there is a directory of that name")
    replace_text(target, page)
    return target
