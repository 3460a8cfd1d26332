"""Partitions give every record to exactly one client, the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import ConfigError
from assay.federated import partition

kinds = st.sampled_from(["iid", "dirichlet:0.1", "dirichlet:1", "dirichlet:100", "label:1", "label:2"])


@given(kinds, st.integers(1, 12), st.integers(0, 2**32 - 1), st.integers(60, 300))
def test_every_record_goes_to_exactly_one_client(kind, clients, seed, records):
    labels = np.random.default_rng(seed).integers(0, 5, records)
    parts = partition.parse(kind).divide(labels, clients, seed)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(records))
    again = partition.parse(kind).divide(labels, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    table = partition.counts(labels, parts, 5)
    assert np.array_equal(table.sum(0), np.bincount(labels, minlength=5))
    assert np.array_equal(table.sum(1), [len(part) for part in parts])


def test_iid_sizes_differ_by_one_at_most():
    sizes = [len(p) for p in partition.parse("iid").divide(np.zeros(103, int), 10, 1)]
    assert max(sizes) - min(sizes) <= 1


def test_label_gives_each_client_few_labels():
    labels = np.repeat(np.arange(10), 100)
    parts = partition.parse("label:2").divide(labels, 50, 3)
    assert all(len(np.unique(labels[part])) <= 2 for part in parts)
    assert {len(part) for part in parts} == {10 * 2}


def test_small_alpha_is_more_unequal_than_large():
    labels = np.repeat(np.arange(10), 200)

    def spread(text):
        table = partition.counts(labels, partition.parse(text).divide(labels, 20, 0), 10)
        return float(np.mean(table.max(1) / table.sum(1).clip(1)))

    assert spread("dirichlet:0.1") > spread("dirichlet:1") > spread("dirichlet:100")


@pytest.mark.parametrize(
    "text", ["", "iid:1", "dirichlet", "dirichlet:0", "dirichlet:x", "label:1.5", "label:-1", "other:1"]
)
def test_refusals(text):
    with pytest.raises(ConfigError, match="partition"):
        partition.parse(text)


def test_text_and_back():
    for text in ("iid", "dirichlet:0.5", "label:2"):
        assert str(partition.parse(text)) == text


def test_the_picture_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "partition.png"
    partition.draw(np.array([[1, 2], [3, 0]]), path, "two clients")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["partition.png"]
