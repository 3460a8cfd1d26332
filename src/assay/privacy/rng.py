"""Randomness: where noise and samples come from, and what that is worth.

A `Randomness` gives a `Stream` of numbers for each purpose and step. The same purpose and step always give the
same numbers within one `Randomness`, and different ones independent numbers; a run can therefore be taken up at any
step without storing the state of a generator (whoever has it can subtract the noise). For the same reason one
purpose and step must serve one release only.

Three kinds: `OsSeeded`, the default; `Seeded`, for results that must repeat, which are then not private; and
`Secure`, slower, for adversaries who attack the generator itself.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from assay.errors import AssayError, ConfigError


class Stream(Protocol):
    """Random numbers for one purpose and step. Calls continue the stream: no number is given twice."""

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Independent standard normal numbers, with tails beyond 8 standard deviations."""
        ...

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Independent Laplace numbers of scale 1, with tails beyond 30."""
        ...

    def uniform(self, n: int) -> Tensor:
        """Independent multiples of 2⁻⁵³ from [0, 1), float64 on the CPU: `u < q` happens with probability q ± 2⁻⁵³."""
        ...

    def integers(self, high: int, n: int) -> Tensor:
        """Independent whole numbers, uniform on [0, high), int64 on the CPU."""
        ...


class Randomness(Protocol):
    """A source of streams."""

    @property
    def reproducible(self) -> bool:
        """Whether somebody else can have the same numbers."""
        ...

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step."""
        ...

    def describe(self) -> str:
        """A phrase for the privacy statement."""
        ...


class OsSeeded:
    """Streams from a key of 256 bits that the operating system chose.

    The key lives in memory only: it is not shown, and pickling or copying is refused. Keys of different streams come
    out of BLAKE2b and tell nothing of each other. The numbers of one stream are those of an ordinary generator, which
    was not made to withstand an adversary who knows all of a release but one record and does the algebra: see `Secure`.
    """

    reproducible = False
    __slots__ = ("_key",)

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step, in this process only."""
        return _Generated(_derived(self._key, purpose, step))

    def describe(self) -> str:
        """For the statement."""
        return "generator seeded from the operating system; the seed was never stored"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "the key of OsSeeded is secret: make a new OsSeeded() instead of pickling or copying one"
        )


class Seeded:
    """Streams from a seed of the user: bitwise the same in every run. Whoever knows the seed can subtract the noise."""

    reproducible = True
    __slots__ = ("_key", "seed")

    def __init__(self, seed: int) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
            raise ConfigError("seed", seed, "a whole number from 0 to 2⁶⁴ - 1")
        self.seed = seed
        self._key = hashlib.blake2b(seed.to_bytes(8, "little"), digest_size=32, person=b"assay seed").digest()

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this seed, purpose and step."""
        return _Generated(_derived(self._key, purpose, step))

    def describe(self) -> str:
        """For the statement."""
        return f"fixed seed {self.seed}: reproducible, not private"


class Secure:
    """Every number straight from the operating system's cryptographic generator (`os.urandom`)."""

    reproducible = False
    __slots__ = ()

    def stream(self, purpose: str, step: int) -> Stream:  # noqa: ARG002
        """Fresh numbers; nothing can bring them back, not even this object."""
        return _System()
