"""Copies of a model, or of a loss, as it is before it has seen any record: to ask what it would do if it saw others."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from assay.models import compat


def of_model(model: nn.Module, *, sharing: bool = False) -> nn.Module | None:
    """The model once more, with the same parameters (`sharing`; nobody may then write to them) or with copies of them too.

    None where there is no copy: for a compiled model, which would be compiled anew, and for one that holds what cannot be copied
    (a generator, a lock, a tensor with a history), which may fail in any way.
    """
    if compat.compiled(model):
        return None
    known: dict[int, Any] = {id(p): p for p in model.parameters()} if sharing else {}
    try:
        return copy.deepcopy(model, known)
    except Exception:
        return None


def of_loss(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The loss once more; itself where it is a function or a method (what belongs to others is not copied), or cannot be copied."""
    if isinstance(loss, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        return loss
    try:
        return copy.deepcopy(loss)
    except Exception:
        return loss
