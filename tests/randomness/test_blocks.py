"""Noise in blocks: every step has its own numbers, found again by the step's number alone."""

import math

import pytest
import torch

from assay.randomness.streams import Blocks, OsSeeded, Secure, Seeded


def numbers(blocks: Blocks, step: int, size: int = 1000) -> torch.Tensor:
    return blocks.at(step).normal((size,), dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize("size", [3, 1000, 300_000], ids=["short", "block", "too long for a block"])
def test_a_step_finds_its_numbers_again_in_any_order(size):
    forward = [numbers(Blocks(Seeded(1), "noise"), step, size).clone() for step in (0, 1, 70, 200)]
    one = Blocks(Seeded(1), "noise")
    for step, expected in reversed(list(zip((0, 1, 70, 200), forward, strict=True))):
        assert torch.equal(numbers(one, step, size), expected)


@pytest.mark.parametrize("randomness", [Seeded(1), OsSeeded(), Secure()])
def test_no_two_steps_share_a_number(randomness):
    blocks = Blocks(randomness, "noise")
    rows = torch.stack([numbers(blocks, step).clone() for step in range(150)]).double()
    # correlations of independent rows are below 6.5/sqrt(1000) in 11,175 pairs but with probability 1e-6
    correlations = (rows @ rows.T / 1000).fill_diagonal_(0)
    assert float(correlations.abs().max()) < 6.5 / math.sqrt(1000)


def test_calls_within_a_step_purposes_and_sizes_are_independent():
    stream = Blocks(Seeded(1), "noise").at(5)
    first = stream.normal((64,), dtype=torch.float64, device="cpu")
    second = stream.normal((64,), dtype=torch.float64, device="cpu")
    other = Blocks(Seeded(1), "side").at(5).normal((64,), dtype=torch.float64, device="cpu")
    larger = Blocks(Seeded(1), "noise").at(5).normal((65,), dtype=torch.float64, device="cpu")
    drawn = [first, second, other, larger[:64]]
    for i, a in enumerate(drawn):
        for b in drawn[i + 1 :]:
            assert not torch.isin(a, b).any()


def test_the_numbers_are_standard_normal():
    """Mean and variance of 250,000 numbers within 5.5 standard errors: a false alarm in 1e7."""
    blocks = Blocks(Seeded(3), "noise")
    drawn = torch.cat([numbers(blocks, step) for step in range(250)]).double()
    n = len(drawn)
    assert abs(float(drawn.mean())) < 5.5 / math.sqrt(n)
    assert abs(float(drawn.var()) - 1) < 5.5 * math.sqrt(2 / n)


def test_shapes_and_other_distributions():
    stream = Blocks(OsSeeded(), "noise").at(0)
    assert stream.normal((2, 3), dtype=torch.float32, device="cpu").shape == (2, 3)
    assert stream.laplace((4,), dtype=torch.float64, device="cpu").shape == (4,)
    assert stream.uniform(5).shape == (5,)
    assert int(stream.integers(3, 100).max()) < 3
