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

from assay.data.locate import places
from assay.errors import ConfigError, DataError
from assay.grads.layers import layer_path, trainable_layers
from assay.models.torchvision import adopted, is_torchvision
from assay.stage import adapt_as


def load_weights(model: nn.Module, path: Path) -> list[str]:
    """Take what the checkpoint (safetensors, or a torch state dict without code) has for the model; returns what it has not.

    Parameters of the last layer may differ in shape (another number of classes) and then begin anew; anything else that is
    missing or of another shape is refused. What the checkpoint's model did to its inputs first (`assay.stage`: subtract their mean, scale
    them), the model does from now on: the weights were trained so. torchvision's ResNet-18 is a checkpoint of `resnet18`, whose stem and normalisation become
    that network's (`assay.models.torchvision`).
    """
    found = _read(path)
    foreign = is_torchvision(found) and not is_torchvision(model.state_dict())
    if foreign:
        found = adopted(model, found)
    adapt_as(model, {name: t for name, t in found.items() if name not in model.state_dict()})
    own = dict(model.state_dict())
    head = trainable_layers(model)[-1]
    fresh = [n for n, t in own.items() if n not in found or found[n].shape != t.shape]
    wrong = [n for n in fresh if layer_path(n) != head]
    if foreign:  # a deeper ResNet has all that this one has, and more
        wrong += [n for n in found if n not in own]
    if wrong:
        raise ConfigError(
            "init",
            str(path),
            f"a checkpoint of this model; {', '.join(wrong[:3])} is missing there, too much or of another shape",
        )
    model.load_state_dict({n: t if n in fresh else found[n].to(t.dtype) for n, t in own.items()})
    return fresh


def located(path: Path, data_dir: Path | None) -> Path:
    """The checkpoint that was named: a file, or one of that name in a data directory."""
    if path.is_file():
        return path
    folders = [place.path for place in places(data_dir) if place.path is not None]
    for folder in folders:
        if (folder / path).is_file():
            return folder / path
    raise DataError(
        f"there is no checkpoint {path}, neither here nor in a data directory ({', '.join(map(str, folders))}): give its path to --init, or "
        "put it into one of these"
    )


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
