"""Secret states for torch's own generators, from which a model draws while it is trained (dropout).

The mask of a record depends on its place in the batch, and so on which others are there. Somebody who knew the masks
could see one record move the gradients of all others, far beyond the clipping bound. A script that calls
`torch.manual_seed` would make them known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from assay.errors import UnsupportedModelError
from assay.models import compat
from assay.randomness.generators import GeneratorStates
from assay.randomness.streams import Stream


class Masks:
    """Secret states for torch's generators.

    Guarantee: every call of the model with gradients enabled begins with generator states from the stream, fresh for
    every part of a batch, whatever was called in between. A model that seeds the generators itself is refused.
    """

    def __init__(self, model: nn.Module, stream: Stream) -> None:
        self._stream, self._states = stream, GeneratorStates(stream)
        self._seed: int | None = None
        self._elsewhere: list[tuple[torch.Generator, int]] = []

        # functions and not methods: a copy of the model has these hooks as well, and must not copy this object
        def start(module: nn.Module, _args: Any) -> None:
            if module is model and torch.is_grad_enabled() and not self.secret:
                self.renew()

        def end(module: nn.Module, _args: Any, _output: Any) -> None:
            if module is model and torch.is_grad_enabled() and not self.secret:
                raise UnsupportedModelError(
                    "the model seeds torch's generators while it runs: what it draws for a record would be known, and "
                    "would depend on the others in its batch. Take torch.manual_seed out of its forward"
                )

        if compat.compiled(model):
            start, end = torch.compiler.disable(start), torch.compiler.disable(end)
        self._hooks = [
            # before all others: hooks that read the generators must find the states that the model will use
            model.register_forward_pre_hook(start, prepend=True),
            model.register_forward_hook(end),
        ]

    def begin(self, devices: Iterable[torch.device]) -> None:
        """Give the generators of the CPU and of these devices secret states from now on."""
        self._elsewhere = [(g, 0) for device in sorted(set(devices), key=str) for g in _generators(device)]
        self.renew()

    def renew(self) -> None:
        """Set fresh secret states, none of which was used before."""
        torch.default_generator.set_state(self._states.next())
        if self._elsewhere:
            seeds = self._stream.integers(2**62, len(self._elsewhere)).tolist()
            self._elsewhere = [(g.manual_seed(seed), seed) for (g, _), seed in zip(self._elsewhere, seeds, strict=True)]
        self._seed = torch.default_generator.initial_seed()

    @property
    def secret(self) -> bool:
        """Whether nobody has seeded the generators since.

        Restoring a state of the same part of a batch, as activation checkpointing does, is fine.
        """
        if torch.default_generator.initial_seed() != self._seed:
            return False
        return not self._elsewhere or all(g.initial_seed() == seed for g, seed in self._elsewhere)

    def stop(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()


def _generators(device: torch.device) -> list[torch.Generator]:
    """The generators that dropout on this device draws from, except the CPU's."""
    if device.type == "cuda":
        return list(torch.cuda.default_generators)
    if device.type == "mps":
        return [torch.mps._get_default_mps_generator()]
    return []
