"""The model that clients train in turn, as it was before any of them had it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from assay.models import copies


class Pristine:
    """Guarantee: whatever a turn leaves in the model is gone in the next turn, and the model given here never changes.

    A model that cannot be copied is lent itself; its modules get back their buffers and attributes. State that such a
    model changes in place and holds elsewhere stays, for instance that of a generator.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._lent: _Lent | None = None if copies.of_model(model) is not None else _Lent(model)

    def fresh(self) -> nn.Module:
        """The model for one turn. Its parameters may have any values: a turn begins by loading them."""
        if self._lent is not None:
            self._lent.restore()
            return self._model
        made = copies.of_model(self._model)
        assert made is not None  # only copies are trained, so a model that could be copied once still can
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
