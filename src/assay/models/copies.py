"""Copies of a model or a loss from before they see any record, to ask what they would do with other records."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from assay.models import compat

_NOISE = 0.1  # relative to the mean absolute value of a parameter
_LEAST_NOISE = 0.01


def of_model(model: nn.Module, *, sharing: Iterable[nn.Parameter] = ()) -> nn.Module | None:
    """A copy of the model with copies of all its parameters but those in `sharing`, to which nobody may write.

    Returns:
        The copy, or None where there is none. A compiled model would have to be compiled again. A model may also hold
        an object that cannot be copied: a generator, a lock, a tensor with a history.
    """
    if compat.compiled(model):
        return None
    try:
        return copy.deepcopy(model, {id(p): p for p in sharing})
    except Exception:  # copying an arbitrary object may fail in any way
        return None


def elsewhere(model: nn.Module) -> nn.Module | None:
    """A copy with perturbed trainable parameters, always by the same noise; None where there is no copy.

    A zero-initialised layer would hide that the layers before it mix records.
    """
    copied = of_model(model, sharing=[p for p in model.parameters() if not p.requires_grad])
    if copied is not None:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in copied.parameters():
                if p.requires_grad and p.is_floating_point():
                    noise = torch.randn(p.shape, generator=generator).to(p)
                    p.add_(noise, alpha=max(_LEAST_NOISE, _NOISE * float(p.abs().mean()) if p.numel() else 0.0))
    return copied


def of_loss(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of the loss; the loss itself where it is a function or a method, or cannot be copied."""
    if isinstance(loss, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        return loss
    try:
        return copy.deepcopy(loss)
    except Exception:
        return loss
