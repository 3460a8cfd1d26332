from __future__ import annotations

from typing import Any

import pytest
import torch

from assay.data import DataBundle
from assay.errors import ConfigError


def bundle(**changes: Any) -> DataBundle:
    fields: dict[str, Any] = {
        "name": "own",
        "train_x": torch.zeros(4, 3),
        "train_y": torch.tensor([0, 1, 0, 1]),
        "test_x": torch.ones(2, 3),
        "test_y": torch.tensor([1, 0]),
        "classes": 2,
        "unit": "one person",
        "notes": "",
        "source": "a test",
    }
    return DataBundle(**(fields | changes))


def test_gives_torch_data_sets_of_features_and_label() -> None:
    data = bundle()
    assert data.input_shape == (3,)
    assert (len(data.train), len(data.test)) == (4, 2)
    x, y = data.test[0]
    assert torch.equal(x, torch.ones(3))
    assert y == 1


def test_its_repr_shows_no_records() -> None:
    assert "tensor" not in repr(bundle())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train_x", torch.zeros(4, 3, dtype=torch.float64)),
        ("train_x", torch.zeros(4)),
        ("train_y", torch.zeros(4)),
        ("train_y", torch.zeros(3, dtype=torch.int64)),
        ("train_y", torch.tensor([0, 1, 0, 2])),
        ("train_y", torch.tensor([0, 1, 0, -1])),
        ("test_x", torch.ones(2, 4)),
        ("test_y", torch.tensor([0, 2])),
    ],
)
def test_refuses_what_breaks_its_guarantee_by_field(field: str, value: torch.Tensor) -> None:
    with pytest.raises(ConfigError) as caught:
        bundle(**{field: value})
    assert caught.value.field == field


def test_refuses_a_split_without_records() -> None:
    with pytest.raises(ConfigError, match="no records"):
        bundle(test_x=torch.zeros(0, 3), test_y=torch.zeros(0, dtype=torch.int64))
