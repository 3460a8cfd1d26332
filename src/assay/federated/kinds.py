"""The kinds of runs, by `kind` in run.json. `federated` is the first package that knows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from assay.errors import AssayError
from assay.federated import record as federated
from assay.federated.plan import FederatedPlan
from assay.methods.plan import Plan
from assay.runs.directory import RunDirectory
from assay.runs.record import Sentences
from assay.training import record as central


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is needed to read the directory of a kind of run.

    Attributes:
        name: Its name in run.json and record.json.
        steps: What its advances are called: "steps" or "rounds".
        planned: The key of the plan that holds their number.
        plan: Reads run.json's `plan`.
        sentences: Makes the statement's sentences that only the plan knows, from run.json.
    """

    name: str
    steps: str
    planned: str
    plan: Callable[[dict[str, Any]], Plan | FederatedPlan]
    sentences: Callable[[Mapping[str, Any]], Sentences]


_KINDS = {
    kind.name: kind
    for kind in (
        Kind(name=central.KIND, steps="steps", planned="steps", plan=Plan.from_json, sentences=central.sentences),
        Kind(
            name=federated.KIND,
            steps="rounds",
            planned="rounds",
            plan=FederatedPlan.from_json,
            sentences=federated.sentences,
        ),
    )
}


def kind_of(spec: Mapping[str, Any]) -> Kind:
    """The kind of a run.

    Args:
        spec: What run.json says. Earlier versions did not name the kind of a central run.

    Returns:
        Its kind.

    Raises:
        AssayError: This version does not know the kind.
    """
    name = spec.get("kind", central.KIND)
    if name not in _KINDS:
        raise AssayError(f"a run of kind {name!r}: this version of Assay knows {', '.join(_KINDS)}")
    return _KINDS[name]


def complete_record(directory: RunDirectory) -> dict[str, Any]:
    """The record of a finished run, with everything that its statement needs.

    Earlier versions did not store the sentences that only the plan knows: these come from run.json.

    Args:
        directory: The run's directory.

    Returns:
        The record.
    """
    record = directory.read_record()
    if "sentences" in record:
        return record
    spec = directory.read_spec()
    return {**record, "sentences": asdict(kind_of(spec).sentences(spec))}
