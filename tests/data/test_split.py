"""Which part a record belongs to follows from its own content."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay.data.split import SplitRule, drawn, one_of_five
from assay.errors import ConfigError
from assay.training.inputs import load

RNG = np.random.default_rng(7)
X = RNG.normal(size=(4000, 2)).astype(np.float32)
Y = RNG.integers(0, 4, len(X))


@given(st.lists(st.integers(0, 3999), min_size=1, max_size=40), st.sampled_from(["test", "validation", "records"]))
def test_any_others_in_any_order_change_nothing(chosen, purpose):
    """Duplicates among them too: equal records are in the same part."""
    whole = drawn(X, Y, purpose, 0.3)
    assert (drawn(X[chosen], Y[chosen], purpose, 0.3) == whole[chosen]).all()


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_the_share_is_about_what_was_asked_for_and_grows(share):
    """A fair draw fails with a probability of 1e-6 at most; the key is fixed, so it does not at all."""
    part = drawn(X, Y, "records", share)
    assert stats.binomtest(int(part.sum()), len(X), share).pvalue > 1e-6
    assert (drawn(X, Y, "records", share / 2) <= part).all()


def test_purposes_have_nothing_to_do_with_each_other():
    both = drawn(X, Y, "test", 0.5) & drawn(X, Y, "validation", 0.5)
    assert stats.binomtest(int(both.sum()), len(X), 0.25).pvalue > 1e-6


def test_the_draw_is_the_same_for_ever():
    x = np.arange(24, dtype=np.float32).reshape(12, 2)
    assert "".join("01"[one] for one in drawn(x, np.arange(12), "test", 0.5).tolist()) == "001010000011"
    assert np.flatnonzero(one_of_five(20)).tolist() == [0, 5, 13, 17]


def test_labels_are_content():
    assert (drawn(X, Y, "test", 0.5) != drawn(X, Y + 1, "test", 0.5)).any()


def test_rules_as_json():
    rule = SplitRule(share=0.25)
    assert SplitRule.from_json(rule.to_json()) == rule
    assert SplitRule.from_json(None).by == "position", "a run of an earlier version says nothing"
    for bad in ({"by": "luck"}, {"share": 0.0}, {"share": 1.5}, {"by": "position", "share": 0.5}):
        with pytest.raises(ConfigError, match="split"):
            SplitRule(**bad)


def test_one_record_less_in_a_file(tmp_path):
    """The training part differs by that record or not at all, whatever parts are asked for."""
    np.savez(tmp_path / "all.npz", x=X, y=Y)
    np.savez(tmp_path / "less.npz", x=X[1:], y=Y[1:])
    rule = SplitRule(share=0.4)
    for asked in ({}, {"validation": True}, {"rule": rule}, {"rule": rule, "validation": True}):
        one, other = (
            {row.tobytes() for row in load(str(tmp_path / name), None, None, **asked).train_x.numpy()}
            for name in ("all.npz", "less.npz")
        )
        assert one - other <= {X[0].tobytes()}
        assert other <= one


def test_a_run_of_an_earlier_version_gets_the_records_it_had():
    first = load("digits", None, 300, rule=SplitRule.from_json(None))
    whole = load("digits", None, None)
    assert first.train_x.equal(whole.train_x[:300])
    aside = load("digits", None, None, validation=True, rule=SplitRule.from_json(None))
    assert (len(aside.train_x), len(aside.test_x)) == (1291, 146)
