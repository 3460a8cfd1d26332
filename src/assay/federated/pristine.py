"""The model that clients train in turn, as it was before any of them had it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from assay.models import copies


class Pristine:
    """Guarantee: what a turn leaves in the model, in whatever way, is not there in the next turn, and the model given here stays as it is.

    A model that cannot be copied is lent itself: its modules get back their buffers and attributes. What such a model changes in
    place and holds elsewhere stays (the state of a generator).
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._lent: _Lent | None = None if copies.of_model(model) is not None else _Lent(model)

    def fresh(self) -> nn.Module:
        """The model for one turn. Its parameters may be anything: a turn begins with loading them."""
        if self._lent is not None:
            self._lent.restore()
            return self._model
        made = copies.of_model(self._model)
        assert made is not None  # nobody but the copies was trained: what could be copied once still can
        return made


class _Lent:
    """What the modules of a model hold by name, and the values of its buffers."""

    def __init__(self, model: nn.Module) -> None:
        self._held: list[tuple[nn.Module, dict[str, Any], dict[str, Tensor | None]]] = [
            (module, dict(vars(module)), dict(module._buffers)) for module in model.modules()
        ]
        self._values = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

    def restore(self) -> None:
        for module, attributes, buffers in self._held:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, value in self._values:
                buffer.copy_(value)
