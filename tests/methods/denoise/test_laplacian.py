"""Laplacian smoothing: the exact inverse of A_σ, the paper's γ and β, and what they say about noise."""

import math

import numpy as np
import pytest
import scipy.fft
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import ConfigError
from assay.methods.denoise.laplacian import Laplacian, smooth

SHAPES = {"a": (7, 3, 5), "b": (11,), "c": (), "d": (40, 31)}


def random(d: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(d, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def eigenvalues(sigma: float, d: int) -> np.ndarray:
    return 1 + 4 * sigma * np.sin(np.pi * np.arange(d) / d) ** 2


def gamma(sigma: float, d: int) -> float:
    """Proposition 1: A^(-1/2) multiplies the variance of white noise by it."""
    return float((1 / eigenvalues(sigma, d)).mean())


def beta(sigma: float, d: int) -> float:
    """Proposition 2: A⁻¹ multiplies the variance of white noise by it."""
    return float((1 / eigenvalues(sigma, d) ** 2).mean())


def by_definition(g: torch.Tensor, sigma: float) -> torch.Tensor:
    """Solves (I - σL)x = g with the matrix written out."""
    d = len(g)
    eye = torch.eye(d, dtype=torch.float64)
    laplacian = eye.roll(1, 0) + eye.roll(-1, 0) - 2 * eye
    return torch.linalg.solve(eye - sigma * laplacian, g.double())


def by_one_transform(g: torch.Tensor, sigma: float) -> torch.Tensor:
    """ifft(fft(g)/(1 - σ fft(v))) with v = [-2, 1, 0, ..., 0, 1], as the paper prints it, in extended precision."""
    v = np.zeros(len(g), np.longdouble)
    v[0], v[1], v[-1] = -2, 1, 1
    spectrum = scipy.fft.fft(g.double().numpy().astype(np.longdouble)) / (1 - sigma * scipy.fft.fft(v))
    return torch.from_numpy(scipy.fft.ifft(spectrum).real.astype(np.float64))


@given(d=st.integers(3, 80), sigma=st.floats(0, 1000), seed=st.integers(0, 10**6))
def test_it_solves_the_periodic_system(d, sigma, seed):
    g = random(d, seed=seed)
    torch.testing.assert_close(smooth(g, sigma), by_definition(g, sigma), rtol=0, atol=1e-10)


@pytest.mark.parametrize("sigma", [0.01, 1.0, 3.0, 40.0])
def test_blocks_solve_the_dense_system_too(sigma):
    """Long enough for several overlapping blocks, with a last one that is not full."""
    g = random(2003)
    torch.testing.assert_close(smooth(g, sigma), by_definition(g, sigma), rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [1023, 1024, 1025, 1919, 7850, 26010, 61706, 288618])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0, 300.0])
def test_any_length_agrees_with_one_transform_of_the_whole(d, sigma):
    g = random(d)
    want = by_one_transform(g, sigma)
    of_the_reference = 16 * sigma * float(np.finfo(np.longdouble).eps)  # 1 - σ fft(v) cancels
    assert float((smooth(g, sigma) - want).abs().max()) < 1e-14 + of_the_reference
    single = smooth(g.float(), sigma)
    assert single.dtype == torch.float32
    assert float((single - by_one_transform(g.float(), sigma)).abs().max()) < 2e-6


def test_a_spike_anywhere_gives_the_kernel_of_lemma_7():
    """α^|k|/√(1+4σ): at the ends of the vector and of the blocks as anywhere else."""
    d, sigma = 5000, 2.0
    alpha = (1 + 2 * sigma - math.sqrt(1 + 4 * sigma)) / (2 * sigma)
    for at in (0, 1, 40, 980, 1000, 1024, 2500, d - 1):
        g = torch.zeros(d, dtype=torch.float64)
        g[at] = 1
        distance = (torch.arange(d) - at).abs()
        distance = torch.minimum(distance, d - distance)
        want = alpha ** distance.double() / math.sqrt(1 + 4 * sigma)
        torch.testing.assert_close(smooth(g, sigma), want, rtol=0, atol=2e-16)


def test_one_and_two_coordinates_follow_the_eigenvalues():
    assert smooth(torch.tensor([3.0]), 5.0).tolist() == [3.0]
    mean, half = 2.0, 1.0
    got = smooth(torch.tensor([mean + half, mean - half], dtype=torch.float64), 1.0)
    torch.testing.assert_close(got, torch.tensor([mean + half / 5, mean - half / 5], dtype=torch.float64))
    assert smooth(torch.zeros(0), 1.0).shape == (0,)


@given(d=st.integers(1, 5000), sigma=st.floats(0, 50), seed=st.integers(0, 10**6))
def test_the_sum_is_kept_and_the_norm_does_not_grow(d, sigma, seed):
    g = random(d, seed=seed)
    got = smooth(g, sigma)
    assert abs(float(got.sum() - g.sum())) < 1e-11
    assert float(got.norm()) <= float(g.norm()) * (1 + 1e-14)
    assert float(got.abs().max()) <= float(g.abs().max()) * (1 + 1e-13), "an average with non-negative weights"


@pytest.mark.parametrize("d", [1000, 10_000, 100_000])
def test_gamma_and_beta_are_the_papers_tables_3_and_4(d):
    assert [f"{gamma(sigma, d):.3f}" for sigma in range(1, 6)] == ["0.447", "0.333", "0.277", "0.243", "0.218"]
    assert [f"{beta(sigma, d):.3f}" for sigma in range(1, 6)] == ["0.268", "0.185", "0.149", "0.128", "0.114"]


def test_no_smoothing_shrinks_nothing():
    g = random(3000)
    assert torch.equal(smooth(g, 0.0), g)


@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_noise_shrinks_by_beta_and_by_gamma_in_the_norm_of_a(sigma):
    """Both are Σ w_k z_k² /d with weights at most 1, so their standard errors are at most √(2/d): within 6 of them,
    false alarms below 1e-8."""
    d = 400_000
    g = random(d, seed=3)
    smoothed = smooth(g, sigma)
    assert abs(float(smoothed.square().mean()) - beta(sigma, d)) < 6 * math.sqrt(2 / d)
    assert abs(float((g * smoothed).mean()) - gamma(sigma, d)) < 6 * math.sqrt(2 / d), "‖A^(-1/2) g‖²/d"


def gradients(dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    return {name: random(math.prod(shape), dtype, seed=i).view(shape) for i, (name, shape) in enumerate(SHAPES.items())}


def test_over_the_vector_runs_through_all_parameters_in_their_order():
    grads = gradients()
    got = Laplacian(sigma=2.0)(grads, 0.1)
    assert list(got) == list(grads)
    want = by_definition(torch.cat([v.flatten() for v in grads.values()]), 2.0)
    torch.testing.assert_close(torch.cat([v.flatten() for v in got.values()]), want, rtol=0, atol=1e-12)
    assert {name: v.shape for name, v in got.items()} == SHAPES


def test_over_tensors_smooths_each_by_itself():
    grads = gradients()
    got = Laplacian(sigma=2.0, over="tensor")(grads, 0.1)
    assert {name: v.shape for name, v in got.items()} == SHAPES
    for name in ("a", "b", "d"):
        torch.testing.assert_close(got[name].flatten(), by_definition(grads[name].flatten(), 2.0), rtol=0, atol=1e-12)
    assert torch.equal(got["c"], grads["c"])


@pytest.mark.parametrize("over", ["vector", "tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_types_and_layouts_of_memory_do_not_matter(over, dtype):
    grads = gradients(torch.float32)
    grads = {name: v.to(dtype) for name, v in grads.items()}
    plain = Laplacian(over=over)(grads, 0.1)
    turned = {n: v.transpose(0, -1).contiguous().transpose(0, -1) if v.dim() > 1 else v for n, v in grads.items()}
    assert not turned["a"].is_contiguous()
    for name, value in Laplacian(over=over)(turned, 0.1).items():
        assert value.dtype == dtype
        assert torch.equal(value, plain[name])


def test_nothing_in_nothing_out():
    assert dict(Laplacian()({}, 0.1)) == {}
    assert dict(Laplacian(over="tensor")({}, 0.1)) == {}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"sigma": -0.1}, "laplacian sigma"),
        ({"sigma": math.nan}, "laplacian sigma"),
        ({"sigma": math.inf}, "laplacian sigma"),
        ({"over": "layer"}, "laplacian over"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(settings, field):
    with pytest.raises(ConfigError) as refused:
        Laplacian(**settings)
    assert refused.value.field == field
