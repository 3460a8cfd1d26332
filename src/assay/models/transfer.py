"""Starting from public weights: load a checkpoint, and train only the last layers.

Weights trained on public data cost nothing. Weights trained on private records cost what that training cost, which is
not known here. The statement names the file and its SHA-256, and says that we take it as public.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
import zipfile
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor, nn

from assay.data.locate import places
from assay.errors import ConfigError, DataError
from assay.models.compat import layer_path, trainable_layers
from assay.models.inputs import adapt_as
from assay.models.torchvision import adopt, is_torchvision


def load_initial(model: nn.Module, init: Path, sha256: str | None = None) -> tuple[str, list[str]]:
    """Load the model's initial weights.

    A checkpoint is a safetensors file, or a torch state dict without code. Parameters of the last layer may differ in
    shape (another number of classes); these keep their random start. A state dict may be under `state_dict` or `model`,
    as training scripts leave it, and its names may begin with `module.`, as data parallelism leaves them. If the
    checkpoint's model subtracted a mean from its inputs or scaled them (`assay.models.inputs`), this model does so from
    now on. A checkpoint of torchvision's ResNet-18 turns `resnet18` into that network (`assay.models.torchvision`).

    Args:
        model: the model, changed in place.
        init: the checkpoint.
        sha256: the SHA-256 of the file that a resumed run began with.

    Returns:
        The SHA-256 of the bytes that were loaded, and the names of the parameters that keep their random start.

    Raises:
        ConfigError: the checkpoint does not fit or has another SHA-256.
    """
    content = _content(init)
    digest = hashlib.sha256(content).hexdigest()
    if sha256 is not None and digest != sha256:
        raise _refusal(init, f"the file that the run began with, SHA-256 {sha256}; this one's is {digest}")
    return digest, _load(model, init, content)


def _load(model: nn.Module, path: Path, content: bytes) -> list[str]:
    theirs = _unprefixed(_tensors(path, content), model)
    if is_torchvision(theirs) and not is_torchvision(model.state_dict()):
        theirs = adopt(model, theirs)
    adapt_as(model, {name: t for name, t in theirs.items() if name not in model.state_dict()})
    ours = dict(model.state_dict())
    head = trainable_layers(model)[-1]
    fresh = [n for n, t in ours.items() if layer_path(n) == head and (n not in theirs or theirs[n].shape != t.shape)]
    provided = [n for n in ours if n not in fresh]
    wrong = [reason for n in provided if (reason := _mismatch(n, theirs.get(n), ours[n]))]
    wrong += [f"{n} is not in the model" for n in theirs if n not in ours and layer_path(n) != head]
    if wrong:
        raise _refusal(path, f"a checkpoint of this model: {_first(wrong, '; ')}")
    tensors = {n: theirs[n].to(ours[n].dtype) for n in provided}
    broken = [n for n, t in tensors.items() if not t.isfinite().all()]
    if broken:
        raise _refusal(path, f"finite numbers: {_first(broken, ', ')} has NaN or infinity in {ours[broken[0]].dtype}")
    model.load_state_dict({**ours, **tensors})
    return fresh


def _mismatch(name: str, theirs: Tensor | None, ours: Tensor) -> str | None:
    """Why a tensor of the checkpoint cannot be the model's, in words."""
    if theirs is None:
        return f"{name} is missing there"
    if theirs.shape != ours.shape:
        return f"{name} has shape {tuple(theirs.shape)} there and {tuple(ours.shape)} in the model"
    if theirs.is_floating_point() != ours.is_floating_point() or theirs.is_complex() != ours.is_complex():
        return f"{name} is {theirs.dtype} there and {ours.dtype} in the model"
    return None


def _first(texts: list[str], separator: str) -> str:
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    return separator.join(texts[:3]) + more


def _unprefixed(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The names without the `module.` that data parallelism adds, unless the model has such names itself."""
    prefix = "module."
    if not all(n.startswith(prefix) for n in tensors) or any(n.startswith(prefix) for n in model.state_dict()):
        return tensors
    return {n.removeprefix(prefix): t for n, t in tensors.items()}


def located(path: Path, data_dir: Path | None) -> Path:
    """The checkpoint at `path`: a file, or one of that name in a data directory.

    Raises:
        DataError: there is none.
    """
    if path.is_file():
        return path
    folders = [place.path for place in places(data_dir) if place.path is not None]
    for folder in folders:
        if (folder / path).is_file():
            return folder / path
    raise DataError(
        f"there is no checkpoint {path}, neither here nor in a data directory ({', '.join(map(str, folders))}): "
        "give its path to --init, or put it into one of these"
    )


def train_only(model: nn.Module, layers: str) -> None:
    """Freeze all but the last K layers of the model.

    Args:
        model: the model, changed in place.
        layers: "last:K", or "all" to freeze nothing.

    Raises:
        ConfigError: `layers` is neither, or K exceeds the number of trainable layers.
    """
    if layers == "all":
        return
    kind, _, count = layers.partition(":")
    trainable = trainable_layers(model)
    if kind != "last" or not count.isdigit() or not 1 <= int(count) <= len(trainable):
        accepted = f"all, or last:K with K from 1 to {len(trainable)}, the layers of the model"
        raise ConfigError("train_layers", layers, accepted)
    kept = set(trainable[-int(count) :])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and layer_path(name) in kept)


def _refusal(path: Path, accepted: str) -> ConfigError:
    return ConfigError("init", str(path), accepted)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _refusal(path, f"a file that can be read: {error.strerror}") from error


def _tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name. No code in it runs, and torch's advice to run it is not passed on."""
    if not content:
        raise _refusal(path, "a checkpoint; this file is empty")
    try:
        if path.suffix == ".safetensors":
            return load(content)
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # the readers fail in many ways on other files
        if isinstance(error, pickle.UnpicklingError) and _is_pickle(content):
            raise _refusal(
                path,
                "tensors only; this pickle holds code or other objects and is not loaded: "
                "save its weights as safetensors or as a plain state dict",
            ) from None
        kind = "safetensors file" if path.suffix == ".safetensors" else "torch state dict"
        raise _refusal(path, f"a {kind}; this file is truncated, damaged or of another kind") from None
    for wrapper in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict) or not all(isinstance(n, str) and _is_plain(t) for n, t in loaded.items()):
        raise _refusal(path, "a state dict: a mapping of names to dense tensors")
    return loaded


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta


def _is_pickle(content: bytes) -> bool:
    """Whether this is a pickle, by itself or in torch's zip archive. Nothing in it runs."""
    try:
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content = archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
        return any(opcode.name == "STOP" for opcode, _, _ in pickletools.genops(content))
    except Exception:  # other files fail in many ways
        return False
