"""Noise in the frequency domain is drawn without a transform, but must have the distribution of the paper's."""

import math

import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent, NonPrivateDpEvent

from assay.mechanisms.spectral import Spectral
from assay.mechanisms.types import Bounded
from assay.randomness.streams import Seeded

N = 200_000
# Sample covariances of N draws of unit scale lie within t·√(2/N) of their expectation but for a probability of about
# 2e^(-t²/2) each; 6.5 leaves 1e-6 over all entries of an 18×18 matrix.
SLACK = 6.5 * math.sqrt(2 / N)


def literal(shape, axes, a, b, seed) -> torch.Tensor:
    """Re(IDFT(a·x + i·b·y)) over `axes`, unitary, N draws."""
    source = torch.Generator().manual_seed(seed)
    real, imaginary = (torch.randn(N, *shape, generator=source, dtype=torch.float64) for _ in range(2))
    spectrum = torch.complex(a * real, b * imaginary)
    return torch.fft.ifftn(spectrum, dim=[axis + 1 for axis in axes], norm="ortho").real.flatten(1)


@pytest.mark.parametrize(("a", "b"), [(math.sqrt(0.5), math.sqrt(0.5)), (1.0, 0.0), (0.6, 0.8)])
@pytest.mark.parametrize(("shape", "axes"), [((1, 2, 3, 3), (2, 3)), ((1, 2, 4), (2,)), ((5,), (0,)), ((2, 4), (1,))])
def test_covariance_is_that_of_the_papers_transform(a, b, shape, axes):
    noise = Spectral(multiplier=2.0, reference=0.5, a=a, b=b)
    size = math.prod(shape)
    # N draws at once: the leading axis is not transformed for shapes of three and more axes, else one tensor a draw
    if len(shape) > 2:
        stacked = torch.zeros(N * shape[0], *shape[1:], dtype=torch.float64)
        drawn = noise.release(Bounded({"w": stacked}, 1.0), Seeded(3).stream("noise", 0)).value["w"].reshape(N, size)
    else:
        rows = shape[0] if len(shape) == 2 else 1
        stacked = torch.zeros(N * rows, shape[-1], dtype=torch.float64)
        drawn = noise.release(Bounded({"w": stacked}, 1.0), Seeded(3).stream("noise", 0)).value["w"].reshape(N, size)
    ours = drawn.t() @ drawn / N
    theirs = literal(shape, axes, a, b, seed=4)
    theirs = theirs.t() @ theirs / N
    assert float((ours - theirs).abs().max()) < 2 * SLACK


def test_mirrored_coordinates_share_real_valued_noise_exactly():
    noise = Spectral(multiplier=1.0, reference=1.0, a=1.0, b=0.0)
    value = noise.release(
        Bounded({"w": torch.zeros(16, dtype=torch.float64)}, 1.0), Seeded(0).stream("noise", 0)
    ).value["w"]
    assert float((value[3] - value[13]).abs()) < 1e-15
    assert float((value[1:] - value[1:].flip(0)).abs().max()) < 1e-15


@pytest.mark.parametrize(
    ("a", "b", "event"),
    [
        (1.0, 0.0, NonPrivateDpEvent()),
        (0.0, 1.0, NonPrivateDpEvent()),
        (0.6, 0.8, GaussianDpEvent(3.0 * 0.6 * 0.5 / 2.0)),
    ],
)
def test_the_event_is_that_of_the_weaker_part(a, b, event):
    noise = Spectral(multiplier=3.0, reference=0.5, a=a, b=b)
    assert noise.release(Bounded({}, 2.0), Seeded(0).stream("noise", 0)).event == event
