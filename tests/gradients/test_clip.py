"""Clip rules: the scaled norm of a record never passes `l2`, whatever the norms; text and state round trips."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.errors import ConfigError
from assay.gradients.clipping import AdaptiveQuantile, Automatic, ClipRule, Flat, PerLayer, parse

RULES = {"flat": Flat, "per-layer": PerLayer, "auto": Automatic, "adaptive": AdaptiveQuantile}
every_rule = pytest.mark.parametrize("kind", RULES)
DTYPES = [torch.float32, torch.float64]
bounds = st.floats(1e-6, 1e6)


def adversarial(dtype: torch.dtype) -> st.SearchStrategy[float]:
    """Zero, the least subnormal, the least normal, the largest number, and everything between."""
    limits = torch.finfo(dtype)
    special = [0.0, limits.smallest_normal * limits.eps, limits.smallest_normal, 1.0, 1 + limits.eps, limits.max]
    width = 32 if dtype == torch.float32 else 64
    exponents = st.floats(math.log10(limits.smallest_normal), math.log10(limits.max) - 0.01)
    return st.one_of(
        st.sampled_from(special),
        st.floats(0.0, limits.max, width=width),
        exponents.map(lambda e: min(10.0**e, limits.max)),
    )


@st.composite
def norms(draw: st.DrawFn, dtype: torch.dtype, groups: int) -> Tensor:
    records = draw(st.integers(1, 5))
    values = draw(st.lists(adversarial(dtype), min_size=records * groups, max_size=records * groups))
    return torch.tensor(values, dtype=dtype).view(records, groups)


def scaled(weights: Tensor, given: Tensor) -> Tensor:
    """Each record's norm after scaling, over all groups: exact products, in float64 and without overflow."""
    products = weights.double() * given.double()
    return torch.tensor([math.hypot(*row) for row in products.tolist()], dtype=torch.float64)


def make(kind: str, bound: float) -> ClipRule:
    return RULES[kind](bound=bound)


@every_rule
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=80, deadline=None, derandomize=True)
@given(data=st.data(), bound=bounds)
def test_never_above_the_bound(kind: str, dtype: torch.dtype, data: st.DataObject, bound: float) -> None:
    rule = make(kind, bound)
    layers = [str(i) for i in range(data.draw(st.integers(1, 6)))]
    groups = rule.groups(layers)
    given_norms = data.draw(norms(dtype, max(groups) + 1))
    weights = rule.weights(given_norms)
    assert weights.shape == given_norms.shape
    assert (weights >= 0).all()
    assert torch.isfinite(weights).all()
    assert (scaled(weights, given_norms) <= rule.l2).all()


@every_rule
def test_never_above_the_bound_far_from_it(kind: str) -> None:
    """A weight so small that float32 holds only a few of its bits is rounded down, not to the nearest."""
    for bound in (1.0, 1e-3, 1e-6):
        given_norms = torch.linspace(1e38, 3.4e38, 200).unsqueeze(1)
        assert (scaled(make(kind, bound).weights(given_norms), given_norms) <= bound).all()


@every_rule
def test_groups(kind: str) -> None:
    layers = ["a", "a.b", "c"]
    assert make(kind, 1.0).groups(layers) == ([0, 1, 2] if kind == "per-layer" else [0, 0, 0])
    assert make(kind, 0.7).l2 == 0.7


@pytest.mark.parametrize("kind", ["flat", "adaptive"])
@settings(max_examples=100, deadline=None, derandomize=True)
@given(bound=st.floats(0.01, 100), norm=st.floats(2.0**-20, 2.0**20, width=32))
def test_flat_is_the_least_scaling(kind: str, bound: float, norm: float) -> None:
    """Below the bound a gradient is left alone, above it comes out at the bound (less a few parts in a million)."""
    (weight,) = make(kind, bound).weights(torch.tensor([[norm]])).flatten().tolist()
    if norm <= bound * (1 - 1e-5):
        assert 1 - 1e-5 <= weight <= 1
    else:
        assert weight * norm >= min(norm, bound) * (1 - 1e-5)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(bound=st.floats(0.01, 100), layers=st.integers(1, 8))
def test_per_layer_spends_the_whole_bound(bound: float, layers: int) -> None:
    given_norms = torch.full((1, layers), 1e6)
    total = float(scaled(PerLayer(bound=bound).weights(given_norms), given_norms))
    assert bound * (1 - 1e-5) <= total <= bound


@settings(max_examples=100, deadline=None, derandomize=True)
@given(bound=st.floats(0.01, 100), gamma=st.floats(1e-4, 1), norm=st.floats(0, 2.0**20, width=32))
def test_automatic_is_the_formula(bound: float, gamma: float, norm: float) -> None:
    (weight,) = Automatic(bound=bound, gamma=gamma).weights(torch.tensor([[norm]])).flatten().tolist()
    assert weight == pytest.approx(bound / (norm + gamma), rel=1e-5)


def test_zero_gradient_has_a_finite_weight() -> None:
    for kind in RULES:
        assert torch.isfinite(make(kind, 1.0).weights(torch.zeros(2, 1))).all()


# the adaptive bound


@settings(max_examples=100, deadline=None, derandomize=True)
@given(values=st.lists(st.floats(0, 10), min_size=1, max_size=8), quantile=st.floats(0.05, 0.95))
def test_adaptive_moves_towards_the_quantile(values: list[float], quantile: float) -> None:
    rule = AdaptiveQuantile(bound=2.0, quantile=quantile)
    given_norms = torch.tensor(values, dtype=torch.float64).unsqueeze(1)
    below = sum(v <= 2.0 for v in values) / len(values)
    rule.receive(float(rule.measure(given_norms[:, 0], given_norms)), len(values))
    assert rule.bound == pytest.approx(2.0 * math.exp(-rule.rate * (below - quantile)), rel=1e-12)
    if not math.isclose(below, quantile):
        assert (rule.bound < 2.0) == (below > quantile)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(values=st.lists(st.floats(0, 10), max_size=8), extra=st.floats(0, 1e30))
def test_adaptive_count_moves_by_its_sensitivity(values: list[float], extra: float) -> None:
    rule = AdaptiveQuantile(bound=2.0)
    counts = []
    for present in (values, [*values, extra]):
        given_norms = torch.tensor(present, dtype=torch.float64).view(-1, 1)
        counts.append(float(rule.measure(given_norms[:, 0], given_norms)))
    assert abs(counts[1] - counts[0]) == rule.sensitivity


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("start", [1e-3, 1.0, 1e3])
def test_adaptive_ends_at_the_quantile(start: float, quantile: float) -> None:
    """Fixed norms, no noise: the bound ends between the order statistics around the quantile, give or take a step."""
    given_norms = torch.distributions.LogNormal(0.0, 1.0).sample((1001, 1)).double()
    rule = AdaptiveQuantile(bound=start, quantile=quantile)
    for _ in range(1500):
        rule.receive(float(rule.measure(given_norms[:, 0], given_norms)), len(given_norms))
    assert rule.bound == pytest.approx(float(given_norms.quantile(quantile)), rel=0.02)
    assert float((given_norms <= rule.bound).double().mean()) == pytest.approx(quantile, abs=0.01)


def test_adaptive_one_step_is_bounded_whatever_the_noise() -> None:
    for noisy in (-1e9, 1e9):
        rule = AdaptiveQuantile(bound=1.0, rate=0.2)
        rule.receive(noisy, 10)
        assert math.exp(-0.2) <= rule.bound <= math.exp(0.2)


@pytest.mark.parametrize("noisy", [1e9, -1e9], ids=["always below", "always above"])
def test_adaptive_survives_any_number_of_steps(noisy: float) -> None:
    """Records without gradient (all fitted) pull the bound down for ever: the weights stay numbers, the state valid."""
    rule = AdaptiveQuantile(bound=1.0)
    for _ in range(20_000):
        rule.receive(noisy, 10)
    given_norms = torch.tensor([[0.0], [1e-30], [1.0], [1e30]])
    weights = rule.weights(given_norms)
    assert torch.isfinite(weights).all()
    assert (scaled(weights, given_norms) <= rule.l2).all()
    AdaptiveQuantile().restore(rule.state())


def test_adaptive_state_round_trip() -> None:
    rule, other = AdaptiveQuantile(bound=1.0), AdaptiveQuantile(bound=1.0)
    rule.receive(3.0, 10)
    other.restore(rule.state())
    assert other.bound == rule.bound != 1.0
    assert str(other) == str(rule)  # says how it began, not where it stands
    with pytest.raises(ConfigError):
        other.restore({"bound": float("nan")})


# text


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("0.5", Flat(bound=0.5)),
        ("1e-3", Flat(bound=1e-3)),
        ("flat", Flat()),
        ("flat:2", Flat(bound=2.0)),
        ("per-layer:0.25", PerLayer(bound=0.25)),
        ("auto:1", Automatic(bound=1.0)),
        ("auto:1:gamma=0.1", Automatic(bound=1.0, gamma=0.1)),
        ("auto:gamma=0.1", Automatic(gamma=0.1)),
        (
            "adaptive:0.5:quantile=0.7:rate=0.1:share=0.02",
            AdaptiveQuantile(bound=0.5, quantile=0.7, rate=0.1, share=0.02),
        ),
    ],
)
def test_parse(text: str, rule: ClipRule) -> None:
    assert parse(text) == rule
    assert str(parse(str(rule))) == str(rule)


numbers = st.floats(1e-9, 1e9)
shares = st.floats(0.001, 0.999)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    rule=st.one_of(
        st.builds(Flat, bound=numbers),
        st.builds(PerLayer, bound=numbers),
        st.builds(Automatic, bound=numbers, gamma=numbers),
        st.builds(AdaptiveQuantile, bound=numbers, quantile=shares, rate=numbers, share=shares),
    )
)
def test_text_says_the_rule_exactly(rule: ClipRule) -> None:
    """The run's record names the rule by its text: another bound than the one in force would be a false statement."""
    assert parse(str(rule)) == rule


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "nan",
        "inf",
        "flat:",
        "flat:x",
        "flat:0",
        "flat:1:2",
        "flat:1:gamma=0.1",
        "flat:1:bound=2",
        "layer:1",
        "1:2",
        "auto:1:gamma=0",
        "auto:1:gamma",
        "auto:1:gamma=",
        "auto:1:gamma=0.1:gamma=0.2",
        "adaptive:1:quantile=0",
        "adaptive:1:quantile=1",
        "adaptive:1:quantile=nan",
        "adaptive:1:share=1",
        "adaptive:1:rate=-1",
        "adaptive:1:colour=2",
    ],
)
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="clip") as refused:
        parse(text)
    assert refused.value.exit_code == 2
