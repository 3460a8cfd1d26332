"""Audits that trained on a run's records again: `audits.json`, for whoever holds the records.

Their figures come from another training on the private records, and no charge covers them. So neither the record nor
the statement contains them. Both say that there were such audits. If one found more than the verified ε, they also say
that, with the confidence that all audits have together: an ε that does not hold must not be passed on in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay._util import seals
from assay._util.files import replace_json
from assay.audit.result import Verdict
from assay.audit.storage import together
from assay.errors import AssayError
from assay.federated.kinds import complete_record
from assay.runs import schema
from assay.runs.directory import RunDirectory
from assay.runs.statement import statement

SCHEMA = "assay.audits/2"
_SCHEMAS = {SCHEMA: True, "assay.audits/1": False}  # of the first version, without a digest
NOT_COVERED = (
    "the figures come from training on the same records again: no ε covers them."
    " They are for the holder of the records; do not publish them"
)
_ALARMS = (Verdict.BUG, Verdict.SUSPECT)  # worst first


def write_aside(directory: RunDirectory, audit: Mapping[str, Any]) -> None:
    """Write an audit to `audits.json`, and say in record and statement that there is one.

    Args:
        directory: A finished run's.
        audit: What was found, as JSON.

    Raises:
        AssayError: A file of the run is damaged, or audits that the record counts are missing.
    """
    with directory.alone():
        record = complete_record(directory)
        audits = [*read_aside(directory), {**audit, "covered": False}]
        known = (record.get("audits_aside") or {}).get("count", 0)
        if len(audits) <= known:  # what they found lowers the confidence of all that follow
            raise AssayError(f"{directory.aside} is damaged: {known} audits are recorded, and fewer are in it")
        content = seals.sealed({"schema": SCHEMA, "note": NOT_COVERED, "audits": audits})
        replace_json(directory.aside, content, private=True)
        verdicts = {one["verdict"] for one in audits}
        alarm = next((verdict.value for verdict in _ALARMS if verdict.value in verdicts), None)
        confidence = together(audits)["confidence"]
        record["audits_aside"] = {"count": len(audits), "alarm": alarm, "confidence": confidence}
        directory.write_record(record, statement(record))


def read_aside(directory: RunDirectory) -> list[dict[str, Any]]:
    """The audits in `audits.json`, in order.

    Args:
        directory: A finished run's.

    Returns:
        The audits; none if there is no such file.

    Raises:
        AssayError: The file is damaged or of another version.
    """
    path = directory.aside
    if not path.exists():
        return []
    data = schema.read(path, _SCHEMAS)
    schema.check(path, data, schema.AUDITS)
    return [dict(audit) for audit in data["audits"]]
