"""Averaging of weights over steps: post-processing, which costs no privacy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def moving(decay: float) -> Callable[[int], float]:
    """The share of an exponential moving average. The decay rises over the first steps."""
    return lambda step: 1 - min(decay, (1 + step) / (10 + step))


def tail(part: float, steps: int) -> Callable[[int], float]:
    """The share of the plain mean over the last steps of the run; before those, the current weights.

    Args:
        part: How much of the run is averaged, from 0 to 1.
        steps: How many steps the run has.
    """
    first = steps - max(1, round(part * steps)) + 1
    return lambda step: 1 / max(1, step - first + 1)


class Average:
    """A running average of the weights; `share(step)` is the share of the weights after that step, counted from 1."""

    def __init__(self, share: Callable[[int], float], model: nn.Module) -> None:
        self._share, self._model = share, model
        self.values = {n: p.detach().clone() for n, p in model.named_parameters()}

    def update(self, step: int) -> None:
        """Add the weights after this step."""
        share = self._share(step)
        for name, parameter in self._model.named_parameters():
            self.values[name].lerp_(parameter.detach(), share)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore a saved average."""
        for name, value in tensors.items():
            self.values[name].copy_(value)

    def apply(self) -> None:
        """Give the model the averaged weights."""
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(self.values[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the model has the averaged weights."""
        kept = {n: p.detach().clone() for n, p in self._model.named_parameters()}
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self._model.named_parameters():
                    parameter.copy_(kept[name])
