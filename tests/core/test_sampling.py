"""Samplers: what they draw is what they state."""

import math

import pytest
import torch

from assay.data.sampling import SAMPLERS, FullBatch, Permuted, Poisson, Shuffled, WithoutReplacement
from assay.randomness.streams import OsSeeded, Secure, Seeded


def test_poisson_includes_each_record_independently_at_its_rate():
    """Counts over many steps against binomial bounds.

    False-alarm rate below 1e-6 in all (Hoeffding, union over records).
    """
    sampler, steps, randomness = Poisson(200, 30), 4000, Seeded(1)
    hits = torch.zeros(200)
    together = 0
    for step in range(steps):
        index = sampler.draw(step, randomness)
        hits[index] += 1
        together += int({0, 1} <= set(index.tolist()))
    q = 0.15
    slack = math.sqrt(math.log(2 * 201 / 1e-6) / (2 * steps))
    assert float((hits / steps - q).abs().max()) < slack
    assert abs(together / steps - q * q) < slack


def test_poisson_sizes_vary_and_batches_differ():
    sampler, randomness = Poisson(1000, 50), OsSeeded()
    sizes = {len(sampler.draw(step, randomness)) for step in range(50)}
    assert len(sizes) > 5


@pytest.mark.parametrize("randomness", [Seeded(3), OsSeeded(), Secure()])
def test_shuffled_epochs_use_every_record_exactly_once(randomness):
    sampler = Shuffled(100, 12)
    assert sampler.epoch_steps == 8
    for epoch in range(3):
        batches = [sampler.draw(epoch * 8 + k, randomness) for k in range(8)]
        assert sorted(torch.cat(batches).tolist()) == list(range(100))


@pytest.mark.parametrize("randomness", [Seeded(3), OsSeeded(), Secure()])
def test_permutations_cut_every_epoch_into_batches_of_one_size(randomness):
    sampler = Permuted(100, 12)
    assert sampler.epoch_steps == 9
    epochs = [[sampler.draw(epoch * 9 + k, randomness) for k in range(9)] for epoch in range(2)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [12] * 8 + [4]
        assert sorted(torch.cat(batches).tolist()) == list(range(100))
    assert not torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]))


def test_without_replacement_takes_exactly_its_size():
    sampler = WithoutReplacement(50, 20)
    for step in range(20):
        index = sampler.draw(step, Seeded(1))
        assert len(set(index.tolist())) == 20


@pytest.mark.parametrize("size", [8, 60])
def test_without_replacement_every_subset_is_as_likely(size):
    """Single records and pairs against their exact rates; false-alarm rate below 1e-6 in all (Hoeffding, union)."""
    records, steps, randomness = 100, 4000, Seeded(2)
    sampler = WithoutReplacement(records, size)
    hits = torch.zeros(records)
    together = 0
    for step in range(steps):
        index = sampler.draw(step, randomness)
        assert len(set(index.tolist())) == size
        hits[index] += 1
        together += int({3, 77} <= set(index.tolist()))
    slack = math.sqrt(math.log(2 * (records + 1) / 1e-6) / (2 * steps))
    assert float((hits / steps - size / records).abs().max()) < slack
    assert abs(together / steps - size * (size - 1) / (records * (records - 1))) < slack


def test_full_batch_takes_everything():
    assert FullBatch(7, 7).draw(3, Seeded(0)).tolist() == list(range(7))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_seeded_draw_can_be_repeated_at_any_step(kind):
    sampler = SAMPLERS[kind](60, 60 if kind == "full" else 10)
    forward = [sampler.draw(step, Seeded(5)).tolist() for step in range(8)]
    backward = [SAMPLERS[kind](60, sampler.expected_size).draw(step, Seeded(5)).tolist() for step in reversed(range(8))]
    assert forward == backward[::-1]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_sampler_describes_itself(kind):
    assert len(SAMPLERS[kind](60, 60 if kind == "full" else 10).describe()) > 20
