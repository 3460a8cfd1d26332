"""Bayesian correction: Algorithm 3 to the letter, its posterior mean, and priors that are learnt."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from assay import Plan, methods
from assay.errors import ConfigError
from assay.mechanisms.types import Stateful
from assay.methods.denoise.bayes import Bayes, thresholds

EQUAL = (1 / 3, 1 / 3, 1 / 3)
PRIORS = [
    EQUAL,
    (0.2, 0.6, 0.2),
    (0.1, 0.3, 0.6),
    (1e-9, 1 - 2e-9, 1e-9),
    (1e-9, 1e-9, 1 - 2e-9),
    (1 - 2e-9, 1e-9, 1e-9),
    (0.5, 1e-9, 0.5 - 1e-9),
]


def log_posteriors(y: float, nu: float, s: float, priors=EQUAL) -> tuple[float, float, float]:
    """Unnormalised, of down, stop and up: logarithms of the prior times the integral of the density."""
    down, up, inner, outer = norm.logcdf(np.array([-nu - y, y - nu, nu - abs(y), -nu - abs(y)]) / s)
    stop = inner + math.log(-math.expm1(outer - inner)) if outer < inner else -math.inf
    return tuple(math.log(p) + like for p, like in zip(priors, (down, stop, up), strict=True))


def algorithm_3(y: float, nu: float, s: float, priors=EQUAL) -> tuple[float, float]:
    """The emitted value, and how clear the decision is: the margin between the best two logarithms."""
    down, stop, up = log_posteriors(y, nu, s, priors)
    best, second = sorted((down, stop, up))[:0:-1]
    if up > down and up > stop:
        return nu, best - second
    if down > up and down > stop:
        return -nu, best - second
    return 0.0, best - second


def text(priors) -> str:
    return "/".join(repr(p) for p in priors)


def one(denoiser: Bayes, values, s: float) -> torch.Tensor:
    return denoiser({"w": torch.as_tensor(values, dtype=torch.float64)}, s)["w"]


@given(
    nu=st.floats(1e-4, 1.0),
    ratio=st.floats(-3, 2),
    priors=st.sampled_from(PRIORS),
    multiples=st.lists(st.floats(-60, 60), min_size=1, max_size=20),
)
def test_decisions_are_those_of_algorithm_3(nu, ratio, priors, multiples):
    """At any y, from the middle to sixty standard deviations out, wherever the literal formula can tell."""
    s = nu / 10**ratio
    y = [m * s for m in multiples] + [m * nu / 20 for m in multiples]
    got = one(Bayes(nu=nu, priors=text(priors)), y, s).tolist()
    for value, emitted in zip(y, got, strict=True):
        want, margin = algorithm_3(value, nu, s, priors)
        assert emitted == want or margin < 1e-8, (value, emitted, want, margin)


@pytest.mark.parametrize("sigma", [0.001, 0.02, 1.0])
def test_a_threshold_of_the_sum_decides_on_the_sum(sigma):
    """The `discrete` method with `scale=sum`: what Algorithm 1 prints, though averages are corrected."""
    nu, batch = 0.01, 256
    method = methods.get("discrete", nu=nu, scale="sum")
    plan = Plan(records=60000, batch_size=batch, steps=1, noise_multiplier=sigma, delta=1e-5, method=method)
    (correct,) = plan.chain(1.0).after
    sums = [m * nu for m in (-500, -3, -1.5, -0.7, -0.1, 0.1, 0.7, 1.5, 3, 500)]
    got = one(correct, [y / batch for y in sums], sigma / batch).tolist()
    assert got == [algorithm_3(y, nu, sigma)[0] for y in sums]


@pytest.mark.parametrize("priors", PRIORS)
@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.43, 0.44, 1.0, 2.5, 30.0])
def test_decisions_change_exactly_at_the_thresholds(priors, ratio):
    nu, s = 0.01, 0.01 / ratio
    below, above = thresholds(nu, s, priors)
    assert below <= above
    for point in (below, above):
        near = 1e-7 * max(abs(point), s)
        for y in (point - near, point + near):
            want, _ = algorithm_3(y, nu, s, priors)
            assert (nu if y > above else -nu if y < below else 0.0) == want


def test_stop_never_wins_under_equal_priors_when_the_noise_is_wide():
    """At y = 0, stop has 2Φ(ν/s)-1 against Φ(-ν/s): it wins from ν/s = Φ⁻¹(2/3) = 0.4307 on."""
    edge = float(norm.ppf(2 / 3))
    assert thresholds(1.0, 1 / (edge * 0.999), EQUAL) == (0.0, 0.0)
    below, above = thresholds(1.0, 1 / (edge * 1.001), EQUAL)
    assert below == -above < 0
    assert one(Bayes(nu=1.0), [-1e-300, 0.0, 1e-300], 10.0).tolist() == [-1.0, 0.0, 1.0], "a tie is 0"


def test_reference_values():
    """ν = s, equal priors: Φ(t+1) = 2Φ(t-1) at the threshold t."""
    _, above = thresholds(1.0, 1.0, EQUAL)
    assert norm.cdf(above + 1) == pytest.approx(2 * norm.cdf(above - 1), rel=1e-14)
    low, high = thresholds(1.0, 1.0, (0.3, 0.6, 0.1))
    assert norm.cdf(high + 1) == pytest.approx((1 + 0.1 / 0.6) * norm.cdf(high - 1), rel=1e-14)
    assert norm.cdf(-low + 1) == pytest.approx((1 + 0.3 / 0.6) * norm.cdf(-low - 1), rel=1e-14)
    assert thresholds(0.01, 1e-5, EQUAL)[1] == pytest.approx(0.01, rel=1e-12), "Φ(z) = ½ at z = 0 when ν ≫ s"


@pytest.mark.parametrize("priors", ["equal", "0.2/0.6/0.2", "0.9/0.05/0.05", "learnt"])
@pytest.mark.parametrize("emit", ["map", "mean"])
def test_without_noise_y_itself_decides(priors, emit):
    nu = 0.25
    y = [-math.inf, -1.0, math.nextafter(-nu, -1), -nu, -0.1, 0.0, nu, math.nextafter(nu, 1), 7.0, math.inf]
    for s in (0.0, 5e-324, 1e-30):
        got = one(Bayes(nu=nu, priors=priors, emit=emit), y, s).tolist()
        assert got == [-nu, -nu, -nu, 0.0, 0.0, 0.0, 0.0, nu, nu, nu]


@given(nu=st.floats(1e-3, 1.0), ratio=st.floats(-2, 1.5), priors=st.sampled_from(PRIORS))
def test_the_mean_is_the_posterior_mean(nu, ratio, priors):
    s = nu / 10**ratio
    y = np.concatenate([np.linspace(-40, 40, 17) * s, np.linspace(-3, 3, 17) * nu])
    got = one(Bayes(nu=nu, emit="mean", priors=text(priors)), y, s).numpy()
    logs = np.array([log_posteriors(v, nu, s, priors) for v in y])
    weights = np.exp(logs - logs.max(1, keepdims=True))
    want = nu * (weights[:, 2] - weights[:, 0]) / weights.sum(1)
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-12 * nu)


@pytest.mark.parametrize("emit", ["map", "mean"])
@given(nu=st.floats(1e-3, 1.0), ratio=st.floats(-3, 3), priors=st.sampled_from(PRIORS))
def test_larger_observations_never_give_smaller_values(emit, nu, ratio, priors):
    s = nu / 10**ratio
    y = torch.cat([torch.linspace(-50, 50, 801) * s, torch.linspace(-3, 3, 801) * nu, torch.tensor([-1e30, 1e30])])
    got = Bayes(nu=nu, emit=emit, priors=text(priors))({"w": y.sort().values}, s)["w"]
    assert bool(got.isfinite().all())
    assert float(got.abs().max()) <= nu * (1 + 1e-6)
    assert float(got.diff().min()) >= -1e-6 * nu


@given(ratio=st.floats(-2, 2), emit=st.sampled_from(["map", "mean"]))
def test_equal_priors_treat_both_directions_alike(ratio, emit):
    y = torch.linspace(0, 9, 200, dtype=torch.float64)
    denoiser, s = Bayes(nu=1.0, emit=emit), 10**-ratio
    torch.testing.assert_close(one(denoiser, -y, s), -one(denoiser, y, s), rtol=0, atol=1e-15)


def test_narrow_types_decide_as_wide_ones():
    """The two numbers of a type on either side of each threshold, compared exactly."""
    nu, s, priors = 0.01, 0.004, (0.1, 0.6, 0.3)
    below, above = thresholds(nu, s, priors)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        y = torch.tensor([below, above], dtype=torch.float64).to(dtype)
        step = torch.finfo(dtype).eps * 0.02
        y = torch.cat([y, (y.double() + step).to(dtype), (y.double() - step).to(dtype)])
        got = Bayes(nu=nu, priors=text(priors))({"w": y}, s)["w"]
        assert got.dtype == dtype
        want = [1 if v > above else -1 if v < below else 0 for v in y.double().tolist()]
        assert got.sign().tolist() == want


@pytest.mark.parametrize("emit", ["map", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shapes_types_and_layouts_are_kept(emit, dtype):
    shapes = {"a": (4, 3, 2), "b": (), "c": (0,), "d": (5, 6)}
    g = torch.Generator().manual_seed(0)
    grads = {name: (torch.randn(shape, generator=g) * 0.01).to(dtype) for name, shape in shapes.items()}
    grads["d"] = grads["d"].t()
    got = Bayes(emit=emit, priors="learnt")(grads, 0.004)
    assert list(got) == list(grads)
    for name, value in got.items():
        assert (value.dtype, value.shape) == (dtype, grads[name].shape)
        alone = Bayes(emit=emit)({"w": grads[name].flatten()}, 0.004)["w"]
        torch.testing.assert_close(value.flatten(), alone, rtol=1e-5, atol=1e-7)


def released(proportions, nu: float, s: float, count: int, steps: int):
    g = torch.Generator().manual_seed(11)
    for _ in range(steps):
        k = torch.multinomial(torch.tensor(proportions), count, replacement=True, generator=g) - 1
        yield nu * k + s * torch.randn(count, generator=g)


@pytest.mark.parametrize("proportions", [(0.2, 0.6, 0.2), (0.05, 0.9, 0.05), (0.5, 0.2, 0.3)])
@pytest.mark.parametrize("ratio", [1.0, 2.5, 8.0])
def test_learnt_priors_converge_to_the_true_proportions(proportions, ratio):
    """After 150 steps the start still shows by up to 0.013 (at ν = s), and the spread between seeds is 0.002: the bound
    lies more than 7 spreads away, false alarms below 1e-9."""
    nu = 0.01
    denoiser = Bayes(nu=nu, priors="learnt")
    for y in released(proportions, nu, nu / ratio, 20_000, 150):
        denoiser({"a": y[:5000], "b": y[5000:].view(3, -1)}, nu / ratio)
    learnt = denoiser.state()["priors"]
    assert sum(learnt) == pytest.approx(1, abs=1e-12)
    assert max(abs(p - q) for p, q in zip(learnt, proportions, strict=True)) < 0.03


def test_learnt_priors_start_equal_and_serve_the_next_release_only():
    y = {"w": torch.linspace(-0.03, 0.03, 501)}
    learning = Bayes(emit="mean", priors="learnt")
    first, second = learning(y, 0.01)["w"], learning(y, 0.01)["w"]
    assert torch.equal(first, Bayes(emit="mean")(y, 0.01)["w"])
    assert not torch.equal(first, second)


@pytest.mark.parametrize("value", [-1e30, 0.0, 1e30])
def test_learnt_priors_stay_proper_and_can_return(value):
    """Thousands of releases of one kind, then of another."""
    denoiser = Bayes(priors="learnt")
    for _ in range(2000):
        denoiser({"w": torch.full((10,), value)}, 0.004)
    assert min(denoiser.state()["priors"]) > 5e-5
    for _ in range(100):
        denoiser({"w": torch.full((10,), 0.01 if value <= 0 else -0.01)}, 0.004)
    assert denoiser.state()["priors"][2 if value <= 0 else 0] > 0.9


def test_what_is_not_finite_is_not_learnt_from():
    denoiser = Bayes(priors="learnt")
    denoiser({"w": torch.tensor([math.nan, 0.1])}, 0.01)
    denoiser({}, 0.01)
    assert denoiser.state() == Bayes(priors="learnt").state()


def test_state_survives_a_restart_and_copies_do_not_share_it():
    pristine = Bayes(priors="learnt", emit="mean")
    assert isinstance(pristine, Stateful)
    running = copy.copy(pristine)
    steps = [{"w": y} for y in released((0.1, 0.8, 0.1), 0.01, 0.005, 500, 6)]
    for y in steps[:3]:
        running(y, 0.005)
    assert pristine.state() == Bayes(priors="learnt").state() != running.state()
    resumed = copy.copy(pristine)
    resumed.restore(json.loads(json.dumps(running.state())))
    for y in steps[3:]:
        assert torch.equal(running(y, 0.005)["w"], resumed(y, 0.005)["w"])
    assert running.state() == resumed.state()


@pytest.mark.parametrize("priors", ["equal", "0.1/0.8/0.1"])
def test_given_priors_do_not_move(priors):
    denoiser = Bayes(priors=priors)
    before = denoiser.state()
    denoiser({"w": torch.ones(50)}, 0.01)
    assert denoiser.state() == before


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"nu": 0.0}, "bayes nu"),
        ({"nu": math.nan}, "bayes nu"),
        ({"nu": math.inf}, "bayes nu"),
        ({"emit": "median"}, "bayes emit"),
        ({"priors": "public"}, "bayes priors"),
        ({"priors": "0.5/0.5"}, "bayes priors"),
        ({"priors": "0.5/0.4/0.2"}, "bayes priors"),
        ({"priors": "0.5/0.5/0"}, "bayes priors"),
        ({"priors": "1.2/-0.4/0.2"}, "bayes priors"),
        ({"priors": "nan/0.5/0.5"}, "bayes priors"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(settings, field):
    with pytest.raises(ConfigError) as refused:
        Bayes(**settings)
    assert refused.value.field == field
