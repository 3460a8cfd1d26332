"""Randomness: where noise and samples come from, and what that is worth.

A `Randomness` gives a `Stream` of numbers for each purpose and step. The same purpose and step always give
the same numbers within one `Randomness` in one process, and different ones independent numbers; a run can therefore be
taken up at any step without storing the state of a generator (whoever has it can subtract the noise). For
the same reason one purpose and step must serve one release only: whoever releases takes a source by `taken_apart`.

Three kinds: `OsSeeded`, the default, AES-256 in counter mode; `Seeded`, for results that must repeat, which are then not private, the
Mersenne Twister; and `Secure`, slower, with 64 bits in every number and the same generator on every device, SHAKE-256.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay._util.process import here
from assay.errors import AssayError, ConfigError
from assay.randomness import normal as pieces
from assay.randomness import tails
from assay.randomness.generators import KEY_BYTES, Encrypted, Hashed, Shake, aes_counter


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
    def fingerprint(self) -> str | None:
        """Tells these numbers from others where somebody else can get them again; None where nobody can."""
        ...

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step."""
        ...

    def describe(self) -> str:
        """A phrase for the privacy statement."""
        ...


def seed_torch(stream: Stream, device: torch.device) -> None:
    """Seed torch's own generators in use (those of dropout) from a stream.

    `torch.manual_seed` would put off seeding CUDA's by queueing a stack trace at every call.
    """
    seed = int(stream.integers(2**62, 1))
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


class _OsKey:
    """A key of 256 bits that the operating system chose. It lives in memory only and is never shown."""

    __slots__ = ("_key",)

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def _seed(self, purpose: str, step: int) -> Shake:
        """What a stream begins with: another in every process, forked children included."""
        salt = here().salt
        key = hashlib.blake2b(self._key, key=salt, digest_size=32, person=b"assay fork").digest() if salt else self._key
        return _hash(key, purpose, step)

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"the key of {name} is secret: make a new {name}() instead of pickling or copying one")


class OsSeeded(_OsKey):
    """AES-256 in counter mode with a key of the operating system: to tell its numbers from random ones is to break AES.

    Every stream has a key and a first counter of its own, derived from that key by SHAKE-256: what one stream gives away says nothing of
    another. float32 normal numbers are made of 32 bits each (`assay.randomness.generators.Encrypted`), all others of 64 as those of `Secure`. Normal numbers on
    CUDA are the exception: those of torch's generator there (Philox, which is not made to withstand an attack), seeded from the same key.
    """

    __slots__ = ()
    fingerprint = None

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step, in this process only."""
        seed = self._seed(purpose, step)
        return Encrypted(seed.digest(KEY_BYTES), _Generated(seed))

    def describe(self) -> str:
        """For the statement."""
        return "AES-256 in counter mode, keyed by the operating system; the key was never stored"


class Secure(_OsKey):
    """SHAKE-256 with a key of the operating system: to tell its numbers from random ones is to break SHA-3. On every device.

    Numbers are made in float64 from 64 random bits each by inverting the distribution function, one bit for
    the sign: 2⁻⁶⁴ of the probability is cut off, at 9 standard deviations. What adding such numbers to
    float32 gradients does to the last bits of a release (Mironov 2012) is no matter of the generator and
    remains. Some eight times as slow as `OsSeeded` for float32 normal numbers.
    """

    __slots__ = ()
    fingerprint = None

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step, in this process only."""
        return Hashed(self._seed(purpose, step))

    def describe(self) -> str:
        """For the statement."""
        return "cryptographically secure generator (SHAKE-256) keyed by the operating system; the key was never stored"


class Seeded:
    """torch's generators, each with a full state of its own derived from a seed of the user: bitwise the same in every run on the CPU.

    Whoever knows the seed can subtract the noise.
    """

    __slots__ = ("_key", "fingerprint", "seed")

    def __init__(self, seed: int) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
            raise ConfigError("seed", seed, "a whole number from 0 to 2⁶⁴ - 1")
        self.seed = seed
        self._key = hashlib.blake2b(seed.to_bytes(8, "little"), digest_size=32, person=b"assay seed").digest()
        self.fingerprint = f"seed {seed}"

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this seed, purpose and step."""
        return _Generated(_hash(self._key, purpose, step))

    def describe(self) -> str:
        """For the statement."""
        return f"fixed seed {self.seed}: reproducible, not private"


class Within:
    """Randomness of a part's own: no stream of it is one of the whole's, whatever the purpose is called."""

    def __init__(self, base: Randomness, name: str) -> None:
        self._base, self._name = base, name

    @property
    def fingerprint(self) -> str | None:
        """As the whole's."""
        return self._base.fingerprint

    def stream(self, purpose: str, step: int) -> Stream:
        """The stream of this purpose within the part."""
        return self._base.stream(f"{self._name}: {purpose}", step)

    def describe(self) -> str:
        """As the whole's."""
        return self._base.describe()


def taken_apart(randomness: Randomness) -> Randomness:
    """The source for one taker: what serves several steps gives each of them numbers of its own, by 128 bits of the operating system.

    With a fixed seed, where numbers are to repeat, it is the source itself.
    """
    if randomness.fingerprint is not None:
        return randomness
    return Within(randomness, f"taken {os.urandom(16).hex()}")


def check_source(seed: int | None, secure: bool) -> None:
    """Refuse a seed where numbers are to be secret."""
    if seed is not None and secure:
        raise ConfigError("seed", seed, "no seed together with secure_rng: a seeded run is reproducible, not private")


def source(seed: int | None, secure: bool) -> Randomness:
    """Where the random numbers of a run come from: the seed, SHAKE-256 (`secure`), or AES-256, both with a key of the operating system."""
    if seed is not None:
        return Seeded(seed)
    return Secure() if secure else OsSeeded()


def _hash(key: bytes, purpose: str, step: int) -> Shake:
    # Key and step have fixed lengths, so that no two inputs read the same.
    return hashlib.shake_256(key + step.to_bytes(8, "little") + purpose.encode())


_CPU = torch.device("cpu")


class _Generated:
    """Numbers of torch's generators."""

    __slots__ = ("_generators", "_seed")

    def __init__(self, seed: Shake) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """In float64 on CUDA, whose float32 numbers end at 6.7 standard deviations; else on the CPU."""
        device = torch.device(device)
        if device.type == "cuda":
            drawn = torch.randn(shape, dtype=torch.float64, device=device, generator=self._generator(device))
        elif dtype == torch.float64:
            drawn = torch.randn(shape, dtype=dtype, generator=self._generator(_CPU))
        else:
            drawn = pieces.normal(shape, self)
        return drawn.to(device=device, dtype=dtype)

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """In pieces."""
        pieces.add_normal(values, std, self)

    def fill(self, piece: Tensor) -> Mapping[int, float]:
        """torch's own numbers.

        One in 150,000 is beyond the tail: the largest and the smallest are looked for until they are within. NumPy finds either within the
        cache and without a temporary in a fiftieth of the time that drawing takes.
        """
        numbers, beyond = piece.normal_(generator=self._generator(_CPU)).numpy(), {}
        while numbers[at := numbers.argmax()] > tails.TAIL or numbers[at := numbers.argmin()] < -tails.TAIL:
            beyond[int(at)] = float(numbers[at])
            numbers[at] = 0
        return beyond

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

    def words(self, n: int) -> Tensor:
        """Bits of torch's generator."""
        return torch.empty(n, dtype=torch.int64).random_(-(2**63), None, generator=self._generator(_CPU))

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


class GeneratorStates:
    """States for torch's CPU generator, all words of each from AES-256 in counter mode with a key of the stream; none comes twice.

    `initial_seed` then gives a random number that tells the states apart.
    """

    _AT_ONCE = 32  # one at a time takes ten times as long

    def __init__(self, stream: Stream) -> None:
        self._cipher = aes_counter(bytes(stream.integers(256, KEY_BYTES).tolist()))
        self._zeros = bytes(4 * self._AT_ONCE * (_WORDS + 2))
        self._rows: list[NDArray[np.uint64]] = []
        # the same memory for all: torch crashes on a state that is a part of another tensor
        self._room = _blank_state().copy()
        self._state = torch.from_numpy(self._room.view(np.uint8))

    def next(self) -> Tensor:
        """The next state, until this is called again."""
        if not self._rows:
            words = np.frombuffer(self._cipher.update(self._zeros), dtype="<u4").reshape(self._AT_ONCE, -1)
            rows = np.tile(_blank_state(), (self._AT_ONCE, 1))
            rows[:, _FIRST : _FIRST + _WORDS] = words[:, :_WORDS]
            rows[:, 0] = (words[:, _WORDS].astype(np.uint64) << np.uint64(30)) ^ words[:, _WORDS + 1]
            self._rows = list(rows)
        self._room[:] = self._rows.pop()
        return self._state
