"""Features in coordinates that pictures of noise suggest: a preconditioner that costs no privacy.

Molina Van den Bosch, Taiello, Sund Aillet, Protani, González Ballester and Serio: "DP-KFC: Data-Free Preconditioning
for Privacy-Preserving Deep Learning", ICML 2026, arXiv:2605.13418. They probe a network with noise whose spectrum is
like that of natural pictures. Before clipping, each record's gradient is multiplied by inverse square roots of the
covariances that they see.

For a linear layer on fixed features only the covariance A of the features matters: at zero weights, that of the errors
is a multiple of the identity, apart from the direction that softmax ignores. Features x become x·A^-power. With power =
0.5 the gradient that is clipped is that of DP-KFC. The layer's weights are in these coordinates as well, so an update
is multiplied by A^-power once more. So 0.25 moves along A^(-1/2), as DP-KFC does, and clips in coordinates between
theirs and plain ones. Other layers, and new probes as training goes on, are not here.

Guarantee: A is a function of constants, so each record's features depend on that record alone (`assay.features`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from assay.errors import ConfigError, check_above_zero, one_of
from assay.features.patches import dead_leaves
from assay.features.pictures import check_picture
from assay.randomness.streams import Seeded

_PROBES = "pink", "leaves"
_FEWEST, _MOST = 250, 20_000
_COLOUR, _SPREAD = 0.3, 0.5  # of pink noise: colour's spread over that of brightness, and that of pixels


@dataclass(frozen=True, kw_only=True)
class Precondition:
    """x·(A + floor·ā)^-power, for the covariance A of the features of generated pictures; ā is its mean eigenvalue.

    Attributes:
        power: 0.25 or 0.5, see above; 0 changes nothing.
        floor: What is added to every eigenvalue of A, over their mean.
        probes: "pink" for noise of spectrum 1/f, "leaves" for dead leaves (`assay.features.patches`).
        count: How many pictures.

    Raises:
        ConfigError: A setting is out of range.
    """

    name: ClassVar[str] = "precondition"

    power: float = 0.25
    floor: float = 0.1
    probes: str = "pink"
    count: int = 1500

    def __post_init__(self) -> None:
        if not 0 <= self.power <= 1:
            raise ConfigError("features precondition power", self.power, "a number from 0 to 1")
        check_above_zero("features precondition floor", self.floor)
        if self.probes not in _PROBES:
            raise ConfigError("features precondition probes", self.probes, one_of(self.probes, _PROBES))
        if not _FEWEST <= self.count <= _MOST:
            raise ConfigError("features precondition count", self.count, f"a whole number from {_FEWEST} to {_MOST}")

    def check(self, shape: tuple[int, ...]) -> None:
        """Accept square pictures of three channels."""
        check_picture(self, shape, least=8, channels=3)
        if shape[1] != shape[2]:
            raise ConfigError("features", self.name, f"square pictures; these have shape {shape}")

    def map_for(self, extract: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """The multiplication. Its mean effect on the probes' lengths is undone."""
        pictures = pink(self.count, shape[1]) if self.probes == "pink" else dead_leaves(self.count, shape[1])
        probed = extract(pictures).flatten(1).double()
        centred = probed - probed.mean(0)
        values, axes = torch.linalg.eigh(centred.T @ centred / len(centred))
        values = values.clamp(min=0.0)
        factors = (values / values.mean() + self.floor) ** -self.power
        factors /= ((factors**2 * values).sum() / values.sum()).sqrt()
        matrix = ((axes * factors) @ axes.T).float()
        return lambda x: (x.flatten(1) @ matrix).view(x.shape)

    def describe(self) -> str:
        """A phrase for the statement."""
        drawn = "noise of spectrum 1/f" if self.probes == "pink" else "dead leaves"
        return (
            f"features times the power -{self.power:g} of their covariance on {self.count} generated pictures ({drawn})"
        )


def pink(count: int, side: int) -> Tensor:
    """The first `count` pictures of noise whose amplitudes fall as 1/f: [count, 3, side, side], pixels from -1 to 1.

    They are the same at every call. Brightness varies more than colour.
    """
    stream = Seeded(0).stream("pink", side)
    steps = torch.fft.fftfreq(side, dtype=torch.float64)
    frequency = (steps[:, None] ** 2 + steps**2).sqrt()
    frequency[0, 0] = frequency[0, 1]
    white = stream.normal((count, 4, side, side), dtype=torch.float64, device="cpu")
    noise = torch.fft.ifft2(torch.fft.fft2(white) / frequency).real
    noise /= noise.flatten(1).std(1).view(-1, 1, 1, 1)
    mixed = (noise[:, :1] + _COLOUR * noise[:, 1:]) / math.sqrt(1 + _COLOUR**2)
    pixels: Tensor = (_SPREAD * mixed).clamp(-1, 1).float()
    return pixels
