"""Gradients in the frequency domain (GReDP, arXiv:2409.11663, Eq. 14-20; Spectral-DP, arXiv:2307.13231).

The unitary Fourier transform keeps every norm (Parseval) and takes white noise to white noise. So transforming a
gradient, clipping it, adding Hermitian noise and transforming back gives, in distribution, what clipping and noise
without a transform give. Therefore we transform nothing here that need not be. Two things make a difference:

- The domain. `kernel` transforms the gradient of a convolution kernel itself. `full` takes the whole correlation of
  input and output gradient, as large as the padded input. The kernel's gradient is its leading corner (Eq. 15-16). Its
  norm is larger, so clipping leaves less of the gradient.
- The filter. `assay.methods.denoise.lowpass` keeps a share ρ of the frequencies after the noise. In the full domain it
  acts on the whole map, before the corner is cut out. Where the noise is white, no map is needed
  (`assay.gradients.rules.correlation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from assay._util.lazy import torch
from assay.errors import ConfigError, one_of
from assay.methods.denoise.lowpass import LowPass

if TYPE_CHECKING:
    from torch import nn

    from assay.gradients.rules.correlation import FullCorrelationRule
    from assay.gradients.rules.layers import ExpandRule, Rules, TapeRule
    from assay.methods.chain import Chain

DOMAINS = ("kernel", "full")


def rules(domain: str, *, maps: bool, rho: float = 1.0, one_sided: bool = False) -> Rules:
    """The layer rules of a domain.

    Args:
        domain: "kernel" or "full".
        maps: whether the sum keeps the whole correlation, or only its corner, filtered where ρ < 1.
        rho: ρ.
        one_sided: which filter that is (`assay.methods.denoise.lowpass`).

    Raises:
        ConfigError: there is no such domain.
    """
    if domain not in DOMAINS:
        raise ConfigError("domain", domain, one_of(domain, DOMAINS))
    if domain == "kernel":
        return {}
    return WholeCorrelations(maps, rho if rho < 1 and not maps else None, one_sided)


@dataclass(frozen=True)
class WholeCorrelations(Mapping[Any, Any]):
    """The same rule for every convolution, made when the first model asks for it: a plan's ε needs none."""

    maps: bool
    rho: float | None
    one_sided: bool = False

    @cached_property
    def _rule(self) -> FullCorrelationRule:
        from assay.gradients.rules.correlation import FullCorrelationRule

        return FullCorrelationRule(maps=self.maps, rho=self.rho, one_sided=self.one_sided)

    def _layers(self) -> tuple[type[nn.Module], ...]:
        return torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d

    def __getitem__(self, layer: type[nn.Module]) -> TapeRule | ExpandRule:
        if layer not in self._layers():
            raise KeyError(layer)
        return self._rule

    def __iter__(self) -> Iterator[type[nn.Module]]:
        return iter(self._layers())

    def __len__(self) -> int:
        return 3


@dataclass(frozen=True, kw_only=True)
class SpectralDomain:
    """Clips in the frequency domain and keeps a share ρ of the frequencies.

    Attributes:
        domain: "kernel" or "full".
        rho: ρ, above 0 and at most 1.

    Raises:
        ConfigError: there is no such domain, or ρ is outside its range.
    """

    name: ClassVar[str] = "spectral"

    domain: str = "kernel"
    rho: float = 1.0

    def __post_init__(self) -> None:
        rules(self.domain, maps=False)
        LowPass(rho=self.rho)

    def applied(self, chain: Chain) -> Chain:
        """The chain in this domain."""
        if chain.rules or chain.decode:
            raise ConfigError("encode", "spectral", "once: this method works in the frequency domain already")
        filtered = self.rho < 1
        return replace(
            chain,
            rules=rules(self.domain, maps=chain.micro > 1 or not chain.noise.white, rho=self.rho),
            decode=(LowPass(rho=self.rho),) if filtered else (),
        )


ENCODING = SpectralDomain
