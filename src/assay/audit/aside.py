"""Audits that trained on a run's records again: `audits.json`, for whoever holds the records.

Their figures are functions of the private records that no charge covers: the run's ε is about the run, and they come from another
training. So they are kept beside the run, and neither its record nor its statement has them. Those two say that there were such audits and,
if one of them found more than the verified ε, that it did, with the confidence that is left of all of them: an ε that does not hold must
not be passed on in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from assay._util.files import replace_json
from assay.audit.result import Verdict
from assay.audit.storage import together
from assay.errors import AssayError
from assay.federated.kinds import complete_record
from assay.runs.directory import RunDirectory
from assay.runs.statement import statement

SCHEMA = "assay.audits/1"
NOT_COVERED = "the figures come from training on the same records again: no ε covers them. They are for the holder of the records; do not publish them"
_ALARMS = (Verdict.BUG, Verdict.SUSPECT)  # worst first


def write_aside(directory: RunDirectory, audit: Mapping[str, Any]) -> None:
    """Keep an audit (with `epsilon`, `confidence`, `verdict` and `sentence`) in `audits.json`, and say in record and statement that there is one.

    Args:
        directory: A finished run's.
        audit: What was found, as JSON.
    """
    with directory.alone():
        record = complete_record(directory)
        audits = [*read_aside(directory), {**audit, "covered": False}]
        replace_json(directory.aside, {"schema": SCHEMA, "note": NOT_COVERED, "audits": audits}, private=True)
        found = {one["verdict"] for one in audits}
        alarm = next((verdict.value for verdict in _ALARMS if verdict.value in found), None)
        confidence = together(audits)["confidence"]
        record["audits_aside"] = {"count": len(audits), "alarm": alarm, "confidence": confidence}
        directory.write_record(record, statement(record))


def read_aside(directory: RunDirectory) -> list[dict[str, Any]]:
    """The audits that were kept aside, in order; none if there is no such file.

    Raises:
        AssayError: The file is damaged or of another version.
    """
    path = directory.aside
    if not path.exists():
        return []
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        schema, audits = data["schema"], [dict(audit) for audit in data["audits"]]
    except (ValueError, KeyError, TypeError) as error:
        raise AssayError(f"{path} is damaged: {error!r}") from error
    if schema != SCHEMA:
        raise AssayError(f"{path} has schema {schema!r}; this version of Assay reads {SCHEMA!r}")
    return audits
