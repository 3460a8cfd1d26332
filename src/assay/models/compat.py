"""What private training needs to know of any model: its layers, and which of them mix records.

Per-record clipping bounds one record's influence on the sum only if the record's gradient depends on no other record.
BatchNorm in training mode breaks that, and its running statistics leave the training without noise. It can be replaced
by a layer that does not mix records.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase

from assay.errors import ConfigError, UnsupportedModelError
from assay.models.norm import FrozenBatchNorm, group_count

Choice = Literal["group", "layer", "instance", "frozen"]
_CHOICES = ("group", "layer", "instance", "frozen")
_FIX = (
    'before building the optimizer: model, changes = assay.models.compat.replace_batchnorm(model, "group")'
    ' (or "layer", "instance", "frozen", or a function of the layer)'
)
_TORCH_BATCHNORMS = frozenset(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"))
_TORCH_INSTANCENORMS = frozenset(("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "_InstanceNorm"))
# Layers of other packages that use statistics of the batch and do not derive from torch's BatchNorm.
_FOREIGN_MIXERS = frozenset(
    (
        "ABN",
        "InPlaceABN",
        "InPlaceABNSync",
        "BatchRenorm",
        "BatchRenorm1d",
        "BatchRenorm2d",
        "BatchRenorm3d",
        "GhostBatchNorm",
        "VirtualBatchNorm",
        "MinibatchDiscrimination",
        "MinibatchStdDev",
        "MinibatchStdLayer",
    )
)
_STATISTICS = _TORCH_BATCHNORMS | _FOREIGN_MIXERS
# On [B, C] GroupNorm normalises over a group's channels alone. One channel would give a constant, two channels a sign.
# Sixteen is also the group size of Wu and He, "Group Normalization", ECCV 2018, arXiv:1803.08494.
_SMALLEST_GROUP_WITHOUT_MAP = 16


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """One layer that `replace_batchnorm` exchanged: where it is, what it was, what it is now."""

    path: str
    old: str
    new: str
    note: str = ""

    def __str__(self) -> str:
        line = f"{_where(self.path)}: {self.old} → {self.new}"
        return f"{line}; {self.note}" if self.note else line


def replace_batchnorm(
    model: nn.Module, with_: Choice | Callable[[_BatchNorm], nn.Module]
) -> tuple[nn.Module, list[Replacement]]:
    """Copy `model` and replace every BatchNorm in the copy. `model` itself does not change.

    The choices for `with_`:

    - `"group"`: GroupNorm, at most 32 groups of at least 4 channels (16 where a layer may see [B, C]).
    - `"layer"`: GroupNorm with one group, that is, layer normalisation over channels and positions.
    - `"instance"`: InstanceNorm. Refused for BatchNorm1d and SyncBatchNorm, which may see [B, C]. torch's
      InstanceNorm with weights cannot be called on a batch of zero records.
    - `"frozen"`: the running statistics become constants (`FrozenBatchNorm`). They are released with the model,
      without noise, so they must come from public data. Each such change says so.
    - a function from the old layer to the new one. If it returns the old layer, that layer stays.

    The four named choices take over the weight and bias of the old layer, with dtype, device, requires_grad and
    tying to other layers, and its train/eval flag. The layer that a function returns is moved to the old layer's
    device and dtype. The copy has new parameters, so build the optimizer afterwards.

    Args:
        model: the model to copy.
        with_: "group", "layer", "instance", "frozen", or a function.

    Returns:
        The copy, and the list of layers that were replaced.

    Raises:
        ConfigError: `with_` is none of these, or the function returns no `nn.Module`.
        UnsupportedModelError: a layer cannot be replaced in this way; the error names it and says what to do.

    Example:
        >>> model, changes = replace_batchnorm(nn.Sequential(nn.BatchNorm2d(8)), "group")
        >>> type(model[0]).__name__
        'GroupNorm'
    """
    if not callable(with_) and with_ not in _CHOICES:
        raise ConfigError("with_", with_, f"one of {', '.join(_CHOICES)}, or a function of the layer")
    _refuse_lazy(model)
    model = copy.deepcopy(model)
    made: dict[int, nn.Module] = {}  # a layer used in two places stays one layer
    changes: list[Replacement] = []
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, _BatchNorm):
            continue
        if id(module) not in made:
            made[id(module)] = _custom(path, module, with_) if callable(with_) else _named(path, module, with_)
        new = made[id(module)]
        if new is module:
            continue
        changes.append(Replacement(path=path, old=repr(module), new=_one_line(new), note=_note(new)))
        if path:
            model.set_submodule(path, new)
        else:
            model = new
    return model, changes


def problems(model: nn.Module) -> list[str]:
    """One line for each layer of `model` that would mix records: path, type, reason and fix.

    This judges by class and by mode (train or eval), so first put the model into the mode it will be trained in.
    BatchNorm in eval mode uses constants and is accepted. A call to `F.batch_norm` inside a `forward` is not seen.

    >>> problems(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    []
    """
    return [f"{found.what}; {found.fix}" for found in _findings(model)]


def check(model: nn.Module) -> None:
    """Refuse a model with layers that would mix records. See `problems`.

    Raises:
        UnsupportedModelError: names every such layer and the fix.
    """
    found = _findings(model)
    if not found:
        return
    lines = ["the model mixes records, so no bound on one record's influence would hold:"]
    lines += [f"  {finding.what}" for finding in found]
    lines += [f"fix: {fix}" for fix in dict.fromkeys(finding.fix for finding in found)]
    raise UnsupportedModelError("\n".join(lines))


def constant_in_eval(model: nn.Module) -> list[nn.Module]:
    """The layers that keep records apart only in eval mode: in train mode they use statistics of the records."""
    return [m for m in model.modules() if _names(m) & (_STATISTICS | _TORCH_INSTANCENORMS) or isinstance(m, _BatchNorm)]


def compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` was applied to the model or to one of its modules."""
    return any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None for m in model.modules())


@dataclass(frozen=True)
class _Finding:
    what: str
    fix: str


def _findings(model: nn.Module) -> list[_Finding]:
    found = ((path, module, _finding(module)) for path, module in model.named_modules())
    return [
        _Finding(f"{_where(path)}: {_type_name(module)} {finding.what}", finding.fix)
        for path, module, finding in found
        if finding is not None
    ]


def _finding(module: nn.Module) -> _Finding | None:
    names = _names(module)
    if isinstance(module, _BatchNorm) or names & _STATISTICS:
        # A layer without running statistics uses those of the batch in eval mode too.
        if not module.training and getattr(module, "running_mean", None) is not None:
            return None
        return _Finding("uses statistics of the whole batch", _batch_fix(module))
    if names & _TORCH_INSTANCENORMS and module.training and module.track_running_stats:
        return _Finding(
            "keeps running statistics of the records, without noise",
            "construct it with track_running_stats=False",
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return _Finding(
            "rescales the rows that the records of a batch look up (max_norm), without noise, even when it is frozen",
            "construct it without max_norm",
        )
    return None


def _names(module: nn.Module) -> set[str]:
    # By name: a scripted module has lost its class, and we do not import other packages for this.
    return {base.__name__ for base in type(module).__mro__} | {_type_name(module)}


def _batch_fix(module: nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return f"before torch.jit.script, and {_FIX}"
    if isinstance(module, _LazyNormBase):
        return f"pass one made-up batch through the model, so that its shapes are known; then, {_FIX}"
    if isinstance(module, _BatchNorm):
        return _FIX
    return "replace it by a layer that treats each record by itself, such as torch.nn.GroupNorm"


def _named(path: str, old: _BatchNorm, choice: Choice) -> nn.Module:
    _refuse_own_forward(path, old)
    match choice:
        case "group" | "layer":
            new: nn.Module = _group(path, old, one_group=choice == "layer")
        case "instance":
            new = _instance(path, old)
        case "frozen":
            if old.running_mean is None:
                raise UnsupportedModelError(
                    f"{_where(path)}: {old!r} has no running statistics to freeze; "
                    'use "group", "layer", "instance" or a function of the layer'
                )
            new = FrozenBatchNorm(old)
    return new.train(old.training)


def _refuse_lazy(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm) and isinstance(module, _LazyNormBase):
            raise UnsupportedModelError(
                f"{_where(path)}: {_type_name(module)} does not know its channels yet; "
                "pass one made-up batch through the model first"
            )


def _refuse_own_forward(path: str, old: _BatchNorm) -> None:
    # A subclass with another forward does more than normalise (an activation, say), which would be lost.
    if type(old).forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
        raise UnsupportedModelError(
            f"{_where(path)}: {_type_name(old)} is a BatchNorm with a forward of its own; "
            "pass a function that makes its replacement"
        )


def _may_lack_map(old: _BatchNorm) -> bool:
    """Whether the layer may see [B, C], where there is nothing but channels to normalise over."""
    return not isinstance(old, nn.BatchNorm2d | nn.BatchNorm3d)


def _group(path: str, old: _BatchNorm, *, one_group: bool) -> nn.GroupNorm:
    channels = old.num_features
    if channels == 1 and _may_lack_map(old):
        raise UnsupportedModelError(
            f"{_where(path)}: {old!r} has one channel; on inputs [B, 1] GroupNorm would put out a constant. "
            'Use "frozen", or a function such as lambda layer: torch.nn.Identity()'
        )
    smallest = _SMALLEST_GROUP_WITHOUT_MAP if _may_lack_map(old) else 4
    groups = 1 if one_group else group_count(channels, smallest_group=smallest)
    new = nn.GroupNorm(groups, channels, eps=old.eps, affine=old.affine, device="meta")
    new.weight, new.bias = old.weight, old.bias
    return new


def _instance(path: str, old: _BatchNorm) -> nn.Module:
    if _may_lack_map(old):
        raise UnsupportedModelError(
            f"{_where(path)}: {old!r} may see inputs [B, C], where InstanceNorm would put out a constant. "
            'Use "group" or "layer", or, if your inputs are [B, C, L], '
            "lambda layer: torch.nn.InstanceNorm1d(layer.num_features, affine=True)"
        )
    kind = nn.InstanceNorm2d if isinstance(old, nn.BatchNorm2d) else nn.InstanceNorm3d
    new = kind(old.num_features, eps=old.eps, affine=old.affine, device="meta")
    new.weight, new.bias = old.weight, old.bias
    return new


def _custom(path: str, old: _BatchNorm, make: Callable[[_BatchNorm], nn.Module]) -> nn.Module:
    new = make(old)
    if not isinstance(new, nn.Module):
        raise ConfigError("with_", new, f"a function that returns an nn.Module ({_where(path)}: {old!r})")
    if new is old:
        return old
    like = old.weight if old.weight is not None else old.running_mean
    if like is not None:
        new = new.to(device=like.device, dtype=like.dtype)
    return new.train(old.training)


def _note(new: nn.Module) -> str:
    if not isinstance(new, FrozenBatchNorm):
        return ""
    # We look at the values: num_batches_tracked is 0 after loading weights that are older than it.
    if not new.running_mean.any() and bool((new.running_var == 1).all()):
        return "its statistics are still the initial ones (mean 0, variance 1)"
    return "its running statistics are released without noise: they must come from public data"


def _one_line(module: nn.Module) -> str:
    return " ".join(repr(module).split())


def _where(path: str) -> str:
    return path or "(the model itself)"


def _type_name(module: nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return str(module.original_name)
    return type(module).__name__


def trainable_layers(model: nn.Module) -> list[str]:
    """The paths of the modules that hold trainable parameters, each once. Per-layer clipping calls these layers.

    >>> trainable_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    ['0', '2']
    """
    return list(dict.fromkeys(layer_path(name) for name, p in model.named_parameters() if p.requires_grad))


def layer_path(parameter: str) -> str:
    """The path of the module that holds the parameter of this name."""
    return parameter.rpartition(".")[0]
