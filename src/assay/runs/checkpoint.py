"""Checkpoints: one safetensors file, tensors plus JSON, no pickle; a crash while writing leaves the previous one.

What is stored is released already (parameters, optimizer state, averages) or was never sensitive (the step's number).
The state of a random generator is never stored: whoever had it could subtract the noise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from assay._util.files import replace_file
from assay.errors import AssayError

SCHEMA = "assay.checkpoint/1"


def save(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write a checkpoint whole."""
    kept = {name: t.detach().to("cpu").contiguous().clone() for name, t in tensors.items()}
    metadata = {"schema": SCHEMA, "state": json.dumps(state, allow_nan=False)}
    replace_file(path, lambda part: save_file(kept, part, metadata=metadata))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint."""
    return _read(path, tensors=True)


def state(path: Path) -> dict[str, Any]:
    """A checkpoint without its tensors: step, history and the like."""
    return _read(path, tensors=False)[1]


def _read(path: Path, *, tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()} if tensors else {}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise AssayError(f"the checkpoint {path} cannot be read: {error}") from error
    if metadata.get("schema") != SCHEMA:
        raise AssayError(
            f"{path} is not a checkpoint of this version of Assay (schema {metadata.get('schema')!r}, expected {SCHEMA!r})"
        )
    return found, json.loads(metadata["state"])


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
    """Put back what `optimizer_state` gave; `split(parameter, value)` gives what a parameter is kept with."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Any]] = {int(i): dict(entry) for i, entry in plain["state"].items()}
    for name, value in tensors.items():
        head, _, rest = name.partition(".")
        if head == "optimizer":
            index, _, key = rest.partition(".")
            state.setdefault(int(index), {})[key] = split(parameters[int(index)], value)
    optimizer.load_state_dict({"state": state, "param_groups": plain["groups"]})
