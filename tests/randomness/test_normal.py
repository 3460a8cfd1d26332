"""Noise added in one pass equals noise that is drawn first: the same numbers to the bit, without memory for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from assay.audit.replay import Frozen
from assay.distributed.world import Silent
from assay.randomness import normal
from assay.randomness.normal import add_drawn
from assay.randomness.streams import AddsNormal, Blocks, OsSeeded, Randomness, Secure, Seeded, Stream, add_normal

FALSE_ALARM = 1e-7
LARGE = 2**20 + 3  # a sum of which each parameter is drawn by itself; no whole number of pieces
STD = 0.37


def direct(source: Randomness) -> Stream:
    return source.stream("noise", 3)


def in_blocks(source: Randomness) -> Stream:
    return Blocks(source, "noise").at(3)


def gradients(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(sizes))
    return [torch.randn(n, dtype=dtype, generator=generator) for n in sizes]


def generator_of(seed: int) -> torch.Generator:
    """The generator behind `direct(Seeded(seed))`."""
    return direct(Seeded(seed)).generator(torch.device("cpu"))  # type: ignore[attr-defined, no-any-return]


def own_numbers(n: int, generator: torch.Generator) -> Tensor:
    """torch's numbers, 2¹⁶ at a time."""
    return torch.cat([torch.empty(len(part)).normal_(generator=generator) for part in torch.empty(n).split(2**16)])


def by_hand(n: int, generator: torch.Generator) -> Tensor:
    """What a seed has always given: torch's numbers, 2¹⁶ at a time, then those beyond 4.5 drawn again, in order."""
    drawn = own_numbers(n, generator)
    beyond = drawn.abs() > normal.TAIL
    uniform = torch.rand(int(beyond.sum()), dtype=torch.float64, generator=generator)
    drawn[beyond] = normal.tail_numbers(drawn[beyond], uniform)
    return drawn


@pytest.mark.parametrize("n", [1, 15, 17, 2**16, 2**16 + 1, 600_001])
@pytest.mark.parametrize("seed", range(5))
def test_a_seed_gives_what_it_always_gave(n: int, seed: int) -> None:
    drawing, adding = (direct(Seeded(seed)) for _ in range(2))
    whole = generator_of(seed)
    expected = by_hand(n, whole)
    (value,) = gradients([n])
    added = value.clone()
    add_normal([added], STD, adding)
    assert torch.equal(drawing.normal((n,), dtype=torch.float32, device="cpu"), expected)
    assert torch.equal(added, value.add(expected, alpha=STD))
    following = torch.rand(3, dtype=torch.float64, generator=whole)
    assert torch.equal(drawing.uniform(3), following)
    assert torch.equal(adding.uniform(3), following)


@pytest.mark.parametrize("make", [direct, in_blocks])
@pytest.mark.parametrize(
    "source",
    [Seeded(7), OsSeeded(), Secure(), Frozen(7, [])],
    ids=["seeded", "os", "secure", "frozen for an audit"],
)
@pytest.mark.parametrize(
    "sizes", [[5], [3, 70_000, 8], [2**16, LARGE, 7, 100_000]], ids=["small", "one draw", "a draw for each"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_added_is_what_would_be_drawn(make, source: Randomness, sizes: list[int], dtype: torch.dtype) -> None:
    if isinstance(source, Secure) and max(sizes) > 2**20:
        sizes = [2**20, 9]
    added, expected = gradients(sizes, dtype), gradients(sizes, dtype)
    add_normal(added, STD, make(source))
    add_drawn(expected, STD, make(source).normal)
    for one, other in zip(added, expected, strict=True):
        assert torch.equal(one, other)


def test_numbers_go_on_after_those_that_were_added() -> None:
    for make in (direct, in_blocks):
        adding, drawing = make(Seeded(1)), make(Seeded(1))
        add_normal(gradients([LARGE]), STD, adding)
        drawing.normal((LARGE,), dtype=torch.float32, device="cpu")
        assert torch.equal(*(s.normal((9,), dtype=torch.float32, device="cpu") for s in (adding, drawing)))


def test_gradients_in_another_layout_get_the_numbers_of_their_coordinates() -> None:
    shape = (64, 512, 6, 6)
    plain, last = torch.zeros(shape), torch.zeros(shape).contiguous(memory_format=torch.channels_last)
    add_normal([plain], STD, direct(Seeded(2)))
    add_normal([last], STD, direct(Seeded(2)))
    assert torch.equal(plain, last)
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_nothing_is_asked_for_where_nothing_is_added() -> None:
    class Nothing:
        def add_normal(self, values: Sequence[Tensor], std: float) -> None:
            raise AssertionError((values, std))

    add_normal([], 1.0, Nothing())  # type: ignore[arg-type]
    add_normal(gradients([4]), 0.0, Nothing())  # type: ignore[arg-type]


def test_ranks_without_noise_leave_their_part_as_it_is() -> None:
    values, same = gradients([4, LARGE]), gradients([4, LARGE])
    assert isinstance(Silent(), AddsNormal)
    add_normal(values, STD, Silent())
    assert all(map(torch.equal, values, same))


def test_numbers_beyond_the_tail_are_normal_and_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tail from 2.5 on, one number in 80 is replaced instead of one in 150,000.

    Kolmogorov and Smirnov's test on all numbers and on the tail, and the tail's count: false alarms below 1e-6 in all.
    """
    monkeypatch.setattr(normal, "TAIL", 2.5)
    n = 200_000
    value = torch.zeros(n)
    add_normal([value], 1.0, direct(Seeded(3)))
    plain = own_numbers(n, generator_of(3))
    beyond = plain.abs() > 2.5
    assert torch.equal(value[~beyond], plain[~beyond])
    assert torch.equal(value[beyond].sign(), plain[beyond].sign())
    assert not torch.isin(value[beyond], plain[beyond]).all()
    tail = value[beyond].abs().double().numpy()
    assert tail.min() >= 2.5
    assert stats.kstest(stats.norm.sf(tail) / stats.norm.sf(2.5), "uniform").pvalue > FALSE_ALARM
    assert stats.binomtest(len(tail), n, 2 * stats.norm.sf(2.5)).pvalue > FALSE_ALARM
    assert stats.kstest(value.double().numpy(), "norm").pvalue > FALSE_ALARM


def test_a_large_sum_needs_no_room_for_its_noise() -> None:
    value, stream = torch.zeros(4 * LARGE), in_blocks(Seeded(1))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        add_normal([value], STD, stream)
    largest = max(event.self_cpu_memory_usage for event in seen.events())
    assert 0 < largest <= 4 * normal.PIECE  # bytes of a piece
