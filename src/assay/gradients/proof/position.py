"""Position: a record's gradient has the same bits anywhere in the batch, and beside any other records.

Exact noise (`assay.mechanisms.exact`) needs that: leaving a record out must not change a single bit of the others.
Kernels add up in an order that depends on the shapes: a batch of 5 gives other last bits than one of 64. So exact runs
put all batches through the model in parts of one shape, filled up with stand-ins. Within one shape, kernels usually
compute every row in the same way. The first batch tests this, and models for which it does not hold are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.errors import ConfigError, UnsupportedModelError
from assay.gradients.engine import Engine
from assay.gradients.record_grads import RecordGrads

Rows = Callable[[RecordGrads], dict[str, Tensor]]
"""Turns gradients into what is compared, [B, ...] for each parameter."""

_MOVES = (
    "{} gives a record's gradient other last bits where the record stands elsewhere in its batch, or beside others. "
    "Exact noise cannot cover that"
)


@dataclass
class Watch:
    """Remembers the latest call of a model until it has passed `check`."""

    model: nn.Module
    _calls: list[tuple[Any, Any, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._hook = self.model.register_forward_hook(self._saw, with_kwargs=True)

    def _saw(self, _module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if torch.is_autocast_enabled("cpu"):
            raise ConfigError("precision", "autocast", "float32 with exact noise")
        self._calls = [(args, kwargs, output)]

    def stop(self) -> None:
        """Take the hook off the model."""
        self._hook.remove()
        self._calls = []

    def replayed(self, losses: Tensor) -> Replayed:
        """What is needed to repeat the call that these losses came from. Call before their backward pass.

        Raises:
            UnsupportedModelError: The losses come from no call of the whole model.
        """
        for args, kwargs, output in self._calls:
            tensors = [t for t in _tensors(output) if t.requires_grad]
            found = torch.autograd.grad(losses.sum(), tensors, retain_graph=True, allow_unused=True) if tensors else ()
            gradients = [None if g is None or g.dim() == 0 or len(g) != len(losses) else g.detach() for g in found]
            if any(g is not None for g in gradients):
                return Replayed(self.model, args, kwargs, gradients, len(losses))
        raise UnsupportedModelError(
            "exact noise needs losses that come from a call of the whole model, model(...), on tensors with a row for "
            "each record: it is called again to see that records do not change the bits of each other's gradients"
        )


@dataclass(frozen=True)
class Replayed:
    """A call of the model, with the gradient of the losses with respect to its outputs."""

    model: nn.Module
    args: Any
    kwargs: Any
    gradients: list[Tensor | None]
    size: int

    def check(self, engine: Engine, views: int, rows: Rows) -> RecordGrads | None:
        """Refuse a model that gives a record other bits elsewhere in its batch.

        The model is called twice more, the second time with the records moved and every other one replaced, by zeros or
        (whole numbers, which may be words) by another. A model that draws random numbers (dropout) is tested in eval
        mode: its numbers depend on a record's place, but they are independent and secret.

        Args:
            engine: The engine on the model.
            views: How many rows belong to one record.
            rows: What is compared.

        Returns:
            The gradients of the batch, as the engine computes them from here on; None if the model draws numbers.

        Raises:
            UnsupportedModelError: A record's `rows` are not the same to the bit.
        """
        by = (self.size // views // 2 + 1) * views

        def moved(t: Any) -> Any:
            if not (isinstance(t, Tensor) and t.dim() and len(t) == self.size):
                return t
            kept = torch.arange(self.size) // views % 2 == 0
            other = torch.zeros_like(t) if t.is_floating_point() else t.roll(views, 0)  # 0 may be no class and no word
            return torch.where(kept.view(-1, *[1] * (t.dim() - 1)), t, other).roll(by, 0)

        with torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            grads = self._again(engine, views, lambda t: t)
            drew = not torch.equal(before, torch.get_rng_state())
            modes = [(m, m.training) for m in self.model.modules()]
            try:
                if drew:
                    self.model.eval()
                one = rows(grads if not drew else self._again(engine, views, lambda t: t))
                other = rows(self._again(engine, views, moved))
            finally:
                for module, mode in modes:
                    module.training = mode
        for name, value in one.items():
            if not torch.equal(_bits(value)[::2], _bits(other[name].roll(-by // views, 0))[::2]):
                raise UnsupportedModelError(_MOVES.format(f"the model ({name})"))
        return None if drew else grads

    def _again(self, engine: Engine, views: int, change: Callable[[Any], Any]) -> RecordGrads:
        args, kwargs = pytree.tree_map(change, (self.args, self.kwargs))
        outputs = [t for t in _tensors(self.model(*args, **kwargs)) if t.requires_grad]
        losses = sum(
            (out * change(g)).flatten(1).sum(1) for out, g in zip(outputs, self.gradients, strict=True) if g is not None
        )
        assert isinstance(losses, Tensor)
        return engine.collect(losses, views)


def check_loss(loss: Callable[[Any, Any], Tensor], output: Any, target: Any) -> None:
    """Refuse a loss that gives a record's gradient other bits elsewhere in its batch.

    Raises:
        UnsupportedModelError: It does.
    """
    tensors = [t for t in _tensors(output) if t.is_floating_point()]
    size = len(tensors[0]) if tensors and tensors[0].dim() else 0

    def gradients(change: Callable[[Any], Any]) -> list[Tensor]:
        given = pytree.tree_map(lambda t: change(t.detach()) if isinstance(t, Tensor) else t, (output, target))
        leaves = [t.requires_grad_() for t in _tensors(given[0]) if t.is_floating_point()]
        found = torch.autograd.grad(loss(*given).sum(), leaves, allow_unused=True)
        return [g for g in found if g is not None and g.dim() and len(g) == size]

    def moved(t: Tensor) -> Tensor:
        return t.roll(size // 2 + 1, 0) if t.dim() and len(t) == size else t

    with torch.random.fork_rng(devices=[]):
        pairs = zip(gradients(torch.clone), gradients(moved), strict=True)
        if not all(torch.equal(_bits(moved(a)), _bits(b)) for a, b in pairs):
            raise UnsupportedModelError(_MOVES.format("the loss"))


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]


def _bits(t: Tensor) -> Tensor:
    """The values with NaN and Inf replaced, so that each equals itself."""
    return t.nan_to_num(nan=0.5, posinf=0.25, neginf=-0.25)
