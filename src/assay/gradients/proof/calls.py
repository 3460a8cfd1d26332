"""Repeating a call of a model, with the randomness and the buffers that it had, and comparing what comes out."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

RandomState = list[Tensor]


def random_state() -> RandomState:
    """The states of torch's generators in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def set_random_state(state: RandomState) -> None:
    """Restore torch's generators."""
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state_all(state[1:])


def drawn_since(state: RandomState) -> bool:
    """Whether random numbers were drawn since then."""
    return not all(torch.equal(a, b) for a, b in zip(state, random_state(), strict=False))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the whole model, and what is needed to repeat it: the randomness and the buffers before the call."""

    args: Any
    kwargs: Any
    random_state: RandomState
    buffers: Mapping[str, Tensor]
    output: Any
    before: nn.Module | None
    """A copy of the model before the call, sharing its parameters; None if it cannot be copied."""
    values: list[Tensor]
    """A copy of the output, which may be changed in place afterwards."""
    drew: bool
    """Whether it drew random numbers."""
    wrote: frozenset[str]
    """The buffers that it changed."""

    def again(self, model: nn.Module, change: Callable[[Any], Any] = lambda t: t) -> Answer:
        """Repeat this call, with its randomness and its buffers. Afterwards both are restored.

        Args:
            model: The model, or a copy of it.
            change: What is done to each argument.
        """
        args, kwargs = pytree.tree_map(change, (self.args, self.kwargs))
        kept = copied(model.named_buffers())
        now = random_state()
        try:
            set_random_state(self.random_state)
            put_back(model, self.buffers)
            with torch.no_grad():
                outputs = tensors(model(*args, **kwargs))
                return Answer(outputs, copied(model.named_buffers()), self.has_drawn())
        finally:
            set_random_state(now)
            put_back(model, kept)

    def has_drawn(self) -> bool:
        """Whether random numbers were drawn since the state of this call."""
        return drawn_since(self.random_state)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call."""

    outputs: list[Tensor]
    buffers: Mapping[str, Tensor]
    drew: bool


def copied(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copies of tensors, by name."""
    return {name: t.detach().clone() for name, t in named}


def changed(before: Mapping[str, Tensor], now: Iterable[tuple[str, Tensor]]) -> frozenset[str]:
    """The names whose tensors changed, appeared or disappeared."""
    left = dict(before)
    different = set()
    for name, t in now:
        old = left.pop(name, None)
        same = old is not None and old.shape == t.shape and old.dtype == t.dtype
        if not (same and old is not None and _equal(old, t.detach())):
            different.add(name)
    return frozenset(different | left.keys())


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether all values are equal; NaN equals itself."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def tensors(value: Any) -> list[Tensor]:
    """All tensors in tuples, lists and dicts."""
    return [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape are equal up to rounding."""
    if not a.is_floating_point():
        return bool((a == b).all())
    tolerance = 1e3 * torch.finfo(a.dtype).eps
    scale = float(a.abs().nan_to_num(0, 0, 0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


@torch.no_grad()
def put_back(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Restore the buffers that still have their shape."""
    for name, b in model.named_buffers():
        if name in values and values[name].shape == b.shape and not torch.equal(b, values[name]):
            b.copy_(values[name])


def has_extra_state(module: nn.Module) -> bool:
    """Whether a module saves more than parameters and buffers."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def extra_states(model: nn.Module) -> list[tuple[str, bytes]]:
    """What modules save besides parameters and buffers, as bytes; empty if it cannot be pickled."""
    return [(name, extra_state(m)) for name, m in model.named_modules() if has_extra_state(m)]


def extra_state(module: nn.Module) -> bytes:
    """What a module saves besides parameters and buffers, as bytes; empty if it cannot be pickled."""
    try:
        return pickle.dumps(pytree.tree_map(_plain, module.get_extra_state()))
    except Exception:  # anything may be in there
        return b""


def _plain(value: Any) -> Any:
    return value.detach().cpu().tolist() if isinstance(value, Tensor) else value
