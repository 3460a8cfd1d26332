"""Copies of a model, or of a loss, as it is before it has seen any record: to ask what it would do if it saw others."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from assay.models import compat

_OFF = 0.1  # of the mean size of a parameter's numbers
_LEAST = 0.01


def of_model(model: nn.Module, *, sharing: Iterable[nn.Parameter] = ()) -> nn.Module | None:
    """The model once more, with copies of all its parameters but those that it shares, to which nobody may write.

    None where there is no copy: for a compiled model, which would be compiled anew, and for one that holds what cannot be copied
    (a generator, a lock, a tensor with a history), which may fail in any way.
    """
    if compat.compiled(model):
        return None
    try:
        return copy.deepcopy(model, {id(p): p for p in sharing})
    except Exception:
        return None


def elsewhere(model: nn.Module) -> nn.Module | None:
    """A copy whose trainable parameters are a little off, always by the same: what a layer that begins at zero hides shows there."""
    found = of_model(model, sharing=[p for p in model.parameters() if not p.requires_grad])
    if found is not None:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in found.parameters():
                if p.requires_grad and p.is_floating_point():
                    off = torch.randn(p.shape, generator=generator).to(p)
                    p.add_(off, alpha=max(_LEAST, _OFF * float(p.abs().mean()) if p.numel() else 0.0))
    return found


def of_loss(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The loss once more; itself where it is a function or a method (what belongs to others is not copied), or cannot be copied."""
    if isinstance(loss, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        return loss
    try:
        return copy.deepcopy(loss)
    except Exception:
        return loss
