"""Streams repeat where they must, differ where they must, and have the distributions that they claim.

The statistical tests use fixed seeds; over all seeds each would fail by chance with a probability below 1e-6.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

from assay.errors import ConfigError
from assay.randomness.generators import cpu_state, signed
from assay.randomness.normal import tail_numbers
from assay.randomness.streams import OsSeeded, Randomness, Secure, Seeded, Stream

N = 200_000
FALSE_ALARM = 1e-7


class FixedSecure(Secure):
    """The numbers of `Secure`, from a key that does not change between test runs."""

    __slots__ = ()

    def __init__(self) -> None:
        self._key = hashlib.sha256(b"test").digest()


class FixedOsSeeded(OsSeeded):
    """The numbers of `OsSeeded`, from a key that does not change between test runs."""

    __slots__ = ()

    def __init__(self) -> None:
        self._key = hashlib.sha256(b"test").digest()


SOURCES = [
    pytest.param(Seeded(7), id="seeded"),
    pytest.param(FixedOsSeeded(), id="os"),
    pytest.param(FixedSecure(), id="secure"),
]


def normal(stream: Stream, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return stream.normal((n,), dtype=dtype, device="cpu")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_are_standard_normal(source: Randomness, dtype: torch.dtype) -> None:
    drawn = normal(source.stream("noise", 3), N, dtype).double().numpy()
    z = stats.norm.isf(FALSE_ALARM / 2)
    assert abs(drawn.mean()) < z / math.sqrt(N)
    assert abs((drawn**2).mean() - 1) < z * math.sqrt(2 / N)
    assert stats.kstest(drawn, "norm").pvalue > FALSE_ALARM
    # Neighbours in the stream are not related.
    assert abs((drawn[1:] * drawn[:-1]).mean()) < z / math.sqrt(N - 1)


@pytest.mark.parametrize("source", SOURCES)
def test_laplace_numbers_have_scale_one(source: Randomness) -> None:
    drawn = source.stream("noise", 3).laplace((N,), dtype=torch.float64, device="cpu").numpy()
    assert stats.kstest(drawn, "laplace").pvalue > FALSE_ALARM
    assert abs(drawn.mean()) < stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(2 / N)


@pytest.mark.parametrize("source", SOURCES)
def test_uniform_numbers_hit_small_rates(source: Randomness) -> None:
    drawn = source.stream("sample", 3).uniform(N)
    assert drawn.dtype == torch.float64
    assert ((drawn >= 0) & (drawn < 1)).all()
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > FALSE_ALARM
    for rate in (0.5, 1e-2, 1e-4):
        hits = int((drawn < rate).sum())
        assert stats.binomtest(hits, N, rate).pvalue > FALSE_ALARM
    # 53 bits and not 24: the low half is uniform as well.
    low = (drawn * 2**24) % 1
    assert stats.kstest(low.numpy(), "uniform").pvalue > FALSE_ALARM


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("high", [1, 2, 7, 1000])
def test_integers_are_uniform(source: Randomness, high: int) -> None:
    drawn = source.stream("sample", 3).integers(high, N)
    assert drawn.dtype == torch.int64
    counts = np.bincount(drawn.numpy(), minlength=high)
    assert len(counts) == high
    if high > 1:
        assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_large_integers_stay_below_their_bound() -> None:
    for high in (2**31, 2**40, 2**52):
        for source in (Seeded(1), OsSeeded(), Secure()):
            assert int(source.stream("x", 0).integers(high, 1000).max()) < high
    largest = torch.tensor(1 - 2.0**-53, dtype=torch.float64)
    for high in (1, 2, 3, 5, 7, 10, 1000, 60_000, 2**31 - 1, 2**31 + 1, 2**52 - 1, 2**52 + 1):
        assert int((largest * high).long()) == high - 1


def test_float32_tails_are_those_of_the_normal_distribution() -> None:
    """torch's own float32 numbers end at sqrt(48 log 2) = 5.768: beyond it every number would prove a record."""
    generator = torch.Generator().manual_seed(5)
    before = torch.full((N,), 5.0)
    before[::2] = -5.0
    drawn = tail_numbers(before, torch.rand(N, dtype=torch.float64, generator=generator))
    assert torch.equal(drawn.sign(), before.sign())
    tail = drawn.abs().double().numpy()
    assert tail.min() >= 4.5
    given_tail = stats.norm.sf(tail) / stats.norm.sf(4.5)
    assert stats.kstest(given_tail, "uniform").pvalue > FALSE_ALARM
    # Of 200,000 numbers beyond 4.5, 233 are expected beyond torch's end.
    beyond = int((tail > math.sqrt(48 * math.log(2))).sum())
    assert stats.binomtest(beyond, N, stats.norm.sf(5.768) / stats.norm.sf(4.5)).pvalue > FALSE_ALARM


def test_float32_numbers_beyond_four_and_a_half_come_as_often_as_they_should() -> None:
    n, found = 2**20, 0
    for step in range(8):
        found += int((normal(Seeded(0).stream("noise", step), n).abs() > 4.5).sum())
    assert stats.binomtest(found, 8 * n, 2 * stats.norm.sf(4.5)).pvalue > FALSE_ALARM


def test_secure_numbers_reach_nine_standard_deviations_and_no_infinity() -> None:
    extreme = torch.tensor([0, 2**63 - 1, -(2**63), -1], dtype=torch.int64)  # the smallest and largest magnitudes
    numbers = signed(lambda u: torch.special.ndtri(u.mul_(0.5)))(extreme)
    assert numbers.isfinite().all()
    assert sorted(abs(float(x)) for x in numbers)[-2:] == pytest.approx([9.1, 9.1], abs=0.1)
    assert signed(torch.log)(extreme).isfinite().all()


def test_a_seed_repeats_every_stream_bitwise() -> None:
    first, again = Seeded(3), Seeded(3)
    _ = normal(first.stream("noise", 1), 10)  # streams do not depend on what was drawn elsewhere
    for purpose, step in (("noise", 0), ("noise", 17), ("sample", 17)):
        one, two = first.stream(purpose, step), again.stream(purpose, step)
        assert torch.equal(normal(one, 1000), normal(two, 1000))
        assert torch.equal(one.uniform(10), two.uniform(10))
        laplace = [s.laplace((4, 3), dtype=torch.float64, device="cpu") for s in (one, two)]
        assert torch.equal(*laplace)
        assert torch.equal(one.integers(9, 50), two.integers(9, 50))


@pytest.mark.parametrize("source", [OsSeeded(), Secure()], ids=["os", "secure"])
def test_a_purpose_and_step_mean_the_same_numbers_within_one_object(source: Randomness) -> None:
    """A sampler may ask again for the shuffle of an epoch, one batch at a time."""
    assert torch.equal(source.stream("shuffle", 4).integers(10, 99), source.stream("shuffle", 4).integers(10, 99))


@pytest.mark.parametrize("make", [OsSeeded, Secure, lambda: Seeded(5)], ids=["os", "secure", "seeded"])
def test_streams_are_not_related(make) -> None:
    source = make()
    drawn = [
        normal(source.stream(purpose, step), 20_000, torch.float64)
        for purpose, step in (("noise", 0), ("noise", 1), ("noise", 256), ("noisf", 0), ("side 1", 0), ("side 11", 0))
    ]
    stream = source.stream("noise", 2)
    drawn += [normal(stream, 20_000, torch.float64), normal(stream, 20_000, torch.float64)]
    for one, two in itertools.combinations(drawn, 2):
        # The correlation of independent numbers is normal with a deviation of 1/sqrt(n). 28 pairs, three sources.
        assert abs(float((one * two).mean())) < stats.norm.isf(1e-9) / math.sqrt(20_000)
        assert not torch.isin(one[:100], two[:1000]).any()


def test_objects_of_the_operating_system_differ() -> None:
    for make in (OsSeeded, Secure):
        assert not torch.equal(normal(make().stream("noise", 0), 10), normal(make().stream("noise", 0), 10))


def test_neighbouring_seeds_and_steps_share_no_stream() -> None:
    """A seed that is merely added to the step would give seed 1 at step 0 the noise of seed 0 at step 1."""
    seen = {tuple(normal(Seeded(seed).stream("noise", step), 4).tolist()) for seed in range(30) for step in range(30)}
    assert len(seen) == 900


def test_the_whole_state_of_the_generator_is_seeded() -> None:
    """`manual_seed` takes 32 bits: 2³² seeds can be tried, and 20,000 of them collide with a probability of 5 %."""
    one, two = (torch.Generator().manual_seed(s) for s in (5, 5 + 2**32))
    assert torch.equal(torch.rand(4, generator=one), torch.rand(4, generator=two)), "torch no longer truncates seeds"

    seed = hashlib.shake_256(b"state").digest(4 * 624)
    generator = torch.Generator()
    generator.set_state(cpu_state(seed))
    twister = np.random.MT19937()
    state = twister.state
    state["state"] = {"key": np.frombuffer(seed, dtype="<u4").copy(), "pos": 624}
    twister.state = state
    # float64 numbers are the lower 53 of 64 bits, the first word above the second.
    words = twister.random_raw(20_000).astype(np.uint64)
    pairs = (words[::2] << np.uint64(32)) | words[1::2]
    expected = (pairs & np.uint64(2**53 - 1)).astype(np.float64) * 2.0**-53
    np.testing.assert_array_equal(torch.rand(10_000, dtype=torch.float64, generator=generator).numpy(), expected)


@pytest.mark.parametrize("source", [OsSeeded(), Secure()], ids=["os", "secure"])
def test_the_key_cannot_leave(source: OsSeeded | Secure) -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secret"):
            attempt(source)
    shown = f"{source!r} {source} {source.describe()} {getattr(source, '__dict__', '')}"
    assert source._key.hex() not in shown
    assert repr(source._key) not in shown
    assert source.fingerprint is None


def test_the_statement_says_what_a_seed_means() -> None:
    assert Seeded(3).fingerprint == Seeded(3).fingerprint != Seeded(4).fingerprint
    assert "reproducible, not private" in Seeded(3).describe()
    assert "AES-256" in OsSeeded().describe()
    assert "operating system" in OsSeeded().describe()
    assert "cryptographically" in Secure().describe()


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "3", True, None])
def test_seeds_are_whole_numbers_of_64_bits(seed: object) -> None:
    with pytest.raises(ConfigError) as error:
        Seeded(seed)  # type: ignore[arg-type]
    assert error.value.field == "seed"


@pytest.mark.parametrize("source", SOURCES)
def test_shapes_and_types(source: Randomness) -> None:
    for shape in ((), (0,), (3, 4), (2, 0, 5), (300_000,)):
        for draw in (source.stream("noise", 0).normal, source.stream("noise", 0).laplace):
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                drawn = draw(shape, dtype=dtype, device=torch.device("cpu"))
                assert drawn.shape == shape
                assert drawn.dtype == dtype
    assert source.stream("sample", 0).uniform(0).shape == (0,)
    assert source.stream("sample", 0).integers(5, 0).shape == (0,)


@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("make", [lambda: Seeded(3), Secure], ids=["seeded", "secure"])
def test_numbers_on_other_devices(device: str, make) -> None:
    if not getattr(torch, device).is_available():
        pytest.skip(f"no {device} here")
    drawn = make().stream("noise", 0).normal((N,), dtype=torch.float32, device=device)
    assert drawn.device.type == device
    assert stats.kstest(drawn.cpu().double().numpy(), "norm").pvalue > FALSE_ALARM
