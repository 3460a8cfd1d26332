"""Writes into the model, which are looked for around every forward and backward pass.

Version counters are cheap to read: torch raises a tensor's version at every write in place, and a tensor that replaced
another is another object. A pass that writes into a parameter is refused at once. A buffer, an attribute or extra state
may be written if the values do not depend on the records, which is checked at the first write
(`assay.gradients.proof.isolation`). Versions do not show writes through `.data`, by kernels of other libraries or into
lists. Comparing values shows these, on the first batch and on random later ones (`assay.gradients.proof.first_batch`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.gradients.proof.calls import extra_state, has_extra_state
from assay.gradients.proof.isolation import writes

_MODES = 16  # a model with more modes is checked on random batches only


class Watch:
    """Tells what has changed in a model since `mark`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.by_versions = True
        """Whether parameters stay the same tensors; those of a model that is split over ranks do not."""
        self._modes: set[tuple[bool, ...]] = set()
        self._survey()

    def _survey(self) -> None:
        named = list(self._model.named_modules())
        self._modules = [m for _, m in named]
        self._children = [m._modules for m in self._modules]
        self._form = self._placed()
        self._parameters = [(n, p) for n, p in self._model.named_parameters() if not p.is_inference()]
        self._values = [p for _, p in self._parameters]
        self._buffers = [(f"{n}." if n else "", m._buffers) for n, m in named]
        self._with_buffers = [b for _, b in self._buffers if b]
        self._without = [b for _, b in self._buffers if not b]
        # torch's layers write into buffers and parameters only
        own = [(n, m) for n, m in named if not type(m).__module__.startswith("torch.nn.modules.")]
        self._attributes = [(n or "the model", vars(m)) for n, m in own]
        self._extra = [(n or "the model", m) for n, m in own if has_extra_state(m)]
        self.mark()

    def _placed(self) -> list[nn.Module | None]:
        return list(chain.from_iterable(map(dict.values, self._children)))

    def reformed(self) -> bool:
        """Whether modules were added or removed, or have a combination of modes that was not there before."""
        if self._placed() != self._form:
            self._modes.clear()
            self._survey()
        mode = tuple([m.training for m in self._modules])
        if mode in self._modes or len(self._modes) >= _MODES:
            return False
        self._modes.add(mode)
        return True

    def mark(self) -> None:
        """Remember the current state, to compare with."""
        self._versions = [p._version for p in self._values] if self.by_versions else []
        self._held = [list(b.values()) for b in self._with_buffers]
        self._held_versions = [[_version(t) for t in held] for held in self._held]
        self._seen = [a.copy() for _, a in self._attributes]
        self._seen_versions = [[_version(v) for v in seen.values() if type(v) is Tensor] for seen in self._seen]
        self._told = [extra_state(m) for _, m in self._extra]

    def written(self, during: str) -> set[str]:
        """The buffers and extra states that were written since the mark.

        Raises:
            UnsupportedModelError: A parameter was written, or a buffer in a pass record by record.
        """
        if self.by_versions and self._versions != [p._version for p in self._values]:
            for (name, p), version in zip(self._parameters, self._versions, strict=True):
                if p._version != version:
                    raise UnsupportedModelError(writes(f"parameter {name}", during))
        return self.state(during)

    def state(self, during: str = "forward") -> set[str]:
        """The same without checking parameters, which an optimizer may have moved."""
        found: set[str] = set()
        for held, versions, now in zip(self._held, self._held_versions, self._with_buffers, strict=True):
            if list(map(id, held)) != list(map(id, now.values())) or versions != [_version(t) for t in held]:
                found |= self._names(held, versions, now, during)
        if any(self._without):
            for now in self._without:
                found |= self._names([], [], now, during)
        for (path, module), told in zip(self._extra, self._told, strict=True):
            if extra_state(module) != told:
                found.add(f"the extra state of {path}")
        return found

    def attributes(self) -> set[str]:
        """The attributes that were set or written since the mark, of modules that are not torch's own."""
        found = set()
        for (path, now), seen, versions in zip(self._attributes, self._seen, self._seen_versions, strict=True):
            if list(map(id, seen.values())) != list(map(id, now.values())):
                found |= {f"attribute {name} of {path}" for name, v in now.items() if seen.get(name, seen) is not v}
            if versions and versions != [_version(v) for v in seen.values() if type(v) is Tensor]:
                found.add(f"a tensor of {path}")
        return found

    def _names(
        self, held: list[Tensor | None], versions: list[int], now: dict[str, Tensor | None], during: str
    ) -> set[str]:
        prefix = next(p for p, b in self._buffers if b is now)
        before = {id(t): v for t, v in zip(held, versions, strict=True)}
        found = set()
        for name, t in now.items():
            if t is not None and torch._C._functorch.is_functorch_wrapped_tensor(t):
                raise UnsupportedModelError(writes(f"buffer {prefix}{name}", during))
            if before.get(id(t)) != _version(t):
                found.add(f"buffer {prefix}{name}")
        return found


def _version(t: Tensor | None) -> int:
    return 0 if t is None or t.is_inference() else t._version


def check_hooks(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Refuse parameters with hooks on their gradient: a hook would see the sum of the records' gradients without noise.

    Raises:
        UnsupportedModelError: A parameter has such a hook; the message names it and says what to do.
    """
    for name, p in parameters:
        after: Any = p._post_accumulate_grad_hooks
        if after:
            raise UnsupportedModelError(
                f"parameter {name} has a hook that runs when its gradient is there "
                "(register_post_accumulate_grad_hook, an optimizer fused into the backward pass): it would act on the "
                "records' gradients without noise. Remove it, and call optimizer.step() after step.backward(losses), "
                "when .grad is private"
            )
        if p._backward_hooks:
            raise UnsupportedModelError(
                f"parameter {name} has a hook on its gradient (register_hook): it would see the records' gradients "
                "without noise. Remove it, and change .grad after step.backward(losses), when it is private"
            )
