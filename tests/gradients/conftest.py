"""Every test of the gradient engine starts from the same random numbers."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(20)
