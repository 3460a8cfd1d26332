"""A printed ε never claims more than was computed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay._util.figures import at_least, at_most, shown
from assay.audit import Verdict, sentence


@given(st.floats(1e-12, 1e12))
def test_rounding_goes_to_the_side_that_is_true(value):
    assert float(at_least(value)) <= value <= float(at_most(value))
    assert float(at_most(value)) == pytest.approx(value, rel=1.01e-3)


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [(0.1, "0.1", "0.1"), (0.99124, "0.9913", "0.9912"), (12.96, "12.96", "12.96"), (0.0, "0", "0")],
)
def test_figures(value, up, down):
    assert at_most(value) == up
    assert at_least(value) == down


def test_infinity_stays_what_it_is():
    assert at_most(math.inf) == "inf"
    assert shown("inf") == "∞ (no privacy)"


def test_a_verdict_claims_no_more_than_was_shown():
    assert "at least ε = 12.96 with" in sentence(Verdict.CLAIM_REFUTED, 12.969, 0.95)
    assert shown(12.3456, lower_bound=True) == "12.34"
    assert shown(12.3451) == "12.35"
