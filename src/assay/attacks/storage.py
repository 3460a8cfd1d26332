"""The results of attacks on a run, kept beside it on request: `attacks.json`.

They are computed from the members' records without noise: no ε covers them, and whoever passes the run on leaves them out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from assay._util.files import replace_json
from assay.errors import AssayError
from assay.runs.directory import RunDirectory

SCHEMA = "assay.attacks/1"


def write_attacks(directory: RunDirectory, results: Sequence[Mapping[str, Any]]) -> None:
    """Keep results (`AttackResult.to_json`); a later attack takes the place of an earlier one of its name."""
    named = {result["attack"]: dict(result) for result in [*read_attacks(directory), *results]}
    replace_json(directory.path / "attacks.json", {"schema": SCHEMA, "attacks": list(named.values())})


def read_attacks(directory: RunDirectory) -> list[dict[str, Any]]:
    """What was kept; nothing if nothing was."""
    path = directory.path / "attacks.json"
    if not path.exists():
        return []
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise AssayError(f"{path} is damaged: {error}") from error
    if data.get("schema") != SCHEMA:
        raise AssayError(f"{path} has schema {data.get('schema')!r}; this version of Assay reads {SCHEMA!r}")
    return list(data["attacks"])
