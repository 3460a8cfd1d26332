"""The results of attacks on a run, kept beside it on request: `attacks.json`.

They are computed from the members' records without noise: no ε covers them, and whoever passes the run on leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay._util import seals
from assay._util.files import replace_json
from assay.runs import schema
from assay.runs.directory import RunDirectory

SCHEMA = "assay.attacks/2"
_SCHEMAS = {SCHEMA: True, "assay.attacks/1": False}  # of the first version, without a digest


def write_attacks(directory: RunDirectory, results: Sequence[Mapping[str, Any]]) -> None:
    """Keep results (`AttackResult.to_json`); a later attack takes the place of an earlier one of its name.

    Only the owner may read them, as the model beside them.
    """
    with directory.alone():
        named = {result["attack"]: dict(result) for result in [*read_attacks(directory), *results]}
        kept = seals.sealed({"schema": SCHEMA, "attacks": list(named.values())})
        replace_json(directory.path / "attacks.json", kept, private=True)


def read_attacks(directory: RunDirectory) -> list[dict[str, Any]]:
    """What was kept; nothing if nothing was."""
    path = directory.path / "attacks.json"
    if not path.exists():
        return []
    data = schema.read(path, _SCHEMAS)
    schema.check(path, data, schema.ATTACKS)
    return list(data["attacks"])
