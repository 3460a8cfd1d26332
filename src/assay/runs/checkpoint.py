"""Checkpoints: one safetensors file, tensors plus JSON, no pickle; a crash while writing leaves the previous one.

What is stored is already released (parameters, optimizer state, averages) or was never sensitive (the step's number).
The state of a random generator is never stored: whoever had it could subtract the noise.

A checkpoint has a digest of its tensors, and one of that, of its state and of its run. Both are compared when it is
read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from assay._util import seals
from assay._util.files import replacing
from assay.errors import AssayError

SCHEMA = "assay.checkpoint/2"
UNSEALED = "assay.checkpoint/1"
"""The schema of checkpoints without digests: those of earlier versions."""


def save(path: Path, tensors: dict[str, Tensor], state: dict[str, Any], run: str | None = None) -> None:
    """Write a checkpoint whole.

    Args:
        path: The file.
        tensors: The tensors.
        state: What is stored beside them, as JSON.
        run: The digest of the `run.json` that it belongs to (`RunDirectory.digest`).
    """
    kept = {name: t.detach().to("cpu").contiguous().clone() for name, t in tensors.items()}
    said = {"run": run or "", "state": json.dumps(state, allow_nan=False), "tensors": _digest(kept)}
    metadata = {"schema": SCHEMA, **said, seals.FIELD: seals.of_text(*said.values())}
    with replacing(path) as temporary:
        save_file(kept, temporary, metadata=metadata)


def load(path: Path, run: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint.

    Args:
        path: The file.
        run: The digest of the `run.json` that it must belong to; None for any.

    Returns:
        The tensors and the state.

    Raises:
        AssayError: It is damaged, of another version, or of another run.
    """
    return _read(path, run, tensors=True)


def state(path: Path, run: str | None = None) -> dict[str, Any]:
    """A checkpoint without its tensors: step, history and the like."""
    return _read(path, run, tensors=False)[1]


def _read(path: Path, run: str | None, *, tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()} if tensors else {}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise AssayError(f"the checkpoint {path} cannot be read: {error}") from error
    schema = metadata.get("schema")
    if schema not in (SCHEMA, UNSEALED) or (schema == UNSEALED and run is not None):
        raise AssayError(
            f"{path} is not a checkpoint of this version of Assay (schema {schema!r}, expected {SCHEMA!r})"
        )
    if schema == SCHEMA:
        _check(path, metadata, run, stored if tensors else None)
    try:
        known = json.loads(metadata["state"])
    except (KeyError, ValueError) as error:
        raise AssayError(f"{path} is damaged: its field state cannot be read ({error!r})") from error
    if not isinstance(known, dict):
        raise AssayError(f"{path} is damaged: its field state is {known!r}, not an object")
    return stored, known


def _check(path: Path, metadata: dict[str, str], run: str | None, tensors: dict[str, Tensor] | None) -> None:
    for name in ("run", "state", "tensors", seals.FIELD):
        if name not in metadata:
            raise AssayError(f"{path} is damaged: its field {name} is missing")
    if metadata[seals.FIELD] != seals.of_text(*(metadata[name] for name in ("run", "state", "tensors"))):
        raise AssayError(f"{path} is damaged: its state is not what its field {seals.FIELD} was made of")
    if tensors is not None and metadata["tensors"] != _digest(tensors):
        raise AssayError(f"{path} is damaged: its tensors are not what its field tensors was made of")
    if run is not None and metadata["run"] != run:
        raise AssayError(f"{path} belongs to another run than the run.json beside it")


def _digest(tensors: dict[str, Tensor]) -> str:
    return seals.of_tensors(sorted(tensors.items()))


@contextlib.contextmanager
def fitting(path: Path | None) -> Iterator[None]:
    """Load a checkpoint into a model inside this context.

    Raises:
        AssayError: That fails: the checkpoint does not fit the model or the settings.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        where = "the checkpoint" if path is None else path
        raise AssayError(f"{where} is not one of this model and these settings: {error}") from error


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors and JSON."""
    whole = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for index, entry in whole["state"].items():
        for key, value in entry.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                plain.setdefault(str(index), {})[key] = value
    return tensors, {"state": plain, "groups": whole["param_groups"]}


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
    plain: dict[str, Any],
    split: Callable[[Tensor, Tensor], Tensor] = lambda _, whole: whole,
) -> None:
    """Load what `optimizer_state` gave; `split(parameter, value)` returns this rank's share of a value."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Any]] = {int(i): dict(entry) for i, entry in plain["state"].items()}
    for name, value in tensors.items():
        head, _, rest = name.partition(".")
        if head == "optimizer":
            index, _, key = rest.partition(".")
            state.setdefault(int(index), {})[key] = split(parameters[int(index)], value)
    optimizer.load_state_dict({"state": state, "param_groups": plain["groups"]})
