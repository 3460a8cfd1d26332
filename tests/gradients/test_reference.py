"""The oracle itself, against one ordinary backward pass a record."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .oracle import squared_error, trained
from .reference import per_record_gradients


@pytest.mark.parametrize("batched", [True, False])
def test_is_one_backward_pass_a_record(batched: bool) -> None:
    model = trained(nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)))
    model[1].bias.requires_grad_(False)
    x, y = torch.randn(3, 2, 4, 4).double(), torch.randn(3, 3).double()
    found = per_record_gradients(model, squared_error, x, y, batched=batched)
    assert set(found) == {name for name, p in model.named_parameters() if p.requires_grad}
    for i in range(3):
        model.zero_grad()
        squared_error(model(x[i : i + 1]), y[i : i + 1]).sum().backward()
        for name, g in found.items():
            torch.testing.assert_close(g[i], model.get_parameter(name).grad, rtol=1e-12, atol=1e-12)


def test_leaves_the_model_as_it_was() -> None:
    # torch's functional_call puts back its own tensors where one module stands in two places
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    before = dict(model.named_parameters())
    per_record_gradients(model, squared_error, torch.randn(2, 3), torch.randn(2, 3))
    assert all(p is before[name] for name, p in model.named_parameters())
    assert isinstance(shared.weight, nn.Parameter)
