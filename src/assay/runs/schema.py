"""What a run's JSON files hold: how they are read, their shapes, and a check whose errors name the file and the field.

A shape is a type, a tuple of types, a list of one shape, or a mapping of field names to shapes. `NoneType` among the
types says that a value may be missing. A field whose name ends with "?" may be left out. Fields that a shape does not
name are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias

from assay._util import seals
from assay.errors import AssayError

Shape: TypeAlias = "type | tuple[type, ...] | list[Shape] | Mapping[str, Shape]"

CENTRAL, FEDERATED = "central", "federated"
"""The kinds of runs: `kind` in run.json and record.json. Earlier versions did not name the kind of a central run."""

SPEC_SCHEMA = "assay.run/2"
_SPECS = {SPEC_SCHEMA: True, "assay.run/1": False}
RECORD_SCHEMA, UNSEALED_RECORD = "assay.record/2", "assay.record/1"
_RECORDS = {RECORD_SCHEMA: True, UNSEALED_RECORD: False}

_NUMBER = (int, float)
_AMOUNT = (int, float, str)  # "inf" is a string
_MAYBE = (int, float, str, NoneType)
_TEXT = (str, NoneType)
_WHOLE = (int, NoneType)
_LIMIT = (int, float, NoneType)

_PLAN: Mapping[str, Shape] = {
    "records": int,
    "batch_size": _NUMBER,
    "steps": int,
    "noise_multiplier": _NUMBER,
    "delta": _NUMBER,
    "noise_schedule?": str,
    "clip": str,
    "micro_batch?": int,
    "center?": _TEXT,
    "columns?": _TEXT,
    "sampling?": str,
    "adjacency": str,
    "method": str,
    "options": dict,
    "encode": [str],
    "denoise": [str],
    "unit?": (dict, NoneType),
    "exact?": bool,
    "epsilon_limit?": _LIMIT,
    "epsilon_claimed?": _LIMIT,
}
_FEDERATED_PLAN: Mapping[str, Shape] = {
    "clients": int,
    "per_round": int,
    "rounds": int,
    "size": int,
    "noise_multiplier": _NUMBER,
    "delta": _NUMBER,
    "clip": _NUMBER,
    "unit": str,
    "noise": str,
    "minimum": _WHOLE,
    "public_seed": int,
    "silo": (dict, NoneType),
    "method": str,
    "options": dict,
    "epsilon_limit": _LIMIT,
    "epsilon_claimed": _LIMIT,
}
_NAMES: Mapping[str, Shape] = {
    "data?": str,
    "model?": str,
    "data_dir?": _TEXT,
    "features?": _TEXT,
    "circulant?": _WHOLE,
    "inputs?": {"record?": [int], "model?": [int], "outputs?": int},
    "validation_of?": _WHOLE,
    "init?": _TEXT,
    "init_sha256?": _TEXT,
    "log?": _TEXT,
    "operator?": _TEXT,
    "tuning?": (dict, NoneType),
    "target?": _TEXT,
    "schema?": (dict, NoneType),
    "task?": (dict, NoneType),
    "unit_column?": _TEXT,
}
_TRAINING: Mapping[str, Shape] = {"optimizer?": dict, "seed?": _WHOLE, "device?": str}
SPEC: Mapping[str, Shape] = {
    "made_by?": str,
    "plan": _PLAN,
    "training": _TRAINING,
    "names": _NAMES,
    "resume_with?": str,
    "token?": str,
    "budget?": (dict, NoneType),
}
"""`run.json` of `assay train`. Runs in somebody else's loop say in `resume_with` what continues them."""
FEDERATED_SPEC: Mapping[str, Shape] = {
    "made_by?": str,
    "plan": _FEDERATED_PLAN,
    "training": _TRAINING,
    "names": _NAMES,
    "engine": str,
    "reach": dict,
    "budget?": (dict, NoneType),
}
"""`run.json` of `assay federate`."""
RECORD: Mapping[str, Shape] = {
    "status": str,
    "method": str,
    "variant?": str,
    "options?": dict,
    "model?": str,
    "data": str,
    "unit?": str,
    "records?": int,
    "persons?": (dict, NoneType),
    "epsilon": {
        "target?": _MAYBE,
        "claimed?": _MAYBE,
        "verified": _AMOUNT,
        "audited?": _MAYBE,
        "delta": _NUMBER,
        "adjacency?": str,
        "accountant?": str,
        "curve?": [{"delta": _NUMBER, "epsilon": _AMOUNT}],
        "tradeoff?": {
            "mu": _MAYBE,
            "apart": _NUMBER,
            "error": _LIMIT,
            "rates": [{"false_positives": _NUMBER, "true_positives": _NUMBER}],
        },
        "groups?": [{"size": int, "epsilon": _AMOUNT}],
    },
    "parts?": [{"name": str, "verified": _AMOUNT}],
    "audit?": (dict, NoneType),
    "audits?": [{"epsilon": _AMOUNT, "confidence": _NUMBER, "verdict": str, "sentence": str}],
    "audits_aside?": (dict, NoneType),
    "noise_multiplier?": _NUMBER,
    "steps?": int,
    "steps_charged?": int,
    "history?": [dict],
    "result": {"test_accuracy": _LIMIT},
    "tuning?": (dict, NoneType),
    "date?": _TEXT,
    "operator?": _TEXT,
    "budget?": (dict, NoneType),
    "seed?": _WHOLE,
    "training?": dict,
    "environment?": dict,
    "timing?": (dict, NoneType),
    "files?": dict,
}
"""`record.json`: the fields of every version, and with "?" those that only some versions have."""
CHECKPOINT: Mapping[str, Shape] = {
    "step": int,
    "optimizer": {"state": dict, "groups": [dict]},
    "history": [{"epsilon": _AMOUNT, "test_accuracy": _LIMIT, "test_loss": _MAYBE}],
    "seconds": _NUMBER,
}
"""The state in a checkpoint of `assay train`; fields of single components are checked by those."""
FEDERATED_CHECKPOINT: Mapping[str, Shape] = {
    "round": int,
    "charged": int,
    "asked": [int],
    "history": [{"epsilon": _AMOUNT, "test_accuracy": _LIMIT, "test_loss": _LIMIT}],
    "bytes": {"up": int, "down": int},
    "refused_rounds": int,
    "seconds": _NUMBER,
}
"""The state in a checkpoint of `assay federate`."""
AUDITS: Mapping[str, Shape] = {
    "audits": [{"epsilon": _AMOUNT, "confidence": _NUMBER, "verdict": str, "sentence": str}],
}
"""`audits.json`."""
ATTACKS: Mapping[str, Shape] = {"attacks": [{"attack": str}]}
"""`attacks.json`."""


def spec_of(spec: Mapping[str, Any]) -> Mapping[str, Shape]:
    """The shape of this run.json."""
    return FEDERATED_SPEC if spec.get("kind") == FEDERATED else SPEC


def checkpoint_of(spec: Mapping[str, Any]) -> Mapping[str, Shape]:
    """The shape of the state in a checkpoint of this run."""
    return FEDERATED_CHECKPOINT if spec.get("kind") == FEDERATED else CHECKPOINT


def read(path: Path, schemas: Mapping[str, bool]) -> dict[str, Any]:
    """Read a JSON object of a known schema, and check its digest.

    Args:
        path: The file.
        schemas: The known schemas; True for those whose files have a digest.

    Returns:
        The object.

    Raises:
        AssayError: The file is damaged or of another version. Names the file and the field.
    """
    try:
        data = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise AssayError(f"{path} is damaged: {error}") from error
    if not isinstance(data, dict):
        raise AssayError(f"{path} is damaged: it holds {_said(data)}, not an object")
    schema = data.get("schema")
    if not isinstance(schema, str) or schema not in schemas:
        raise AssayError(f"{path} has schema {schema!r}; this version of Assay reads {', '.join(map(repr, schemas))}")
    if schemas[schema]:
        seals.check(path, data)
    elif seals.FIELD in data:
        raise AssayError(f"{path} is damaged: files of schema {schema} have no field {seals.FIELD}")
    return data


def read_spec(path: Path) -> dict[str, Any]:
    """Read a run.json.

    Raises:
        AssayError: It is damaged or of another version. Names the field.
    """
    spec = read(path, _SPECS)
    check(path, spec, spec_of(spec))
    return spec


def is_by_name(spec: Mapping[str, Any]) -> bool:
    """Whether model and data of a run have names, so that commands can load them: `assay train` made it, or `train`.

    A run that `assay.fit` made has a model and records that only its program knows, whatever `names` says of them.

    Args:
        spec: What run.json says; earlier versions did not note who made a run, but only commands noted `data_dir`.
    """
    made_by = spec.get("made_by")
    return "data_dir" in spec["names"] if made_by is None else bool(made_by == "names")


def read_record(path: Path) -> dict[str, Any]:
    """Read a record.json, wherever it was copied to.

    Args:
        path: The file.

    Returns:
        The record.

    Raises:
        AssayError: It is damaged, or not the record of a run. Names the field.
    """
    record = read(path, _RECORDS)
    check(path, record, RECORD)
    if record["schema"] == RECORD_SCHEMA and "files" not in record:
        raise AssayError(f"{path} is damaged: its field files is missing")
    return record


def check(path: Path, value: Any, shape: Shape, field: str = "") -> None:
    """Check the shape of a value.

    Raises:
        AssayError: It has another shape. Names the file and the field.
    """
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            raise _wrong(path, field, value, "an object")
        for key, inner in shape.items():
            name = key.removesuffix("?")
            where = f"{field}.{name}" if field else name
            if name in value:
                check(path, value[name], inner, where)
            elif name == key:
                raise AssayError(f"{path} is damaged: its field {where} is missing")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise _wrong(path, field, value, "a list")
        for i, item in enumerate(value):
            check(path, item, shape[0], f"{field}[{i}]")
    else:
        kinds = shape if isinstance(shape, tuple) else (shape,)
        if type(value) not in kinds:
            raise _wrong(path, field, value, " or ".join(_WORDS[kind] for kind in kinds))
        if kinds in (_AMOUNT, _MAYBE) and isinstance(value, str) and value != "inf":
            raise _wrong(path, field, value, 'a number or "inf"')


_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "an object",
    list: "a list",
    bool: "true or false",
    NoneType: "null",
}


def _wrong(path: Path, field: str, value: Any, accepted: str) -> AssayError:
    what = f"its field {field} is" if field else "it holds"
    return AssayError(f"{path} is damaged: {what} {_said(value)}, not {accepted}")


def _said(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")
