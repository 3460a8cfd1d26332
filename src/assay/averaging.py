"""Averaging of weights over steps: post-processing, which costs no privacy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """An exponential moving average of the weights, begun gently: the decay rises with the number of steps."""

    def __init__(self, decay: float, model: nn.Module) -> None:
        self._decay, self._model = decay, model
        self.values = {n: p.detach().clone() for n, p in model.named_parameters()}

    def update(self, step: int) -> None:
        decay = min(self._decay, (1 + step) / (10 + step))
        for name, parameter in self._model.named_parameters():
            self.values[name].lerp_(parameter.detach(), 1 - decay)

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
