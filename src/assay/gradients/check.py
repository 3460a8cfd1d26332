"""Which layers of a model get per-record gradients quickly, and which run once for each record. `assay models check`

`check` runs one made-up batch through a copy of the model, with the checks that a private run makes on its first batch.
So it also says whether the model can be trained privately at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.errors import AssayError, ConfigError
from assay.gradients.engine import Engine
from assay.models import compat, copies

RULE, TRACED, ONCE_EACH, FROZEN = "rule", "parameters used directly", "once for each record", "frozen"


@dataclass(frozen=True, kw_only=True)
class LayerCheck:
    """One module that owns parameters: where it is, what it is, and how its per-record gradients are computed."""

    path: str
    kind: str
    how: str
    parameters: int

    @property
    def fast(self) -> bool:
        """Whether it runs once for the whole batch."""
        return self.how != ONCE_EACH


def check(model: nn.Module, *args: Any, **kwargs: Any) -> list[LayerCheck]:
    """Run a batch through a copy of the model as a private run would, and say how each layer's gradients are computed.

    Nothing is released and the model does not change.

    Args:
        model: The model, in the mode that it will be trained in.
        *args: A batch of two or more records to call it with, made up or public: tensors with one row per record.
        **kwargs: The same by keyword.

    Returns:
        One entry for each module that owns parameters.

    Raises:
        UnsupportedModelError: The model cannot be trained privately; the message names the layer and what to do.
        ConfigError: The batch has fewer than two records, the model does not take it, or it returns no numbers for each
            record.

    >>> [(layer.path, layer.how) for layer in check(nn.Sequential(nn.Linear(3, 2)), torch.randn(4, 3))]
    [('0', 'rule')]
    """
    copy = copies.of_model(model)
    if copy is None:
        raise ConfigError("model", type(model).__name__, "a model that copy.deepcopy can copy")
    compat.check(copy)
    first = next((t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim() > 0), None)
    if first is None or len(first) < 2:
        raise ConfigError("batch", "no tensor with two rows or more", "tensors with one row per record")
    engine = Engine(copy)
    try:
        engine.collect(_losses(_output(copy, first, args, kwargs), len(first)))
        return _layers(copy, engine)
    finally:
        engine.detach()


def _output(model: nn.Module, first: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return model(*args, **kwargs)
    except AssayError:
        raise
    except Exception as error:  # the user's own model, which may fail in any way
        kind = "numbers" if first.is_floating_point() else "whole numbers"
        raise ConfigError(
            "batch", f"{kind} of shape {tuple(first.shape)}",
            f"records that the model takes (for `assay models check`: --shape and --words). It raised "
            f"{type(error).__name__}: {error}",
        ) from error  # fmt: skip


def _losses(output: Any, records: int) -> Tensor:
    """One value per record that depends on every number of the output."""
    leaves = [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]
    rows = [t for t in leaves if t.is_floating_point() and t.dim() > 0 and len(t) == records and t.requires_grad]
    if not rows:
        raise ConfigError("model", "an output without numbers for each record", "outputs with one row per record")
    return torch.stack([t.reshape(records, -1).float().square().sum(1) for t in rows]).sum(0)


def _layers(model: nn.Module, engine: Engine) -> list[LayerCheck]:
    once_each = {id(inner) for outer in engine.once_each() for inner in outer.modules()}
    traced = {id(module) for module in engine.traced()}
    found = []
    for path, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if not own:
            continue
        if not any(p.requires_grad for p in own):
            how = FROZEN
        elif id(module) in once_each:
            how = ONCE_EACH
        else:
            how = TRACED if id(module) in traced else RULE
        size = sum(p.numel() for p in own)
        found.append(LayerCheck(path=path, kind=type(module).__name__, how=how, parameters=size))
    return found


def summary(layers: Sequence[LayerCheck]) -> str:
    """How many layers there are of each kind, in one sentence."""
    count = Counter(layer.how for layer in layers)
    said = ", ".join(f"{count[how]} {how}" for how in (RULE, TRACED, ONCE_EACH, FROZEN) if count[how])
    slow = count[ONCE_EACH]
    return f"{len(layers)} layers with parameters: {said}. " + (
        "All run once for the whole batch." if not slow else f"{slow} of them make a private step slow."
    )
