"""The results of attacks on a run, kept beside it on request: `attacks.json`.

They come from the members' records without noise: no ε covers them. Leave them out when you pass the run on.
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
    """Write results (`AttackResult.to_json`) for the owner only. They replace earlier ones of the same name."""
    with directory.alone():
        named = {result["attack"]: dict(result) for result in [*read_attacks(directory), *results]}
        kept = seals.sealed({"schema": SCHEMA, "attacks": list(named.values())})
        replace_json(directory.path / "attacks.json", kept, private=True)


def read_attacks(directory: RunDirectory) -> list[dict[str, Any]]:
    """The results beside a run; none if there is no such file."""
    path = directory.path / "attacks.json"
    if not path.exists():
        return []
    data = schema.read(path, _SCHEMAS)
    schema.check(path, data, schema.ATTACKS)
    return list(data["attacks"])
