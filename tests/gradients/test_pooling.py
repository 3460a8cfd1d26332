"""Max pooling with the channels last gives the bits of torch's own pooling, and so do gradients through it."""

import pytest
import torch
from torch import nn

from assay.gradients.pooling import max_pool

WINDOWS = [
    nn.MaxPool2d(2, stride=1),
    nn.MaxPool2d((3, 2), stride=2, padding=1, ceil_mode=True),
    nn.MaxPool2d(2, dilation=2),
]


@pytest.mark.parametrize("module", WINDOWS, ids=str)
def test_values_and_gradients_are_those_of_torch_to_the_bit(module):
    x = torch.randn(8, 16, 14, 15, generator=torch.Generator().manual_seed(0)).round_()  # ties everywhere
    x[0, :, 2:9] = -torch.inf
    x[1, :, 3, 4] = torch.nan
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = max_pool(module, ours), module(theirs)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    assert torch.equal(ours.grad, theirs.grad)
    assert found.is_contiguous()


def test_what_is_not_for_it_goes_to_torch():
    places = nn.MaxPool2d(2, return_indices=True)
    x = torch.randn(8, 16, 16, 16)
    assert torch.equal(max_pool(places, x)[1], places(x)[1])
    unbatched, last = x[0], x.contiguous(memory_format=torch.channels_last)
    pool = nn.MaxPool2d(2)
    assert torch.equal(max_pool(pool, unbatched), pool(unbatched))
    assert max_pool(pool, last).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(torch.func.vmap(lambda one: max_pool(pool, one))(x), pool(x))
