"""One self-contained HTML page about a run, a study or a tree of runs: `assay.report.write("runs")`."""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.report.writing import Written, write

__all__ = ["Written", "write"]

__getattr__ = lazy.exports(__name__, {"Written": "writing", "write": "writing"})
