"""White-box attack: a record that was trained on has a small gradient.

After Nasr, Shokri and Houmansadr, "Comprehensive privacy analysis of deep learning: passive and active white-box
inference attacks against centralized and federated learning", 2019 (arXiv:1812.00910). They feed whole gradients of
each layer to a deep network. Here only the norm of the record's gradient in each layer goes to a small network. So no
per-record gradients are stored, and a few hundred records suffice for training.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from assay.attacks.evaluation import Scores
from assay.attacks.network import learn_and_score
from assay.attacks.outputs import Array, batches, logits
from assay.attacks.setting import Setting
from assay.errors import AssayError
from assay.gradients.engine import Engine

_SMALLEST = 1e-20  # below the square root of the least float32 norm²; replaces what underflowed


def gradient_features(rounds: tuple[nn.Module, ...], records: TensorDataset) -> Array:
    """For each checkpoint the loss and the gradient's norm in each layer, as logarithms, [N, rounds · (layers + 1)]."""
    return np.concatenate([_of_one(model, records) for model in rounds], axis=1)


def _of_one(model: nn.Module, records: TensorDataset) -> Array:
    # a copy: the engine replaces the model's forward methods, and the attacker may also look at frozen layers
    model = copy.deepcopy(model).eval().requires_grad_(True)
    engine = Engine(model)
    each_layer = list(range(len(engine.layers)))
    rows = []
    for x, y in batches(model, records):
        losses = F.cross_entropy(logits(model, x, y), y.long(), reduction="none")
        grads = engine.collect(losses)
        norms = grads.norms(each_layer).double()
        if grads.nonfinite:
            raise AssayError(
                f"{grads.nonfinite} records have gradients that are not finite: nothing can be read off them"
            )
        rows.append(torch.cat([losses.detach().unsqueeze(1), norms], dim=1).cpu())
    return np.log(torch.cat(rows).numpy() + _SMALLEST)


@dataclass(frozen=True, kw_only=True)
class WhiteBox:
    """Losses and gradient norms train a network."""

    name: str = "white-box"
    summary: str = "loss and gradient norm of each layer, at every checkpoint given, train a network (Nasr et al.)"
    needs: tuple[str, ...] = ()

    def score(self, setting: Setting) -> Scores:
        """The network's log-odds."""
        return learn_and_score(setting, gradient_features)


ATTACKS = (WhiteBox(),)
