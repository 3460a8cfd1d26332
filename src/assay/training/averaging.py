"""Averaging of weights over steps: post-processing, which costs no privacy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def moving(decay: float) -> Callable[[int], float]:
    """An exponential moving average, begun gently: the decay rises with the number of steps."""
    return lambda step: 1 - min(decay, (1 + step) / (10 + step))


def tail(part: float, steps: int) -> Callable[[int], float]:
    """The plain mean of the weights after each of the last steps, this part of the run; before that, the weights as they are."""
    first = steps - max(1, round(part * steps)) + 1
    return lambda step: 1 / max(1, step - first + 1)


class Average:
    """A running average of the weights: `share(step)` is what the weights after that step, counted from 1, enter it with."""

    def __init__(self, share: Callable[[int], float], model: nn.Module) -> None:
        self._share, self._model = share, model
        self.values = {n: p.detach().clone() for n, p in model.named_parameters()}

    def update(self, step: int) -> None:
        share = self._share(step)
        for name, parameter in self._model.named_parameters():
            self.values[name].lerp_(parameter.detach(), share)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in tensors.items():
            self.values[name].copy_(value)

    def apply(self) -> None:
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(self.values[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        kept = {n: p.detach().clone() for n, p in self._model.named_parameters()}
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self._model.named_parameters():
                    parameter.copy_(kept[name])
