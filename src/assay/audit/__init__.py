"""The auditor: lower bounds on ε from attacks on a run, on one of its steps, or on somebody's scores.

An audited ε above the verified one is a bug, or suspect where it rests on an assumption that may not hold. Above the
claimed one it refutes the claim.

    assay.audit.of_run("runs/mnist")            # one step of a run, seconds
    assay.audit.of_method("gredp", variant="published")
"""

from typing import TYPE_CHECKING

from assay._util import lazy
from assay.audit.result import Audit, Verdict, sentence, verdict

if TYPE_CHECKING:
    from assay.audit.by_name import Audited, of_every_method, of_method, of_run
    from assay.audit.estimates import Estimate, estimate
    from assay.audit.scores import from_scores

__all__ = [
    "Audit",
    "Audited",
    "Estimate",
    "Verdict",
    "estimate",
    "from_scores",
    "of_every_method",
    "of_method",
    "of_run",
    "sentence",
    "verdict",
]

__getattr__ = lazy.exports(
    __name__,
    {
        "Audited": "by_name",
        "Estimate": "estimates",
        "estimate": "estimates",
        "from_scores": "scores",
        "of_every_method": "by_name",
        "of_method": "by_name",
        "of_run": "by_name",
    },
)
