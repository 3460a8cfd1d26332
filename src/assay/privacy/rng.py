"""Randomness: where noise and samples come from, and what that is worth.

A `Randomness` gives a `Stream` of numbers for each purpose and step. The same purpose and step always give
the same numbers within one `Randomness`, and different ones independent numbers; a run can therefore be
taken up at any step without storing the state of a generator (whoever has it can subtract the noise). For
the same reason one purpose and step must serve one release only.

Three kinds: `OsSeeded`, the default; `Seeded`, for results that must repeat, which are then not private;
and `Secure`, slower, against adversaries who attack the generator itself.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError, ConfigError


class Stream(Protocol):
    """Random numbers for one purpose and step. Calls go on in the stream: no number is given twice."""

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Independent standard normal numbers; the tails reach beyond 8 standard deviations."""
        ...

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Independent Laplace numbers of scale 1; the tails reach beyond 36."""
        ...

    def uniform(self, n: int) -> Tensor:
        """Independent uniform multiples of 2⁻⁵³ in [0, 1), in float64 on the CPU, so that P(u < q) = q ± 2⁻⁵³."""
        ...

    def integers(self, high: int, n: int) -> Tensor:
        """Independent whole numbers, uniform on [0, high) to within high/2⁵³, int64 on the CPU."""
        ...


class Randomness(Protocol):
    """A source of streams."""

    @property
    def reproducible(self) -> bool:
        """Whether somebody else can get the same numbers."""
        ...

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step."""
        ...

    def describe(self) -> str:
        """A phrase for the privacy statement."""
        ...


class _OsKey:
    """A key of 256 bits that the operating system chose. It lives in memory only and is never shown."""

    __slots__ = ("_key",)

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"the key of {name} is secret: make a new {name}() instead of pickling or copying one")


class OsSeeded(_OsKey):
    """Ordinary generators, each with a full state of its own derived from a key of the operating system.

    What one stream gives away says nothing of another (the noise of a small model's consecutive steps may come out of one,
    see `assay.privacy.blocks`). Within one, the numbers are those of the Mersenne Twister, which obeys linear relations:
    an adversary who knows a release but for one record could test those. Against that, take `Secure`.
    """

    __slots__ = ()
    reproducible = False

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step, in this process only."""
        return _Generated(_hash(self._key, purpose, step))

    def describe(self) -> str:
        """For the statement."""
        return "generator seeded by the operating system; the seed was never stored"


class Secure(_OsKey):
    """SHAKE-256 with a key of the operating system: to tell its numbers from random ones is to break SHA-3.

    Numbers are made in float64 from 64 random bits each by inverting the distribution function, one bit for
    the sign: 2⁻⁶⁴ of the probability is cut off, at 9 standard deviations. What adding such numbers to
    float32 gradients does to the last bits of a release (Mironov 2012) is no matter of the generator and
    remains. Some 60 ns a normal number on one core, against 10 of `OsSeeded`.
    """

    __slots__ = ()
    reproducible = False

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step, in this process only."""
        return _Hashed(_hash(self._key, purpose, step))

    def describe(self) -> str:
        """For the statement."""
        return "cryptographically secure generator (SHAKE-256) keyed by the operating system; the key was never stored"


class Seeded:
    """As `OsSeeded`, from a seed of the user: bitwise the same in every run on the CPU.

    Whoever knows the seed can subtract the noise.
    """

    __slots__ = ("_key", "seed")
    reproducible = True

    def __init__(self, seed: int) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
            raise ConfigError("seed", seed, "a whole number from 0 to 2⁶⁴ - 1")
        self.seed = seed
        self._key = hashlib.blake2b(seed.to_bytes(8, "little"), digest_size=32, person=b"assay seed").digest()

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this seed, purpose and step."""
        return _Generated(_hash(self._key, purpose, step))

    def describe(self) -> str:
        """For the statement."""
        return f"fixed seed {self.seed}: reproducible, not private"


def check_source(seed: int | None, secure: bool) -> None:
    """Refuse a seed where numbers are to be secret."""
    if seed is not None and secure:
        raise ConfigError("seed", seed, "no seed together with secure_rng: a seeded run is reproducible, not private")


def source(seed: int | None, secure: bool) -> Randomness:
    """Where the random numbers of a run come from: the seed, the cryptographic generator, or a generator that the system seeds."""
    if seed is not None:
        return Seeded(seed)
    return Secure() if secure else OsSeeded()


class _Shake(Protocol):
    """What `hashlib.shake_256` makes."""

    def copy(self) -> Self: ...
    def update(self, data: bytes, /) -> None: ...
    def digest(self, length: int, /) -> bytes: ...


def _hash(key: bytes, purpose: str, step: int) -> _Shake:
    # Key and step have fixed lengths, so that no two inputs read the same.
    return hashlib.shake_256(key + step.to_bytes(8, "little") + purpose.encode())


_CPU = torch.device("cpu")


class _Generated:
    """Numbers of torch's generators."""

    __slots__ = ("_generators", "_seed")

    def __init__(self, seed: _Shake) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """In float64 on CUDA, whose float32 numbers end at 6.7 standard deviations; else on the CPU."""
        device = torch.device(device)
        if device.type == "cuda":
            drawn = torch.randn(shape, dtype=torch.float64, device=device, generator=self._generator(device))
        else:
            generator = self._generator(_CPU)
            if dtype == torch.float64:
                drawn = torch.randn(shape, dtype=dtype, generator=generator)
            else:
                drawn = _normal_float32(shape, generator)
        return drawn.to(device=device, dtype=dtype)

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """The difference of two exponential numbers, each from 53 bits."""
        minus = self.uniform(2 * math.prod(shape)).neg_().log1p_().view(2, *shape)
        return (minus[0] - minus[1]).to(device=device, dtype=dtype)

    def uniform(self, n: int) -> Tensor:
        """53 bits each."""
        return torch.rand(n, dtype=torch.float64, generator=self._generator(_CPU))

    def integers(self, high: int, n: int) -> Tensor:
        """⌊u high⌋: even the largest u, 1 - 2⁻⁵³, gives a product that rounds below `high`."""
        return (self.uniform(n) * high).long()

    def _generator(self, device: torch.device) -> torch.Generator:
        generator = self._generators.get(device)
        if generator is None:
            generator = torch.Generator(device)
            if device == _CPU:
                generator.set_state(_cpu_state(self._seed.digest(4 * _WORDS)))
            else:
                seed = self._seed.copy()
                seed.update(str(device).encode())  # or two devices would draw the same numbers
                generator.manual_seed(int.from_bytes(seed.digest(8), "little"))
            self._generators[device] = generator
        return generator


_WORDS = 624  # of the Mersenne Twister's state, 32 bits each
_FIRST, _STATE_BYTES = 3, 5056  # where torch keeps them, each in 64 bits, and the size of the whole


@functools.cache
def _blank_state() -> NDArray[np.uint64]:
    state = torch.Generator().manual_seed(0).get_state().numpy()
    if state.nbytes != _STATE_BYTES:
        raise AssayError(
            f"torch {torch.__version__} keeps the state of its generator in {state.nbytes} bytes, not {_STATE_BYTES}: "
            "it cannot be seeded in full. Use --secure-rng, or another version of torch."
        )
    return state.view(np.uint64)


def _cpu_state(seed: bytes) -> Tensor:
    """A state of torch's CPU generator with all its words from the seed.

    `manual_seed` would use 32 bits of what it is given: two of 20,000 steps would have the same noise with
    a probability of 5 %, and the noise of a step could be found by trying all seeds.
    """
    state = _blank_state().copy()
    state[_FIRST : _FIRST + _WORDS] = np.frombuffer(seed, dtype="<u4")
    return torch.from_numpy(state.view(np.uint8))


_TAIL = 4.5
_TAIL_MASS = 0.5 * math.erfc(_TAIL / math.sqrt(2))


_PIECE = 1 << 16  # what stays in a core's cache between being drawn and being looked at


def _normal_float32(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Normal numbers in float32, those beyond 4.5 standard deviations from that tail's true distribution.

    torch makes float32 normal numbers from 24 bits by Box and Muller, so that none exceeds sqrt(48 log 2) = 5.77, which 8e-9
    of normal numbers do. A record that moves one coordinate by a standard deviation would make numbers
    appear beyond, which prove its presence, with a probability of 1e-6 a step: over a run, as much as a
    usual δ.
    """
    drawn = torch.empty(tuple(shape), dtype=torch.float32)
    flat, beyond = drawn.view(-1), []
    for start in range(0, len(flat), _PIECE):
        piece = flat[start : start + _PIECE].normal_(generator=generator)
        least, most = torch.aminmax(piece)
        if max(-float(least), float(most)) > _TAIL:
            beyond.append((piece.abs() > _TAIL).nonzero().squeeze(1) + start)
    if beyond:
        where = torch.cat(beyond)
        flat[where] = _redrawn(flat[where], generator)
    return drawn


def _redrawn(tail: Tensor, generator: torch.Generator) -> Tensor:
    """New numbers beyond 4.5, on the same sides: given |z| > 4.5, the probability of an even larger |z| is uniform."""
    larger = 1 - torch.rand(len(tail), dtype=torch.float64, generator=generator)
    size: Tensor = torch.special.ndtri(larger * _TAIL_MASS).abs()
    return size.to(tail.dtype).copysign(tail)


class _Hashed:
    """Numbers from the output of an extendable hash, block by block."""

    __slots__ = ("_block", "_seed")

    def __init__(self, seed: _Shake) -> None:
        self._seed, self._block = seed, 0

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Φ⁻¹ of a uniform number below ½, with a sign."""
        numbers = _signed(lambda u: torch.special.ndtri(u.mul_(0.5)))
        return self._filled(torch.empty(tuple(shape), dtype=dtype), numbers).to(device)

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """The logarithm of a uniform number, with a sign."""
        return self._filled(torch.empty(tuple(shape), dtype=dtype), _signed(torch.log)).to(device)

    def uniform(self, n: int) -> Tensor:
        """The upper 53 of 64 bits."""
        out = torch.empty(n, dtype=torch.float64)
        return self._filled(out, lambda bits: ((bits >> 11) & (2**53 - 1)).double().mul_(2.0**-53))

    def integers(self, high: int, n: int) -> Tensor:
        """The remainder of 63 bits."""
        return self._filled(torch.empty(n, dtype=torch.int64), lambda bits: (bits & _MAGNITUDE) % high)

    def _filled(self, out: Tensor, numbers: Callable[[Tensor], Tensor]) -> Tensor:
        """Fill `out` with the numbers made of 64 bits each, in blocks so that little memory is taken."""
        flat = out.view(-1)
        for start in range(0, len(flat), _BLOCK):
            part = flat[start : start + _BLOCK]
            seed = self._seed.copy()
            seed.update(self._block.to_bytes(8, "little"))
            self._block += 1
            part.copy_(numbers(torch.frombuffer(bytearray(seed.digest(8 * len(part))), dtype=torch.int64)))
        return out


_MAGNITUDE = 2**63 - 1
_BLOCK = 2**17


def _signed(quantile: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Numbers from 64 bits each: 63 of them uniform in (0, 1), put through `quantile`, and a sign."""

    def numbers(bits: Tensor) -> Tensor:
        size = quantile((bits & _MAGNITUDE).double().add_(0.5).mul_(2.0**-63))
        return torch.where(bits < 0, -size, size)

    return numbers
