"""Small models and data for whole steps and runs."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import Plan


@pytest.fixture
def records() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    y = torch.arange(120) % 3
    x = torch.randn(120, 4, generator=generator) + 2 * nn.functional.one_hot(y, 4)
    return TensorDataset(x, y)


@pytest.fixture
def others(records: TensorDataset) -> TensorDataset:
    """Records to test on, which nobody is trained on."""
    x, y = records.tensors
    return TensorDataset(x + 0.01, y)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture
def plan() -> Plan:
    return Plan(records=120, batch_size=20, steps=12, noise_multiplier=1.0, delta=1e-3)
