"""The scattering transform (Mallat 2012; Bruna and Mallat 2013): wavelets, modulus, local averages. No learned constant.

As features for private training: Tramèr and Boneh 2021, "Differentially private learning needs better features (or much
more data)". Computed by kymatio's two-dimensional torch front end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from assay.errors import ConfigError
from assay.features.pictures import check_installed, check_picture

_NORMS = ("group", "none")
_TOGETHER = 3  # channels normalised together: Tramèr and Boneh take 27 groups of 81 channels


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Orders 0 to 2 at J scales and L angles: (1 + JL + L²J(J-1)/2) maps a channel, each side divided by 2^J.

    `norm=group` brings each group of three maps of each record to mean 0 and variance 1 (GroupNorm without parameters):
    statistics of that record, never of the data.
    """

    name: ClassVar[str] = "scatter"

    J: int = 2
    L: int = 8
    norm: str = "group"

    def __post_init__(self) -> None:
        for field in ("J", "L"):
            if getattr(self, field) < 1:
                raise ConfigError(f"features scatter {field}", getattr(self, field), "a whole number, 1 or above")
        if self.norm not in _NORMS:
            raise ConfigError("features scatter norm", self.norm, "one of " + ", ".join(_NORMS))

    def check(self, shape: tuple[int, ...]) -> None:
        check_installed(self.name, ["kymatio"])
        check_picture(self.name, shape, least=2**self.J)

    def made_with(self) -> str:
        return f"kymatio {version('kymatio')}"

    def extract(self, x: Tensor) -> Tensor:
        maps: Tensor = _transform(self.J, self.L, tuple(x.shape[2:]))(x.contiguous()).flatten(1, 2)
        if self.norm == "none":
            return maps
        channels = maps.shape[1]
        return F.group_norm(maps, channels // _TOGETHER if channels % _TOGETHER == 0 else 1)

    def describe(self) -> str:
        scaled = ", each group of maps of a record brought to mean 0 and variance 1" if self.norm == "group" else ""
        return f"scattering transform with {self.J} scales and {self.L} angles{scaled} ({self.made_with()})"


@lru_cache(maxsize=4)
def _transform(J: int, L: int, shape: tuple[int, ...]) -> Any:
    # the package's own entry point imports parts that current SciPy no longer has
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    return ScatteringTorch2D(J=J, shape=shape, L=L)
