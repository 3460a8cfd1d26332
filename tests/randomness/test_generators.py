"""AES-256 in counter mode as a source of numbers: the cipher's bits, each used once; normal numbers with true tails.

Keys are fixed; over all keys each statistical test would fail by chance with a probability below 1e-6.
"""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from scipy import stats

from assay.randomness import generators
from assay.randomness import normal as normal_numbers
from assay.randomness.generators import Encrypted
from assay.randomness.normal import PIECE, tail_numbers
from assay.randomness.streams import Seeded

FALSE_ALARM = 1e-7
KEY = bytes(range(generators.KEY_BYTES))
MANY = 1 << 22


def encrypted(key: bytes = KEY) -> Encrypted:
    return Encrypted(key, Seeded(0).stream("elsewhere", 0))


def normal(stream: Encrypted, n: int) -> torch.Tensor:
    return stream.normal((n,), dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def many() -> torch.Tensor:
    """Four million numbers, 64 pieces."""
    return normal(encrypted(), MANY)


def pairs(numbers: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Both numbers of every pair."""
    halves = numbers.double().view(-1, 2, PIECE // 2)
    return halves[:, 0].flatten().numpy(), halves[:, 1].flatten().numpy()


def test_the_bits_are_those_of_the_standard() -> None:
    """NIST SP 800-38A, F.5.5: CTR-AES256.Encrypt. The cipher's bits are the difference of text and cipher text."""
    key = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"
    counter = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    text = (
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = (
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    expected = np.frombuffer(bytes.fromhex(text), np.uint8) ^ np.frombuffer(bytes.fromhex(cipher), np.uint8)
    stream = encrypted(bytes.fromhex(key + counter))
    drawn = torch.cat([stream.words(3), stream.words(1), stream.words(4)])  # goes on within a block of the cipher
    assert drawn.numpy().tobytes() == expected.tobytes()


def test_moments_and_distribution(many: torch.Tensor) -> None:
    drawn = many.double().numpy()
    z = stats.norm.isf(FALSE_ALARM / 2)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        variance = math.prod(range(1, 2 * power, 2)) - moment**2
        assert abs((drawn**power).mean() - moment) < z * math.sqrt(variance / MANY)
    assert stats.kstest(drawn, "norm").pvalue > FALSE_ALARM


def test_tails_come_as_often_as_they_should(many: torch.Tensor) -> None:
    size = many.abs().numpy()
    for limit in (3, 4, 4.5):
        assert stats.binomtest(int((size > limit).sum()), MANY, 2 * stats.norm.sf(limit)).pvalue > FALSE_ALARM


def test_numbers_beyond_the_tail_are_drawn_anew(many: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tail that begins at 2.5, one number in 80 goes through what one in 150,000 goes through otherwise."""
    monkeypatch.setattr(normal_numbers, "TAIL", 2.5)
    n = 3 * PIECE
    drawn, plain = normal(encrypted(), n), many[:n]
    beyond = plain.abs() > 2.5
    assert torch.equal(drawn[~beyond], plain[~beyond])
    assert torch.equal(drawn[beyond].sign(), plain[beyond].sign())
    assert not torch.isin(drawn[beyond], plain[beyond]).all()
    tail = drawn[beyond].abs().double().numpy()
    assert tail.min() >= 2.5
    assert stats.kstest(stats.norm.sf(tail) / stats.norm.sf(2.5), "uniform").pvalue > FALSE_ALARM


def test_the_tail_reaches_beyond_eight_standard_deviations() -> None:
    """Of a million numbers beyond 4.5, 290 are beyond 6; the last uniform number gives 9.2 and no infinity."""
    n = 1_000_000
    tail = tail_numbers(torch.ones(n), encrypted().uniform(n)).numpy()
    beyond = int((tail > 6).sum())
    assert stats.binomtest(beyond, n, stats.norm.sf(6) / stats.norm.sf(4.5)).pvalue > FALSE_ALARM
    last = tail_numbers(torch.ones(1), torch.tensor([1 - 2.0**-53], dtype=torch.float64))
    assert 8 < float(last) < math.inf


def test_the_radius_has_32_bits_and_is_never_nothing() -> None:
    """It is within 4 units in the last place of float32, for u near 0 and near 1 as well."""
    ends = [0, 1, 2**31, 2**32 - 2, 2**32 - 1]
    words = np.concatenate([ends, np.random.default_rng(0).integers(2**32, size=10_000), 2 ** np.arange(32)])
    room = generators.Workspace(len(words))
    room.signed[:] = words - 2**31
    generators.set_radius(room)
    expected = np.sqrt(-2 * np.log1p(-(2**32 - words - 0.5) / 2**32))
    expected[words < 2**31] = np.sqrt(-2 * np.log((words[words < 2**31] + 0.5) / 2**32))
    np.testing.assert_array_max_ulp(room.radii, expected.astype(np.float32), maxulp=4)
    assert len(set(room.radii[: len(ends)].tolist())) == len(ends)
    assert float(room.radii.min()) > 1e-5


def test_numbers_of_a_pair_and_neighbours_are_independent(many: torch.Tensor) -> None:
    """Neither they nor their squares are correlated, and the pair looks into all directions alike."""
    z = stats.norm.isf(FALSE_ALARM / 2)
    first, second = pairs(many)
    drawn = many.double().numpy()
    for one, other in ((first, second), (drawn[1:], drawn[:-1])):
        assert abs((one * other).mean()) < z / math.sqrt(len(one))
        assert abs(((one**2 - 1) * (other**2 - 1)).mean()) < z * 2 / math.sqrt(len(one))
    angle = np.arctan2(second, first) / (2 * math.pi) + 0.5
    assert stats.kstest(angle, "uniform").pvalue > FALSE_ALARM
    assert stats.kstest((first**2 + second**2) / 2, "expon").pvalue > FALSE_ALARM


def test_calls_go_on_and_never_repeat() -> None:
    stream = encrypted()
    drawn = torch.cat([normal(stream, n) for n in (7, 1000, 1, 1001)])
    assert (
        len(drawn.unique()) > len(drawn) - 3
    )  # of 2000 float32 numbers two are equal with a probability of a few percent
    assert not torch.equal(stream.uniform(9), stream.uniform(9))
    assert not torch.equal(normal(encrypted(), 100), normal(encrypted(KEY[::-1]), 100))


def test_adding_goes_on_as_drawing_does() -> None:
    for n in (1, 7, PIECE, PIECE + 1, 3 * PIECE - 1):
        adding, drawing = encrypted(), encrypted()
        value = torch.linspace(-1, 1, n)
        expected = value.add(normal(drawing, n), alpha=0.37)
        adding.add_normal([value], 0.37)
        assert torch.equal(value, expected)
        assert torch.equal(adding.uniform(5), drawing.uniform(5))


def test_threads_do_not_share_their_room() -> None:
    expected = [normal(encrypted(bytes([i]) * generators.KEY_BYTES), 300_000) for i in range(2)]
    found: dict[int, torch.Tensor] = {}

    def draw(i: int) -> None:
        found[i] = normal(encrypted(bytes([i]) * generators.KEY_BYTES), 300_000)

    threads = [threading.Thread(target=draw, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[i], expected[i]) for i in range(2))
