"""The auditor: lower bounds on ε from attacks on a run, on one of its steps, or on somebody's scores.

An audited ε above the verified one is a bug (or suspect, where it rests on an assumption that may not hold); above the claimed one it refutes the claim.
"""

from assay.audit.result import Audit, Verdict, sentence, verdict
from assay.audit.scores import from_scores

__all__ = ["Audit", "Verdict", "from_scores", "sentence", "verdict"]
