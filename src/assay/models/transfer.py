"""Starting from public weights: a checkpoint's parameters, and training only the last layers.

Weights that were trained on public data cost nothing; weights that private records went into cost what that training cost, which
is not known here. The statement names the file and its SHA-256, and says that it is taken as public.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor, nn

from assay.data.locate import places
from assay.errors import ConfigError, DataError
from assay.models.inputs import adapt_as
from assay.models.layers import layer_path, trainable_layers
from assay.models.torchvision import adopted, is_torchvision


def begin(model: nn.Module, init: Path | None, layers: str, sha256: str | None = None) -> dict[str, Any]:
    """Give the model the weights it begins with (`load_weights`) and train only `layers` of it (`train_only`); returns what a run's names
    say of that.

    The SHA-256 in it is that of the bytes that were loaded. `sha256` is that of the file which a run began with: another content is refused.
    """
    digest, anew = None, []
    if init is not None:
        content = _content(init)
        digest = hashlib.sha256(content).hexdigest()
        if sha256 is not None and digest != sha256:
            raise _refused(init, f"the file that the run began with, SHA-256 {sha256}; this one's is {digest}")
        anew = _taken(model, init, content)
    train_only(model, layers)
    return {
        "init": None if init is None else str(init),
        "init_sha256": digest,
        "init_anew": anew,
        "train_layers": layers,
    }


def load_weights(model: nn.Module, path: Path) -> list[str]:
    """Take what the checkpoint (safetensors, or a torch state dict without code) has for the model; returns what it has not.

    Parameters of the last layer may differ in shape (another number of classes) and then begin anew; anything else that is missing, too
    much, of another shape or not finite is refused. A state dict may be under `state_dict` or `model`, and its names may begin with `module.`,
    as training scripts and data parallelism leave them. What the checkpoint's model did to its inputs first (`assay.models.inputs`: subtract their mean,
    scale them), the model does from now on: the weights were trained so. torchvision's ResNet-18 is a checkpoint of `resnet18`, whose stem and
    normalisation become that network's (`assay.models.torchvision`).
    """
    return _taken(model, path, _content(path))


def _taken(model: nn.Module, path: Path, content: bytes) -> list[str]:
    found = _unprefixed(_tensors(path, content), model)
    if is_torchvision(found) and not is_torchvision(model.state_dict()):
        found = adopted(model, found)
    adapt_as(model, {name: t for name, t in found.items() if name not in model.state_dict()})
    own = dict(model.state_dict())
    head = trainable_layers(model)[-1]
    fresh = [n for n, t in own.items() if layer_path(n) == head and (n not in found or found[n].shape != t.shape)]
    taken = [n for n in own if n not in fresh]
    wrong = [said for n in taken if (said := _unlike(n, found.get(n), own[n]))]
    wrong += [f"{n} is too much" for n in found if n not in own and layer_path(n) != head]
    if wrong:
        raise _refused(path, f"a checkpoint of this model: {_first(wrong, '; ')}")
    tensors = {n: found[n].to(own[n].dtype) for n in taken}
    broken = [n for n, t in tensors.items() if not t.isfinite().all()]
    if broken:
        raise _refused(path, f"finite numbers: {_first(broken, ', ')} has NaN or infinity in {own[broken[0]].dtype}")
    model.load_state_dict({**own, **tensors})
    return fresh


def _unlike(name: str, found: Tensor | None, own: Tensor) -> str | None:
    """What keeps a tensor of a checkpoint from being the model's, in words."""
    if found is None:
        return f"{name} is missing there"
    if found.shape != own.shape:
        return f"{name} has shape {tuple(found.shape)} there and {tuple(own.shape)} in the model"
    if found.is_floating_point() != own.is_floating_point() or found.is_complex() != own.is_complex():
        return f"{name} is {found.dtype} there and {own.dtype} in the model"
    return None


def _first(said: list[str], between: str) -> str:
    more = f" and {len(said) - 3} more" if len(said) > 3 else ""
    return between.join(said[:3]) + more


def _unprefixed(found: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The names without the `module.` that data parallelism puts before all of them, unless the model has such names itself."""
    prefix = "module."
    if not all(n.startswith(prefix) for n in found) or any(n.startswith(prefix) for n in model.state_dict()):
        return found
    return {n.removeprefix(prefix): t for n, t in found.items()}


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


def _refused(path: Path, accepted: str) -> ConfigError:
    return ConfigError("init", str(path), accepted)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _refused(path, f"a file that can be read: {error.strerror}") from error


def _tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name. No code in it is run, and torch's advice to run it is not passed on."""
    if not content:
        raise _refused(path, "a checkpoint; this file is empty")
    try:
        if path.suffix == ".safetensors":
            return load(content)
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a file that is no checkpoint makes the readers say
        if isinstance(error, pickle.UnpicklingError) and _is_pickle(content):
            raise _refused(
                path,
                "tensors only; this pickle holds code or other objects and is not loaded: save its weights as safetensors or as a plain state dict",
            ) from None
        kind = "safetensors file" if path.suffix == ".safetensors" else "torch state dict"
        raise _refused(path, f"a {kind}; this file is truncated, damaged or of another kind") from None
    for wrapper in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict) or not all(isinstance(n, str) and _is_plain(t) for n, t in loaded.items()):
        raise _refused(path, "a state dict: a mapping of names to dense tensors")
    return loaded


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta


def _is_pickle(content: bytes) -> bool:
    """Whether a file, or what torch keeps in a zip archive, is a pickle; nothing of it is run."""
    try:
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content = archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
        return any(opcode.name == "STOP" for opcode, _, _ in pickletools.genops(content))
    except Exception:  # what is no pickle fails in many ways
        return False
