"""A node keeps to one plan, and its ledgers are in a folder that the server cannot name.

A server describes the site with every message. What decides ε must not change from message to message. So the node
writes the first description to `plan.json` beside the ledgers, before it answers, and refuses every other from then on.
Entries of the node's settings replace the server's before that. The node thus trusts the server once, and only with
what its settings leave out.

A folder belongs to one plan for good. Another plan needs another folder, which only the node's operator can name; the
ledgers of the first stay as they are. So nothing that a server sends can make what was spent look smaller.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from assay._util.files import create_json
from assay.errors import AssayError
from assay.federated.transport.names import LEDGERS_VARIABLE, SETTINGS_VARIABLE

PLAN_FILE: Final = "plan.json"
_SHOWN = 60  # characters of a value in an error


class PinError(AssayError):
    """The server asks for another plan than this node's, or the node's folder or plan is missing."""


def pin(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Decide what this node opens its site with, and keep to it.

    Args:
        asked: The server's description. One without a plan is for the node's own site (`ASSAY_FEDERATED_SITE`), and is
            not pinned.

    Returns:
        The description that the node keeps to, with its folder of ledgers.

    Raises:
        PinError: The server asks for another plan, or the node's folder is missing.
    """
    own, folder = _own()
    wanted = {name: value for name, value in asked.items() if name != "ledgers"}
    for name, value in own.items():
        both = isinstance(value, dict) and isinstance(wanted.get(name), dict)
        wanted[name] = wanted[name] | value if both else value
    if "plan" in wanted:
        wanted = _pin_plan(wanted, folder)
    return wanted | {"ledgers": str(folder)}


def _own() -> tuple[dict[str, Any], Path]:
    """The node's settings, and its folder: their `ledgers`, relative to their file, or the one it was started with."""
    own: dict[str, Any] = {}
    folder = os.environ.get(LEDGERS_VARIABLE)
    if settings := os.environ.get(SETTINGS_VARIABLE):
        own = json.loads(Path(settings).read_text())
        if "ledgers" in own:
            folder = str(Path(settings).parent / own.pop("ledgers"))
    if folder is None:
        raise PinError("this node has no folder for its ledgers: start it by assay federation join")
    # Not created here: on a disk that is not mounted, that would be a new folder with nothing spent.
    if not Path(folder).is_dir():
        raise PinError(
            f"{folder}, where this node keeps its ledgers, is not there: make it, if nothing was spent in it"
        )
    return own, Path(folder)


def _pin_plan(wanted: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The folder's plan. The first one is written durably before this returns; of two at the same time, one wins."""
    path = folder / PLAN_FILE
    spent = any(folder.glob("*.jsonl"))  # looked for before the plan, which is written before any ledger
    if not path.exists():
        if spent:
            raise PinError(f"{folder} has ledgers, and not the {PLAN_FILE} they were kept under: {_NEW_FOLDER}")
        create_json(path, wanted)
    kept: dict[str, Any] = json.loads(path.read_text())
    if differing := list(_differences(kept, wanted)):
        way = _NEW_FOLDER if spent else "remove that file: no ledger was begun under it"
        raise PinError(f"refused, since {path} says otherwise: {'; '.join(differing)}. For another plan {way}")
    return kept  # and not what was sent, which may be equal without being the same: 1 and true, for instance


_NEW_FOLDER = (
    'name an empty folder as "ledgers" in this node\'s --settings.'
    " What was spent here stays spent, and adds to what is spent there"
)


def _differences(kept: Mapping[str, Any], wanted: Mapping[str, Any], within: str = "") -> Iterator[str]:
    for name in sorted(kept.keys() | wanted.keys()):
        ours, theirs = kept.get(name), wanted.get(name)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _differences(ours, theirs, f"{within}{name}.")
        elif ours != theirs:
            yield f"{within}{name} is {_short(theirs)}, not {_short(ours)}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
