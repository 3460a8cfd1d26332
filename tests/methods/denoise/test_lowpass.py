"""The low-pass filter: a projection onto low frequencies that keeps real gradients real."""

import pytest
import torch

from assay.mechanisms.frequencies import low_frequencies, spectral_axes
from assay.methods.denoise.lowpass import LowPass


@pytest.mark.parametrize("shape", [(2, 3, 5, 5), (2, 2, 8), (1, 1, 7), (3, 1, 3, 3), (2, 2, 4, 6)])
@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9, 1.0])
def test_it_is_an_orthogonal_projection_onto_conjugate_pairs(shape, rho):
    value = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    filtered = LowPass(rho=rho)({"w": value.clone()}, 0.1)["w"]
    assert filtered.shape == value.shape
    assert torch.allclose(LowPass(rho=rho)({"w": filtered.clone()}, 0.1)["w"], filtered, atol=1e-12)
    assert float((filtered * (value - filtered)).sum().abs()) < 1e-10
    axes = spectral_axes(shape)
    spectrum = torch.fft.fftn(filtered, dim=axes)
    mirrored = spectrum.conj().flip(axes).roll([1] * len(axes), axes)
    assert torch.allclose(spectrum, mirrored, atol=1e-10)
    assert torch.allclose(filtered.mean(axes), value.mean(axes)), "the mean is the lowest frequency"


def test_all_frequencies_change_nothing():
    value = torch.randn(2, 2, 8, dtype=torch.float64)
    assert torch.allclose(LowPass(rho=1.0)({"w": value.clone()}, 0.1)["w"], value, atol=1e-12)


def kept(sizes, rho) -> int:
    half = low_frequencies(sizes, rho)
    full = torch.fft.irfftn(
        torch.fft.rfftn(
            torch.eye(torch.Size(sizes).numel(), dtype=torch.float64).view(-1, *sizes),
            dim=list(range(1, len(sizes) + 1)),
        )
        * half,
        s=sizes,
        dim=list(range(1, len(sizes) + 1)),
    )
    return round(float(full.flatten(1).trace()))


@pytest.mark.parametrize(
    ("sizes", "rho", "count"),
    [((8,), 0.5, 3), ((8,), 0.6, 5), ((8,), 0.1, 1), ((3, 3), 0.5, 5), ((5, 5), 0.5, 13), ((7,), 1.0, 7)],
)
def test_the_number_kept_is_the_nearest_that_symmetry_allows(sizes, rho, count):
    assert kept(sizes, rho) == count


def test_noise_loses_what_the_filter_takes():
    """White noise keeps K/N of its variance; 2·10⁶ draws, five standard errors are below 1e-6."""
    noise = torch.randn(1, 250_000, 8, generator=torch.Generator().manual_seed(1))
    filtered = LowPass(rho=0.5)({"w": noise}, 1.0)["w"]
    assert abs(float(filtered.square().mean()) - 3 / 8) < 5 * (2 * 3 / 8 / 2e6) ** 0.5


def test_vectors_and_matrices_stay_as_they_are():
    value = {"bias": torch.randn(5), "weight": torch.randn(3, 4)}
    assert LowPass(rho=0.1)(value, 0.1)["weight"] is value["weight"]


def test_the_published_filter_is_that_of_the_authors_code():
    """A block of eight at ρ = ½: rank 7, the mean whole and six directions by half. Maps are inverted by `irfftn`."""
    published = LowPass(rho=0.5, one_sided=True)
    matrix = published({"w": torch.eye(8, dtype=torch.float64).view(8, 1, 8)}, 0.1)["w"].view(8, 8)
    assert torch.linalg.eigvalsh(matrix).tolist() == pytest.approx([0.0] + [0.5] * 6 + [1.0], abs=1e-12)
    for sides in ((5, 7), (6, 8), (4, 5)):
        value = torch.randn(3, 2, *sides, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        spectrum = torch.fft.fftn(value, dim=(2, 3))
        spectrum[:, :, -(-sides[0] // 2) :, :] = 0
        spectrum[:, :, :, -(-sides[1] // 2) :] = 0
        expected = torch.fft.irfftn(spectrum, s=sides, dim=(2, 3))
        assert torch.allclose(published({"w": value}, 0.1)["w"], expected, atol=1e-12)
