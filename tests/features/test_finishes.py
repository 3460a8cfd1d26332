"""Features that are changed after they were computed: bounded in length, or preconditioned by generated pictures."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import features
from assay.data import load
from assay.errors import ConfigError
from assay.features.length import Length
from assay.features.precondition import Precondition, pink


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "assay" / "features"


ENTRIES = st.one_of(st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, 1e-40, 1e-30, -1e30, math.inf, math.nan]))


@settings(max_examples=30)
@given(
    row=st.lists(ENTRIES, min_size=1, max_size=4),
    norm=st.sampled_from([None, 0.5, 10.0]),
    how=st.sampled_from(["clip", "scale"]),
)
def test_no_record_is_longer_than_the_norm(row, norm, how):
    x = torch.tensor([row])
    found = Length(norm=norm, how=how).scaled(x)
    limit = math.sqrt(len(row)) if norm is None else norm
    length = float(found.double().norm())
    assert length <= limit * (1 + 1e-6)
    if not bool(x.isfinite().all()) or not bool(x.any()):
        assert length == 0
    elif how == "scale":
        assert length == pytest.approx(limit, rel=1e-5) or float(x.abs().max()) < 1e-35
    elif float(x.double().norm()) <= limit:
        torch.testing.assert_close(found, x)


def test_the_preconditioner_evens_out_the_probes_and_keeps_their_length():
    mixing = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)) @ torch.diag(
        torch.tensor([5.0, 2, 1, 1, 1, 1])
    )

    def extract(x):
        return x.flatten(1)[:, :6] @ mixing

    probes = extract(pink(500, 8))
    probes = probes - probes.mean(0)
    for power in (0.0, 0.25, 0.5):
        mapped = Precondition(power=power, floor=1e-6, count=500).map_for(extract, (3, 8, 8))(probes)
        assert float(mapped.square().sum()) == pytest.approx(float(probes.square().sum()), rel=1e-3)
        values = torch.linalg.eigvalsh(mapped.T @ mapped)
        plain = torch.linalg.eigvalsh(probes.T @ probes)
        # the logarithms of the variances shrink by 1 - 2·power
        ratio = (values[-1] / values[0]).log() / (plain[-1] / plain[0]).log()
        assert float(ratio) == pytest.approx(1 - 2 * power, abs=0.02)
    assert torch.equal(pink(3, 8), pink(3, 8)), "the same pictures at every call"
    assert float(pink(20, 16).abs().max()) <= 1


def test_each_record_is_changed_by_itself_and_the_cache_holds_what_comes_before(own_cache):
    # a count of its own: what another test of this process has asked for is not computed again
    kind = features.parse("length:norm=3+precondition:count=251+scatter:J=1,L=2")
    assert features.parse(features.describe(kind)) == kind
    x = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    together = kind.extract(x)
    assert len(list(own_cache.iterdir())) == 1  # those of the generated pictures
    alone = torch.cat([kind.extract(one) for one in x.split(1)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)
    assert float(together.flatten(1).norm(dim=1).max()) <= 3 * (1 + 1e-5)
    plain = features.parse("scatter:J=1,L=2")
    bundle = load("digits")
    before = features.of_bundle(plain, bundle)
    there = set(own_cache.iterdir())
    after = features.of_bundle(features.parse("length:norm=1+scatter:J=1,L=2"), bundle)
    assert set(own_cache.iterdir()) == there, "nothing is computed again, and nothing else is kept"
    torch.testing.assert_close(after.train_x, Length(norm=1.0).scaled(before.train_x))
    assert "cut to norm 1" in after.notes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("length:norm=0+scatter", "norm"),
        ("length:how=half+scatter", "clip or scale"),
        ("precondition:power=2+scatter", "from 0 to 1"),
        ("precondition:floor=0+scatter", "above 0"),
        ("precondition:probes=cats+scatter", "pink, leaves"),
        ("precondition:count=3+scatter", "from 250"),
        ("mirror+length+scatter", "right before what it prepares"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        features.parse(text)


def test_noise_in_place_of_pictures_needs_pictures():
    with pytest.raises(ConfigError, match="3 channels"):
        features.parse("precondition+scatter").check((1, 28, 28))
    with pytest.raises(ConfigError, match="square"):
        features.parse("precondition+scatter").check((3, 28, 14))
