"""The verified ε of federated plans against closed forms, and who is asked how often."""

import collections
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.dp_event import NonPrivateDpEvent, SelfComposedDpEvent
from hypothesis import given
from hypothesis import strategies as st

from assay import Plan
from assay.accounting.epsilon import Adjacency, epsilon, gaussian_epsilon, rdp_epsilon
from assay.errors import ConfigError
from assay.federated import methods, schedule
from assay.federated.plan import FederatedPlan, Silo

from . import tiny

SETTINGS = {"clients": 100, "per_round": 10, "rounds": 200, "delta": 1e-3, "size": 1000}


def plan(method="fedavg", options=None, **settings):
    known = {**SETTINGS, "noise_multiplier": 2.0, "method": methods.get(method, **(options or {}))}
    return FederatedPlan(**{**known, **settings})


def test_central_is_dp_sgd_with_clients_for_records():
    like = Plan(records=100, batch_size=10, steps=200, noise_multiplier=2.0, delta=1e-3)
    assert plan().epsilon() == like.epsilon()
    assert plan().adjacency is Adjacency.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize("method", ["fedavg", "fedags", "fedsnlc"])
def test_local_is_a_gaussian_of_twice_the_bound_for_each_time_a_client_is_asked(method):
    """20 turns, replaced: one Gaussian of multiplier σ/(2√20), exactly (Balle and Wang 2018)."""
    local = plan(method, noise="local")
    assert local.turns == 20
    assert local.adjacency is Adjacency.REPLACE_ONE
    assert local.epsilon() == pytest.approx(gaussian_epsilon(2.0 / (2 * math.sqrt(20)), 1e-3), rel=1e-9)


def test_distributed_costs_what_the_rényi_divergences_of_a_gaussian_cost():
    shared, local = plan(noise="distributed"), plan(noise="local")
    assert shared.epsilon() == pytest.approx(rdp_epsilon(local.event(), 1e-3, Adjacency.REPLACE_ONE), rel=1e-3)
    assert shared.epsilon() >= local.epsilon()


def test_a_smaller_minimum_means_larger_shares_and_the_same_guarantee():
    few = plan(noise="distributed", minimum=5)
    share = few.source(1000)
    assert share.share * math.sqrt(5) / share.reach >= 2.0
    assert few.epsilon() == pytest.approx(plan(noise="distributed").epsilon(), rel=1e-3)


def test_records_are_protected_by_the_clients_own_dp_sgd():
    silo = Silo(records=300, batch_size=32, steps=5)
    record = plan(unit="record", silo=silo, per_round=100, noise_multiplier=1.1)
    like = Plan(records=300, batch_size=32, steps=200 * 5, noise_multiplier=1.1, delta=1e-3)
    assert record.epsilon() == pytest.approx(like.epsilon(), rel=1e-9)
    assert record.client_plan(900).epsilon() < record.epsilon(), "larger clients spend less"


@pytest.mark.parametrize("method", ["fedags", "fedsnlc"])
@pytest.mark.parametrize("target", [0.1, 0.5])
def test_published_forms_claim_their_target_and_are_verified_infinite(method, target):
    published = plan(method, {"variant": "published"}, noise="local").calibrated(target)
    assert 0.999 * target <= published.claimed() <= target
    assert published.epsilon() == math.inf
    assert published.turn_event == NonPrivateDpEvent()
    assert published.epsilon_limit is None


def test_choosing_by_svt_is_charged():
    """20 turns of ε = 0.1 beside the noise: more than the noise alone, no more than 2 on top, and δ(ε) composed, not
    forgotten.
    """
    alone = plan("fedags", noise="local", noise_multiplier=30.0)
    chosen = plan("fedags", {"select": "svt", "svt_epsilon": 0.1}, noise="local", noise_multiplier=30.0)
    assert alone.epsilon() * 1.02 < chosen.epsilon() <= alone.epsilon() + 20 * 0.1
    only = plan("fedags", {"select": "svt", "svt_epsilon": 0.1}, noise="local", noise_multiplier=1e8, rounds=10)
    # one turn: randomised response with odds e^0.1 at δ = 1e-3, (e^ε₀ - e^ε)/(1 + e^ε₀) = δ
    expected = math.log(math.exp(0.1) - 1e-3 * (1 + math.exp(0.1)))
    assert only.epsilon() == pytest.approx(expected, rel=0.01)
    assert only.epsilon() >= expected * (1 - 1e-9)


def test_the_claims_of_fedags():
    # Eq. 2 with ζ = e^-ε: σ = √(2 ln(1.25 e^ε))/ε for Δ = C
    for eps in (0.1, 0.2, 0.5):
        sigma = math.sqrt(2 * math.log(1.25 / math.exp(-eps))) / eps
        gaussian = plan("fedags", {"variant": "published"}, noise="local", noise_multiplier=sigma)
        assert gaussian.claimed() == pytest.approx(eps, rel=1e-12)
        # Theorem 2: ε = ε₁ + ε₂ + ε₃, noise of scale qΔ/ε₃
        options = {"variant": "published", "form": "laplace", "queries": 8, "value_share": 0.8}
        laplace = plan("fedags", options, noise="local", noise_multiplier=8 / (0.8 * eps))
        assert laplace.claimed() == pytest.approx(eps, rel=1e-12)
        first, second = laplace.method.split(laplace)
        assert first + second == pytest.approx(0.2 * eps)
        assert first / second == pytest.approx(8 ** (2 / 3))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {}),
        ("fedavg", {"noise": "local"}),
        ("fedavg", {"noise": "distributed"}),
        ("fedags", {}),
        ("fedsnlc", {"noise": "local"}),
        ("cpsgd", {"noise": "distributed"}),
        ("fedavg", {"unit": "record", "silo": Silo(records=600, batch_size=64, steps=2)}),
    ],
)
def test_calibration_and_json(method, settings):
    found = plan(method, **settings).calibrated(3.0)
    assert 0.999 * 3 <= found.epsilon() <= 3
    assert found.epsilon() <= found.claimed() * (1 + 1e-9), "papers' accountants are looser"
    assert FederatedPlan.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert replace(found, noise_multiplier=2 * found.noise_multiplier).epsilon() < found.epsilon()
    assert replace(found, rounds=400).epsilon() > found.epsilon()


def test_claimed_of_cpsgd_is_its_theorem_and_far_above_verified():
    found = plan("cpsgd", noise="distributed", noise_multiplier=30.0)
    assert found.epsilon() < found.claimed() < math.inf


@given(st.integers(1, 30), st.data(), st.integers(1, 40), st.integers(0, 1000))
def test_nobody_is_asked_more_often_than_is_counted(clients, data, rounds, seed):
    per_round = data.draw(st.integers(1, clients))
    asked = schedule.passes(clients, per_round, rounds, seed)
    counts = collections.Counter()
    for number, group in enumerate(asked):
        assert len(set(group)) == per_round == len(group)
        assert all(0 <= client < clients for client in group)
        counts.update(group)
        assert max(counts.values()) <= schedule.most_turns(clients, per_round, number + 1)
    assert asked == schedule.passes(clients, per_round, rounds, seed)


def test_ε_after_some_rounds_is_that_of_the_turns_so_far():
    local = plan(noise="local")
    assert local.event(10) == SelfComposedDpEvent(local.turn_event, 1)
    assert local.event(11) == SelfComposedDpEvent(local.turn_event, 2)
    assert epsilon(local.event(200), 1e-3, local.adjacency) == local.epsilon()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"clients": 0}, "clients"),
        ({"per_round": 101}, "per_round"),
        ({"rounds": 0}, "rounds"),
        ({"delta": 0.0}, "delta"),
        ({"clip": 0.0}, "clip"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise": "elsewhere"}, "noise"),
        ({"unit": "person"}, "unit"),
        ({"unit": "record"}, "silo"),
        ({"minimum": 3}, "min_answers"),
        ({"noise": "distributed", "minimum": 11}, "min_answers"),
        ({"method": "cpsgd"}, "noise"),
        ({"method": "cpsgd", "unit": "record"}, "unit"),
        ({"method": "fedags", "options": {"variant": "published"}}, "noise"),
    ],
)
def test_refusals(settings, field):
    with pytest.raises(ConfigError) as caught:
        plan(**settings)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nothing", {}),
        ("fedavg", {"variant": "published"}),
        ("fedags", {"least": "0"}),
        ("fedags", {"form": "cauchy"}),
        ("fedags", {"value_share": "1"}),
        ("fedags", {"weights": "all"}),
        ("fedags", {"select": "best"}),
        ("fedags", {"svt_epsilon": "0"}),
        ("fedags", {"queries": "0"}),
        ("fedsnlc", {"keep": "2"}),
        ("fedsnlc", {"score_share": "0"}),
        ("fedsnlc", {"warmup": "-1"}),
        ("cpsgd", {"levels": "4"}),
        ("cpsgd", {"level": "5"}),
    ],
)
def test_refused_methods(name, options):
    with pytest.raises(ConfigError):
        methods.get(name, **options)


def test_every_method_says_what_it_protects():
    for method in methods.available().values():
        assert set(method.units) <= {"client", "record"}
        assert method.units
        assert method.noises
        assert method.summary
        assert method.soundness
        assert methods.get(method.name, **methods.options(method)) == method


def test_the_sampling_rate_and_the_noise_are_those_that_run():
    """Over many rounds as many clients are drawn as the rate says (false alarm below 1e-6)."""
    from assay.randomness.streams import Seeded

    drawn = [len(plan().sampler.draw(i, Seeded(3))) for i in range(2000)]
    assert abs(np.mean(drawn) - 10) < 5 * math.sqrt(9 / 2000)
    assert tiny.plan().sampler.rate == 0.5
