"""An audit's result goes into the record and the statement of the run that was audited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.files import replace_json, replace_text
from assay.runs.directory import RunDirectory
from assay.runs.record import number


def write_audit(directory: RunDirectory, audit: dict[str, Any], statement: Callable[[dict[str, Any]], str]) -> None:
    """Put `audit` (with `epsilon`, `confidence`, `verdict` and `sentence`) into a finished run's record, and the record's `statement` beside it.

    A later audit takes the place of an earlier one: the largest of several lower bounds would not have their confidence.
    """
    record = directory.read_record()
    record["epsilon"]["audited"] = number(float(audit["epsilon"]))
    record["audit"] = audit
    replace_text(directory.statement, statement(record))
    replace_json(directory.record, record)
