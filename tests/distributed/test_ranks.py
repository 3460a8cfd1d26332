"""Several ranks give what one process gives for the same draws, and the same bits on every rank.

Sums are added in another order than in one process. They are equal up to rounding: 1e-12 in float64, 1e-6 in float32.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from distributed.cases import CASES
from distributed.launching import run_ranks

ON_RANKS_ONLY = ("unseeded", "seeded_masks", "refused")
ON_THREE = ("one_record", "shard_many_sorts")


def launched(ranks: int, names: list[str], folder: Path) -> Path:
    run_ranks(ranks, Path(__file__).with_name("cases.py"), folder, *names, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return launched(2, list(CASES), tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return launched(3, list(ON_THREE), tmp_path_factory.mktemp("three"))


def given(folder: Path, name: str, rank: int):
    return load_file(folder / f"{name}.{rank}.safetensors"), json.loads((folder / f"{name}.{rank}.json").read_text())


def same(mine, theirs) -> bool:
    return mine == (pytest.approx(theirs, rel=1e-5) if isinstance(theirs, float) else theirs)


def check_equal(folder: Path, name: str, ranks: int):
    alone, facts_alone = CASES[name]()
    tensors, facts = given(folder, name, 0)
    assert tensors.keys() == alone.keys()
    for key, value in alone.items():
        accuracy = 1e-12 if value.dtype == torch.float64 else 1e-6
        torch.testing.assert_close(
            tensors[key], value.detach(), rtol=0, atol=accuracy * float(value.detach().abs().max())
        )
    for rank in range(1, ranks):
        others, facts_there = given(folder, name, rank)
        for key, value in tensors.items():
            assert torch.equal(value, others[key]), f"{key} differs between ranks"
        assert {**facts_there, "watched": None} == {**facts, "watched": None}
        assert not facts_there.get("watched"), "progress is the leader's to show"
    for key, value in facts_alone.items():
        if key == "history":
            for mine, theirs in zip(facts[key], value, strict=True):
                assert mine.keys() == theirs.keys()
                assert all(same(mine[name], there) for name, there in theirs.items()), (mine, theirs)
        else:
            assert same(facts[key], value), key


@pytest.mark.parametrize("name", [name for name in CASES if name not in ON_RANKS_ONLY])
def test_two_ranks_equal_one_process(two, name):
    check_equal(two, name, 2)


@pytest.mark.parametrize("name", ON_THREE)
def test_three_ranks_equal_one_process(three, name):
    check_equal(three, name, 3)


@pytest.mark.parametrize("name", ["unseeded", "seeded_masks"])
def test_ranks_never_draw_the_same_mask(two, name):
    """Each rank holds 150 records, drawn with probability ½: two masks agree by chance with probability 2⁻¹⁵⁰."""
    masks = [json.dumps(batch) for rank in range(2) for batch in given(two, name, rank)[1]["batches"]]
    assert len(set(masks)) == len(masks) == 4


def test_unseeded_ranks_begin_and_stay_together(two):
    (first, facts), (second, _) = given(two, "unseeded", 0), given(two, "unseeded", 1)
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    # 15010 coordinates: with probability 1 - 2e-7 the variance is within 6 % of that of one draw; two have twice that
    assert facts["noise variance"] == pytest.approx(1, abs=0.06)


def test_what_is_refused_is_refused_on_every_rank_before_anything_is_written(two):
    for rank in range(2):
        said = given(two, "refused", rank)[1]
        assert "micro_batch = 2 is not accepted: 1 on 2 ranks" in said["micro-batch"]
        assert "this one holds other files" in said["folder in use"]
        assert "shares that add up to them" in said["records missing"]
        assert "the same records in the same order on every rank" in said["another order"]
        assert "dpsgd or dpadam without --encode and --denoise" in said["shard, smoothing"]
        assert "what afrrs does first needs the whole model" in said["shard, stage"]
        assert "the ranks' parameters differ" in said["apart"]
        assert said["written"] is False
