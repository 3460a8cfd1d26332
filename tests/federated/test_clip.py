"""An update is bounded whatever it holds, and only floating-point tensors are in it."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.federated.layout import Layout, clipped

from . import tiny

numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)


def norm(vector):
    return math.sqrt(math.fsum(float(v) ** 2 for v in vector))


@given(st.lists(numbers, max_size=8), st.floats(1e-3, 1e3))
def test_the_norm_is_at_most_the_bound(values, bound):
    vector = torch.tensor(values, dtype=torch.float32)
    out = clipped(vector, bound)
    assert norm(out) <= bound * (1 + 1e-15)
    if not torch.isfinite(vector).all():
        assert not out.any()
    elif norm(vector.double()) <= bound * (1 - 1e-9):
        assert torch.equal(out, vector.double()), "what is within the bound stays as it is"
    else:
        wide = vector.double()
        assert torch.allclose(out, wide * (bound / norm(wide)), rtol=1e-6)


def test_numbers_whose_squares_overflow():
    out = clipped(torch.tensor([1e200, -1e200], dtype=torch.float64), 2.0)
    assert 0.5 < norm(out) <= 2.0


def test_zero_stays_zero_and_empty_stays_empty():
    assert not clipped(torch.zeros(3), 1.0).any()
    assert clipped(torch.zeros(0), 1.0).shape == (0,)


def test_whole_numbers_are_not_in_the_vector():
    model = tiny.model()
    layout = Layout.of(model)
    assert "seen" not in layout.shapes
    assert set(layout.shapes) == {"linear.weight", "linear.bias", "shift"}
    assert layout.size == 12 + 3 + 2
    vector = layout.vector(model)
    model.seen += 3
    layout.load(model, vector + 1)
    assert torch.equal(layout.vector(model), vector + 1)
    assert int(model.seen) == 3


def test_where_records_are_protected_buffers_stay_at_home():
    assert set(Layout.of(tiny.model(), parameters_only=True).shapes) == {"linear.weight", "linear.bias"}
