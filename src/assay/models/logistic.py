"""Multi-class logistic regression: one linear layer on the flat record (DP-LSSGD, arXiv:1906.12056, section 4.1)."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

from torch import nn

from assay.models.registry import ModelInfo


def logistic(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Flatten, then Linear(d, classes); the softmax belongs to the loss."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(prod(input_shape), classes)))


MODELS = (ModelInfo(name="logistic", summary="logistic regression, one linear layer", make=logistic, input_rank=None),)
