"""Products by oneDNN are those of torch, but for rounding, whatever the factors look like in memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from transformers.pytorch_utils import Conv1D

from assay.gradients import products, quickest
from assay.gradients.arithmetic import full_products, keeps_digits
from assay.gradients.engine import Engine

from .oracle import flat_norms, flat_sum, squared_error

ROUNDING = 1e-4  # of float32 sums of up to a thousand terms


@pytest.fixture(params=["torch", "oneDNN"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whatever the clock would say, this one is fastest."""
    monkeypatch.setattr(quickest, "_known", {})
    monkeypatch.setattr(products, "_chosen", {})
    monkeypatch.setattr(quickest, "quickest", lambda runs, _: len(runs) - 1 if request.param == "oneDNN" else 0)
    return str(request.param)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=ROUNDING, atol=ROUNDING * float(b.abs().max()))


@pytest.mark.parametrize("shape", [(200, 128), (8, 25, 128)], ids=str)
@pytest.mark.usefixtures("way")
def test_a_linear_map_and_its_gradient(shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(*shape), torch.randn(96, 128), torch.randn(96)
    wide = torch.randn(*shape[:-1], 256)[..., ::2]  # not contiguous
    for given in (x, x.expand_as(x), wide):
        leaf = given.clone().requires_grad_()
        again = given.clone().requires_grad_()
        out, expected = products.linear(leaf * 1, weight, bias), F.linear(again * 1, weight, bias)
        close(out, expected)
        assert out._base is None or out._base.requires_grad  # the engine records on the base of a view
        slopes = torch.randn_like(out)
        close(*(torch.autograd.grad(o, i, slopes)[0] for o, i in ((out, leaf), (expected, again))))
        close(products.linear(given, weight, None), F.linear(given, weight))


def test_a_weight_that_needs_a_gradient_gets_autograds_own(way: str) -> None:
    x, weight = torch.randn(200, 128), torch.randn(96, 128, requires_grad=True)
    out = products.linear(x, weight, None)
    assert torch.equal(out, F.linear(x, weight)), way
    assert out.requires_grad


def test_a_bias_that_needs_a_gradient_gets_autograds_own(way: str) -> None:
    x, weight, bias = torch.randn(200, 128), torch.randn(96, 128), torch.randn(96, requires_grad=True)
    for given in (x, x.clone().requires_grad_()):
        (found,) = torch.autograd.grad(products.linear(given, weight, bias).sum(), bias)
        assert torch.equal(found, torch.full((96,), 200.0)), way


class Written(nn.Module):
    """A linear map written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(128, 96) / 10)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def only_biases(network: nn.Sequential) -> nn.Sequential:
    """The network with frozen weights."""
    for layer in network:
        if isinstance(layer, nn.Linear):
            layer.weight.requires_grad_(False)
    return network


@pytest.mark.parametrize("sizes", [(64, 128), (128, 64)], ids=str)
@pytest.mark.usefixtures("way")
def test_a_sum_over_rows(sizes: tuple[int, int]) -> None:
    out, inp = sizes
    g, x = torch.randn(300, out), torch.randn(300, inp)
    found = products.summed(g, x)
    close(found, g.t() @ x)
    assert found.is_contiguous()
    close(products.summed(g.double(), x.double()), g.double().t() @ x.double())


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(96, 128), nn.Tanh(), nn.Linear(128, 96)),
        nn.Sequential(nn.Unflatten(1, (3, 32)), nn.Linear(32, 128), nn.Linear(128, 64)),
        nn.Sequential(nn.Unflatten(1, (3, 32)), nn.LSTM(32, 96, batch_first=True)),
        nn.Sequential(nn.Unflatten(1, (3, 32)), nn.LSTM(32, 96, 2, batch_first=True, bidirectional=True)),
        nn.Sequential(Conv1D(128, 96), nn.Tanh(), Conv1D(96, 128)),
        nn.Sequential(weight_norm(nn.Linear(96, 128)), nn.Tanh(), Written()),
        only_biases(nn.Sequential(nn.Linear(96, 128), nn.Tanh(), nn.Linear(128, 96))),
    ],
    ids=["linear", "positions", "lstm", "deep lstm", "transposed", "computed", "biases"],
)
def test_an_engine_finds_the_same_norms_and_sums(network: nn.Sequential) -> None:
    """On later batches, too: the first compares with autograd's gradients, and is computed by torch."""

    def output(x: Tensor) -> Tensor:
        out = network(x)
        return out[0] if isinstance(out, tuple) else out

    x = torch.randn(100, 96)
    plain = Engine(network)
    expected = []
    for _ in range(2):
        grads = plain.collect(squared_error(output(x), torch.ones(())))
        expected.append((flat_norms(grads), flat_sum(grads, torch.ones(100))))
    plain.detach()
    measured = Engine(network, measured=True)
    for norms, sums in expected:
        grads = measured.collect(squared_error(output(x), torch.ones(())))
        close(flat_norms(grads), norms)
        found = flat_sum(grads, torch.ones(100))
        for name, value in sums.items():
            close(found[name], value)
    measured.detach()


@pytest.mark.parametrize("setting", ["of old", "of torch 2.9"])
def test_sums_keep_all_digits_whatever_torch_allows(setting: str) -> None:
    """Where both kinds of settings are used, torch answers the older question with an error."""
    ours, x, weight = torch.backends.mkldnn.matmul, torch.randn(300, 200), torch.randn(100, 200)
    try:
        if setting == "of old":
            torch.set_float32_matmul_precision("medium")
        else:
            setattr(ours, "fp32_precision", "tf32")  # noqa: B010 - torch declares no such attribute
        assert not keeps_digits("mkldnn", "matmul")
        assert torch.allclose(products.linear(x, weight, None), x @ weight.t(), atol=0.1)
        with full_products():
            assert keeps_digits("mkldnn", "matmul")
            assert keeps_digits("mkldnn", "conv")
        assert not keeps_digits("mkldnn", "matmul")
    finally:
        setattr(ours, "fp32_precision", "ieee")  # noqa: B010
        torch.set_float32_matmul_precision("highest")
    assert keeps_digits("mkldnn", "matmul")
