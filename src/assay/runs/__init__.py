"""A run on disk: its directory, its checkpoint, its record and its privacy statement.

record = assay.runs.record_of("runs/mnist")
print(assay.runs.statement_of("runs/mnist"))
"""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.runs.reading import record_of, statement_of
    from assay.runs.totals import total

__all__ = ["record_of", "statement_of", "total"]

__getattr__ = lazy.exports(__name__, {"record_of": "reading", "statement_of": "reading", "total": "totals"})
