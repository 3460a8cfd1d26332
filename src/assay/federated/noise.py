"""Where the noise comes from: the server, each client by itself, or all clients together.

A client's vector (its update, or what a method makes of it) is bounded by C. Each kind of noise says how the vector is
sent, what the server makes of it, and what one participation costs. Noise is relative to C.

- `Central`: the client sends its clipped vector. The server is trusted, but believes no client: it clips again. Then it
  adds N(0, σ²C²) to the sum once and divides by the expected number of clients, a constant. Who was drawn stays hidden.
- `Local`: the client adds N(0, σ²C²) itself. Whatever the server does, each message is private by itself.
- `Distributed`: each client adds a discrete Gaussian share of the noise and sends integers modulo 2^k. An aggregator
  can add these up without seeing any of them. The guarantee is for the sum, and needs a minimum number of shares.
- `Released`: the vector is already private (it is the result of DP-SGD on the client's records) and is sent as it is.

For `Local`, `Distributed` and `Released` the server sees who answers, so an average is over those who did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent, NonPrivateDpEvent, ZCDpEvent
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import ConfigError
from assay.federated.integers import bits_for, discrete_gaussian, packed, summed
from assay.federated.layout import clipped
from assay.mechanisms.gaussian import Gaussian, gaussian_event
from assay.mechanisms.types import Bounded
from assay.randomness.streams import Stream

Array = NDArray[Any]


class Noise(Protocol):
    """How vectors of norm at most C become a private average."""

    @property
    def event(self) -> DpEvent:
        """What one participation costs, before amplification, relative to what one client contributes."""
        ...

    @property
    def dtype(self) -> str:
        """The type of the array on the wire, which has a number for each coordinate."""
        ...

    def send(self, vector: Tensor, stream: Stream) -> Array:
        """At the client: clip, and add noise if that is the client's task."""
        ...

    def average(self, received: Sequence[Array], size: int, stream: Stream) -> Tensor | None:
        """At the server: the released average, in float64; None if this round must not be opened."""
        ...


@dataclass(frozen=True)
class Central:
    """Gaussian noise by a trusted server."""

    bound: float
    multiplier: float
    expected: int
    dtype: str = "float32"

    @property
    def event(self) -> DpEvent:
        """A Gaussian release of multiplier σ."""
        return gaussian_event(self.multiplier)

    def send(self, vector: Tensor, stream: Stream) -> Array:  # noqa: ARG002
        """Clipped only: the server is trusted with it."""
        return clipped(vector, self.bound).float().numpy()

    def average(self, received: Sequence[Array], size: int, stream: Stream) -> Tensor:
        """Each clipped again; noise is added even if nobody answered."""
        total = torch.zeros(size, dtype=torch.float64)
        for array in received:
            total += clipped(torch.from_numpy(array.astype(np.float64)), self.bound)
        noisy = Gaussian(multiplier=self.multiplier).release(Bounded({"": total}, self.bound), stream)
        return noisy.value[""] / self.expected


@dataclass(frozen=True)
class Local:
    """Gaussian noise by each client."""

    bound: float
    multiplier: float
    dtype: str = "float32"

    @property
    def event(self) -> DpEvent:
        """A Gaussian release of multiplier σ."""
        return gaussian_event(self.multiplier)

    def send(self, vector: Tensor, stream: Stream) -> Array:
        """Clipped, with noise, and only then rounded to float32."""
        private = Gaussian(multiplier=self.multiplier).release(
            Bounded({"": clipped(vector, self.bound)}, self.bound), stream
        )
        return private.value[""].float().numpy()

    def average(self, received: Sequence[Array], size: int, stream: Stream) -> Tensor:  # noqa: ARG002
        """Over those who answered."""
        return _plain_average(received, size)


@dataclass(frozen=True)
class Distributed:
    """Discrete Gaussian noise in shares.

    Kairouz, Liu and Steinke, "The distributed discrete Gaussian mechanism for federated learning with secure
    aggregation", 2021 (arXiv:2102.06387). A vector is put on a grid by rounding towards zero, so the integers have norm
    at most Δ = C/grid, exactly. Each client adds discrete Gaussians of standard deviation s. By theorem 1 there, the
    sum of n such shares protects one client with ρ-zero-concentrated privacy for

        ρ = ½ (Δ²/(n s²) + τd/2),   τ = 10 Σ_{k<n} exp(-2π² s² k/(k+1)),

    and s is at least 256, so that τ is below the smallest positive number of floating point. Reducing modulo 2^k is
    post-processing.

    Shares are made for `minimum` clients: Δ/(√minimum s) ≤ 1/σ. If more answer, there is more noise. If fewer do, the
    sum must not be opened: the round is refused, and stays charged. A client that lies about its share removes that
    share of the noise, so `minimum` counts honest clients. The aggregator must reveal the sum only, and only of at
    least `minimum` clients.
    """

    bound: float
    multiplier: float
    minimum: int
    expected: int
    clients: int
    size: int

    def __post_init__(self) -> None:
        if self.multiplier <= 0:
            raise ConfigError("noise_multiplier", self.multiplier, "a number above 0 with distributed noise")

    @property
    def share(self) -> float:
        """s, in grid steps."""
        return max(256.0, 1024 * self.multiplier / math.sqrt(self.minimum))

    @property
    def reach(self) -> int:
        """Δ: the bound in grid steps, a whole number, rounded down."""
        return int(self.share * math.sqrt(self.minimum) / self.multiplier)

    @property
    def bits(self) -> int:
        """k."""
        largest = self.expected * self.reach + 10 * math.sqrt(self.expected) * self.share
        return max(16, bits_for(largest))

    @property
    def dtype(self) -> str:
        """Residues."""
        return f"uint{self.bits}"

    @property
    def event(self) -> DpEvent:
        """ρ as above."""
        tau = 10 * self.clients * math.exp(-(math.pi**2) * self.share**2)  # k/(k+1) ≥ ½
        return ZCDpEvent(0.5 * (self.reach**2 / (self.minimum * self.share**2) + tau * self.size / 2))

    def send(self, vector: Tensor, stream: Stream) -> Array:
        """Clipped, on the grid, with a share of the noise."""
        whole = (clipped(vector, self.bound) * (self.reach / self.bound)).trunc().long().numpy()
        return packed(whole + discrete_gaussian(self.share, len(whole), stream), self.bits)

    def average(self, received: Sequence[Array], size: int, stream: Stream) -> Tensor | None:  # noqa: ARG002
        """Over those who answered; None if they are too few."""
        if len(received) < self.minimum:
            return None
        total = torch.from_numpy(summed(received, self.bits)).double()
        return total * (self.bound / self.reach / len(received))


@dataclass(frozen=True)
class Released:
    """No noise: the vector is already private, or a published method leaves it unprotected."""

    dtype: str = "float32"

    @property
    def event(self) -> DpEvent:
        """Nothing is protected here."""
        return NonPrivateDpEvent()

    def send(self, vector: Tensor, stream: Stream) -> Array:  # noqa: ARG002
        """As it is; zeros for what is not a number."""
        return clipped(vector, math.inf).float().numpy()

    def average(self, received: Sequence[Array], size: int, stream: Stream) -> Tensor:  # noqa: ARG002
        """Over those who answered."""
        return _plain_average(received, size)


def _plain_average(received: Sequence[Array], size: int) -> Tensor:
    total = torch.zeros(size, dtype=torch.float64)
    for array in received:
        total += torch.from_numpy(array.astype(np.float64))
    return total / max(1, len(received))
