"""A run on disk: its directory, its checkpoint, its record and its privacy statement.

record = assay.runs.record_of("runs/mnist")
print(assay.runs.statement_of("runs/mnist"))
assay.runs.sign("runs/mnist", "officer.key")
assert assay.runs.verify("runs/mnist", key="officer.key.pub").holds
"""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.runs.checks import Check, Verification
    from assay.runs.reading import record_of, statement_of
    from assay.runs.signing import sign
    from assay.runs.totals import total
    from assay.runs.verification import verify

__all__ = ["Check", "Verification", "record_of", "sign", "statement_of", "total", "verify"]

__getattr__ = lazy.exports(
    __name__,
    {
        "Check": "checks",
        "Verification": "checks",
        "record_of": "reading",
        "sign": "signing",
        "statement_of": "reading",
        "total": "totals",
        "verify": "verification",
    },
)
