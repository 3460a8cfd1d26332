"""The audits of a finished run, in its record and its statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.audit.result import Verdict, sentence
from assay.federated.kinds import complete_record
from assay.runs.directory import RunDirectory
from assay.runs.record import number
from assay.runs.statement import statement

_WORST_LAST = (Verdict.CONSISTENT, Verdict.SUSPECT, Verdict.CLAIM_REFUTED, Verdict.BUG)


def write_audit(directory: RunDirectory, audit: dict[str, Any]) -> None:
    """Add an audit to a finished run's record, and rewrite its statement.

    All audits stay in `audits`, in order; `audit` is what they say together. Audits that end at the same time are added
    one after the other. Record and statement change together, whenever the process is killed.

    Args:
        directory: A finished run's.
        audit: The audit as JSON, with `epsilon`, `confidence`, `verdict` and `sentence`.
    """
    with directory.alone():
        record = complete_record(directory)
        before = record.get("audits", [] if record["audit"] is None else [record["audit"]])
        record["audits"] = [*before, audit]
        record["audit"] = together(record["audits"])
        record["epsilon"]["audited"] = number(float(record["audit"]["epsilon"]))
        directory.write_record(record, statement(record))


def together(audits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The strongest of several audits, with the confidence that it has as the strongest.

    It is wrong only if one of them is, so their error probabilities add up.
    """
    if len(audits) == 1:
        return audits[0]
    best = max(audits, key=lambda audit: (_WORST_LAST.index(Verdict(audit["verdict"])), float(audit["epsilon"])))
    confidence = max(0.0, round(1 - sum(1 - audit["confidence"] for audit in audits), 12))
    return best | {
        "confidence": confidence,
        "sentence": sentence(Verdict(best["verdict"]), float(best["epsilon"]), confidence),
        "how": f"{best['how']}; the strongest of {len(audits)} audits, which hold together with this confidence",
    }
