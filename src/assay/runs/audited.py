"""An audit's result goes into the record and the statement of the run that was audited."""

from __future__ import annotations

from typing import Any

from assay.files import replace_json, replace_text
from assay.plan import Plan
from assay.privacy.statement import render
from assay.runs.directory import RunDirectory
from assay.runs.record import number
from assay.train import training_from_json


def write_audit(directory: RunDirectory, plan: Plan, audit: dict[str, Any]) -> None:
    """Put `audit` (with `epsilon`, `confidence`, `verdict` and `sentence`) into a finished run's record and statement.

    A later audit takes the place of an earlier one: the largest of several lower bounds would not have their confidence.
    """
    record = directory.read_record()
    record["epsilon"]["audited"] = number(float(audit["epsilon"]))
    record["audit"] = audit
    randomness = training_from_json(record["training"]).randomness().describe()
    replace_text(directory.statement, render(record, plan, randomness))
    replace_json(directory.record, record)
