"""The trade-off curve: never below what an attacker can really reach, and what other tools compute."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy.stats import norm

from assay import ConfigError, Plan
from assay.accounting.accountants.allocated import RandomAllocationDpEvent
from assay.accounting.epsilon import Adjacency, epsilon_curve
from assay.accounting.tradeoff import RATES, tradeoff
from assay.runs.signoff import attackers, curve_in_words, sentence

ADD, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE
FINE = np.geomspace(1e-6, 0.5, 12)


def sampled(rate, sigma, steps):
    return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma)), steps)


RUNS = {
    "poisson": (sampled(0.02, 1.0, 200), ADD),
    "replaced": (sampled(0.02, 1.0, 200), REPLACE),
    "one step": (sampled(0.1, 0.7, 1), ADD),
    "fixed size": (
        dp_event.SelfComposedDpEvent(
            dp_event.SampledWithoutReplacementDpEvent(1000, 20, dp_event.GaussianDpEvent(2.0)), 100
        ),
        REPLACE,
    ),
    "laplace": (dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(8.0), 5), ADD),
    "answers": (dp_event.RandomizedResponseDpEvent(0.5, 4), REPLACE),
    "allocation": (dp_event.SelfComposedDpEvent(RandomAllocationDpEvent(10, dp_event.GaussianDpEvent(2.0)), 3), ADD),
    "mixture": (
        dp_event.SelfComposedDpEvent(dp_event.MixtureOfGaussiansDpEvent(2.0, (0.0, 1.0, 2.0), (0.8, 0.15, 0.05)), 20),
        ADD,
    ),
}


def gaussian_profile(mu, eps):
    return norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize("name", RUNS)
def test_true_positives_and_mu_follow_from_the_profile(name):
    """Every (ε, δ) bounds the true positives; μ bounds every δ. ε is within half a per cent of its exact value."""
    event, adjacency = RUNS[name]
    found = tradeoff(event, 1e-5, adjacency, FINE)
    points = epsilon_curve(event, [10 ** (-k / 4) for k in range(1, 29)], adjacency)
    delta, eps = np.array(points).T
    for rate, most in found.rates:
        few, many = np.exp(eps) * rate + delta, 1 - np.exp(-eps) * (1 - delta - rate)
        assert rate <= most <= 1.01 * min(few.min(), many.min(), 1.0)
    assert (np.diff([most for _, most in found.rates]) >= 0).all()
    assert found.apart == pytest.approx(1e-7)
    allowed, less = (np.array([gaussian_profile(mu, e) for e in eps]) for mu in (found.mu, 0.95 * found.mu))
    positive = eps > 0  # elsewhere δ is more than the curve has
    assert (delta <= 1.03 * allowed + found.apart)[positive].all()
    assert (delta > less + found.apart)[positive].any()  # a smaller μ is too small
    assert found.error >= float(np.max(((allowed - delta) / (1 + np.exp(eps)))[positive], initial=0.0)) - 2e-3


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_gaussian_noise_is_exactly_gdp(sigma):
    found = tradeoff(dp_event.GaussianDpEvent(sigma), 1e-5, ADD)
    assert (found.mu, found.error, found.apart) == (1 / sigma, 0.0, 0.0)
    for rate, most in found.rates:
        assert most == pytest.approx(norm.cdf(norm.ppf(rate) + 1 / sigma), rel=1e-9)
    assert tradeoff(dp_event.GaussianDpEvent(sigma), 1e-5, REPLACE).mu == 2 / sigma
    assert "exactly" in curve_in_words(found.to_json())


def test_no_attack_on_samples_of_the_real_pair_reaches_more():
    """100,000 draws of each world and the best test there is; a false alarm has probability below 1e-6 (5 σ)."""
    rate, sigma, draws = 0.3, 0.8, 100_000
    rng = np.random.default_rng(0)
    present = rng.normal(0.0, sigma, draws) + (rng.random(draws) < rate)
    absent = rng.normal(0.0, sigma, draws)
    found = tradeoff(sampled(rate, sigma, 1), 1e-5, ADD)
    for false, most in found.rates:
        threshold = norm.ppf(1 - false) * sigma  # the likelihood ratio grows with the value
        assert (absent > threshold).mean() == pytest.approx(false, abs=5 * math.sqrt(false / draws))
        reached = (present > threshold).mean()
        assert reached <= most + 5 * math.sqrt(most / draws)
        assert most == pytest.approx(reached, rel=0.15)


def test_runs_known_by_renyi_divergences_only_have_rates_and_no_mu():
    event = dp_event.ComposedDpEvent([dp_event.ZCDpEvent(0.1), sampled(0.01, 1.0, 100)])
    found = tradeoff(event, 1e-5, ADD)
    alone = tradeoff(sampled(0.01, 1.0, 100), 1e-5, ADD)
    assert (found.mu, found.error) == (None, None)
    for (rate, most), (_, less) in zip(found.rates, alone.rates, strict=True):
        assert rate < less < most < 1
    assert "not available" in curve_in_words(found.to_json())


def test_nothing_and_everything():
    nothing = tradeoff(dp_event.NoOpDpEvent(), 1e-5, ADD)
    assert nothing.rates == tuple((rate, rate) for rate in RATES)
    assert nothing.mu == 0
    everything = tradeoff(dp_event.NonPrivateDpEvent(), 1e-5, ADD)
    assert [most for _, most in everything.rates] == [1.0] * 3
    assert everything.to_json()["mu"] == "inf"
    assert "at most 100 %" in sentence(everything.to_json())


@pytest.mark.parametrize(("delta", "rates"), [(1.0, RATES), (-1.0, RATES), (1e-5, [1.5]), (1e-5, [math.nan])])
def test_what_is_out_of_range_is_refused(delta, rates):
    with pytest.raises(ConfigError):
        tradeoff(dp_event.GaussianDpEvent(1.0), delta, ADD, rates)


def test_a_plan_answers_and_records_of_earlier_versions_say_nothing():
    plan = Plan(records=60_000, batch_size=2048, steps=439, noise_multiplier=2.856, delta=1e-5)
    assert plan.tradeoff() == tradeoff(plan.event(), 1e-5, ADD)
    assert plan.tradeoff(steps=10).mu < plan.tradeoff().mu
    assert attackers({"verified": 1.0}) == []


REFERENCE = {
    # noise, rate, steps: true positives by riskcal 1.5.1 (`get_beta_from_pld`, grid 1e-3); μ and regret by gdpnum 0.1.2
    # (`get_mu_and_regret_for_dpsgd`, grid 1e-3, rates from 1e-7 to 1 - 1e-7)
    (2.856, 2048 / 60000, 439): ((0.002356, 0.019513, 0.153516), 0.26903, 0.00227),
    (1.0, 256 / 60000, 8000): ((0.004980, 0.034564, 0.218092), 0.51517, 0.00344),
    (4.0, 0.1, 200): ((0.003223, 0.024850, 0.178575), 0.37243, 0.00292),
    (0.8, 0.01, 1000): ((0.007847, 0.046342, 0.251189), 0.73245, 0.02810),
}


@pytest.mark.parametrize("setting", REFERENCE)
def test_as_riskcal_and_gdpnum(setting):
    """Both take a fixed grid, which is coarser for many steps. gdpnum leaves out what is rarer than 1e-7."""
    sigma, rate, steps = setting
    reached, mu, regret = REFERENCE[setting]
    found = tradeoff(sampled(rate, sigma, steps), 1e-5, ADD)
    assert [most for _, most in found.rates] == pytest.approx(reached, rel=5e-3)
    assert found.mu == pytest.approx(mu, rel=0.08)
    assert found.error == pytest.approx(regret, abs=0.012)
    riskcal = pytest.importorskip("riskcal.analysis.conversions")
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    losses = from_gaussian_mechanism(
        standard_deviation=sigma, sampling_prob=rate, value_discretization_interval=1e-3
    ).self_compose(steps)
    for false, most in found.rates:
        assert most == pytest.approx(1 - float(riskcal.get_beta_from_pld(losses, false)), rel=5e-3)
