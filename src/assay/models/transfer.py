"""Starting from public weights: a checkpoint's parameters, and training only the last layers.

Weights that were trained on public data cost nothing; weights that private records went into cost what that training cost, which
is not known here. The statement says that the initial weights are taken as public.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from assay.errors import ConfigError, DataError
from assay.grads.layers import layer_path, trainable_layers


def load_weights(model: nn.Module, path: Path) -> list[str]:
    """Take what the checkpoint (safetensors, or a torch state dict without code) has for the model; returns what it has not.

    Parameters of the last layer may differ in shape (another number of classes) and then begin anew; anything else that is
    missing or of another shape is refused.
    """
    found = _read(path)
    own = dict(model.state_dict())
    head = trainable_layers(model)[-1]
    fresh = [n for n, t in own.items() if n not in found or found[n].shape != t.shape]
    wrong = [n for n in fresh if layer_path(n) != head]
    if wrong:
        raise ConfigError(
            "init",
            str(path),
            f"a checkpoint of this model; {', '.join(wrong[:3])} is missing there or of another shape",
        )
    model.load_state_dict({n: t if n in fresh else found[n].to(t.dtype) for n, t in own.items()})
    return fresh


def train_only(model: nn.Module, layers: str) -> None:
    """Freeze all but the last layers: `last:2`, or `all`."""
    if layers == "all":
        return
    kind, _, count = layers.partition(":")
    there = trainable_layers(model)
    if kind != "last" or not count.isdigit() or not 1 <= int(count) <= len(there):
        raise ConfigError(
            "train_layers", layers, f"all, or last:K with K from 1 to {len(there)}, the layers of the model"
        )
    kept = set(there[-int(count) :])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and layer_path(name) in kept)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError) as error:
        raise DataError(f"the checkpoint {path} cannot be read: {error}") from error
    except Exception as error:  # whatever a file that is no state dict makes the unpickler say
        raise DataError(f"{path} is no state dict of plain tensors: {error}") from error
    if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise DataError(f"{path} is no state dict: a mapping of names to tensors")
    return loaded
