"""What a `training_step` keeps in its module: nothing, because nothing that it computes from records is covered by ε.

Collecting losses in a list, or counting hits in a metric, and logging them after the epoch is how people log with
Lightning. Such figures would leave without noise.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torchmetrics
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.errors import ConfigError

_LARGEST = 1000  # a longer list is compared by its length alone
_OWN = frozenset(vars(pl.LightningModule()))


def traces(module: nn.Module) -> dict[str, Any]:
    """What tells whether something was kept: for each attribute of the module, and for each metric below it.

    Args:
        module: A `LightningModule`.

    Returns:
        A trace by name.
    """
    found = {name: _trace(value) for name, value in vars(module).items() if name not in _OWN}
    metrics = {name: one for name, one in module.named_modules() if isinstance(one, torchmetrics.Metric)}
    return found | {name: (one.update_count, one.__dict__.get("_computed") is None) for name, one in metrics.items()}


def check_nothing_kept(module: nn.Module, before: dict[str, Any]) -> None:
    """Refuse a `training_step` that kept something.

    Args:
        module: The module, after the step.
        before: Its `traces` before.

    Raises:
        ConfigError: Names the attributes.
    """
    now = traces(module)
    kept = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if kept:
        raise ConfigError(
            "training_step", f"one that changes {', '.join(kept)}", "one that keeps nothing in the module: ε does not "
            "cover what is computed from records there. The released loss is logged as train_loss",
        )  # fmt: skip


def _trace(value: Any) -> Any:
    if isinstance(value, list | tuple | dict | set) and len(value) <= _LARGEST:
        leaves = sorted(map(id, value)) if isinstance(value, set) else pytree.tree_leaves(value)
        return type(value), [_trace_of_one(leaf) for leaf in leaves]
    return _trace_of_one(value)


def _trace_of_one(value: Any) -> Any:
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, int | float | str | bytes | None):
        return repr(value)
    return id(value), len(value) if hasattr(value, "__len__") else None
