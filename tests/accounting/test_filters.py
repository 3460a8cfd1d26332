"""The Rényi filter: what it allows is private, though every release is chosen after the last."""

import functools
import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import Adjacency, ConfigError
from assay.accounting.accountants.allocated import RandomAllocationDpEvent
from assay.accounting.epsilon import divergences, epsilon, gaussian_epsilon
from assay.accounting.filters import ANY, RenyiFilter

ADD, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE


def steps(multiplier, count, rate=0.01):
    return dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier)), count
    )


@pytest.mark.parametrize("order", [2, 8, 100])
@pytest.mark.parametrize("cost", [0.001, 0.3, 5.0])
def test_with_one_order_it_is_the_conversion_of_canonne_kamath_and_steinke(order, cost):
    found = RenyiFilter((order,), (1.0,)).epsilon([cost], 1e-5)
    known = max(0.0, rdp.compute_epsilon([order], [cost], 1e-5)[0])
    assert known <= found * (1 + 1e-9)
    assert found == pytest.approx(known, rel=2e-3, abs=2e-4)


@pytest.mark.parametrize(
    ("ceiling", "noise", "count"), [(3, 1.2, 900), (1, 4.0, 2000), (8, 0.7, 3000), (0.1, 9.0, 500)]
)
def test_it_costs_a_little_more_than_composition_that_is_not_adaptive(ceiling, noise, count):
    event = steps(noise, count)
    exact = epsilon(event, 1e-5, ADD)
    chosen = RenyiFilter.for_ceiling(ceiling, 1e-5)
    assert exact < chosen.epsilon(chosen.costs(event, ADD), 1e-5) < 1.6 * exact
    assert exact < ANY.epsilon(ANY.costs(event, ADD), 1e-5) < 1.6 * exact


@settings(max_examples=40)
@given(
    st.lists(st.floats(0.3, 50), min_size=1, max_size=20), st.floats(0.05, 10), st.sampled_from([1e-9, 1e-5, 1e-2, 0.3])
)
def test_gaussian_releases_that_are_allowed_are_within_the_ceiling(multipliers, ceiling, delta):
    chosen = RenyiFilter.for_ceiling(ceiling, delta)
    spent, precision = np.zeros(len(chosen.orders)), 0.0
    for multiplier in multipliers:
        cost = chosen.costs(dp_event.GaussianDpEvent(multiplier), ADD)
        if chosen.allows(spent + cost, ceiling, delta):
            spent, precision = spent + cost, precision + multiplier**-2
    if precision:
        assert gaussian_epsilon(precision**-0.5, delta) <= ceiling
        assert gaussian_epsilon(precision**-0.5, delta) <= chosen.epsilon(spent, delta) <= ceiling * (1 + 1e-5)


LEVELS = (0.3, 0.5, 0.7, 0.85, 0.95)


@functools.cache
def answer_cost(noise, orders):
    return divergences(dp_event.RandomizedResponseDpEvent(noise, 2), orders, REPLACE)


def outcomes(strategy, chosen, allowed, depth):
    """P and Q of every sequence of answers, where each level of noise follows from the answers before it."""
    pending = [((), 1.0, 1.0, np.zeros(len(chosen.orders)))]
    ended = []
    while pending:
        history, p, q, spent = pending.pop()
        noise = strategy(history)
        after = None if noise is None else spent + answer_cost(noise, chosen.orders)
        if after is None or len(history) == depth or not allowed(after):
            ended.append((p, q, spent))
            continue
        for answer in (0, 1):
            truth = (1 - noise / 2, noise / 2)
            pending.append(((*history, answer), p * truth[answer], q * truth[1 - answer], after))
    return ended


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.4, 1.0, 2.0]), st.sampled_from([0.001, 0.05, 0.3]))
def test_every_adaptive_sequence_is_private_by_brute_force(seed, ceiling, delta):
    """Levels of noise, and when to stop, are a random function of all answers so far; every outcome is enumerated."""
    chosen = RenyiFilter.for_ceiling(ceiling, delta)
    memo = {}

    def strategy(history):
        if history not in memo:
            draw = np.random.default_rng([seed, len(history), *history])
            memo[history] = None if draw.random() < 0.1 else float(draw.choice(LEVELS))
        return memo[history]

    ended = outcomes(strategy, chosen, lambda spent: chosen.allows(spent, ceiling, delta), depth=7)
    for one, other in ((0, 1), (1, 0)):
        assert math.fsum(path[one] for path in ended) == pytest.approx(1)
        passed = math.fsum(max(0.0, path[one] - math.exp(ceiling) * path[other]) for path in ended)
        assert passed <= delta
        # what has been spent so far may differ from outcome to outcome
        so_far = [(path, chosen.epsilon(path[2], delta)) for path in ended]
        assert math.fsum(max(0.0, p[one] - math.exp(e) * p[other]) for p, e in so_far) <= delta


def test_without_its_weights_the_best_order_of_each_outcome_would_allow_more():
    """Taking whichever order is best afterwards, at no cost, is not what is done here."""
    chosen = RenyiFilter.for_ceiling(1, 1e-5)
    costs = chosen.costs(dp_event.GaussianDpEvent(5), ADD)
    free = min(
        RenyiFilter((order,), (1.0,)).epsilon([cost], 1e-5) for order, cost in zip(chosen.orders, costs, strict=True)
    )
    assert free < chosen.epsilon(costs, 1e-5)


def test_costs_are_those_of_dp_accounting_and_bounds_where_it_has_none():
    orders = (2, 7, 32)
    event = steps(1.1, 50)
    accountant = rdp.RdpAccountant(orders=list(orders)).compose(event)
    np.testing.assert_allclose(divergences(event, orders, ADD), accountant.rdp, rtol=1e-9, atol=1e-10)
    sampled = divergences(dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(2)), orders, ADD)
    largest = math.log1p(0.1 * math.expm1(0.5))
    np.testing.assert_allclose(sampled, [min(largest, a * largest**2 / 2) for a in orders])
    assert np.isinf(divergences(dp_event.NonPrivateDpEvent(), orders, ADD)).all()
    assert np.isinf(divergences(steps(1, 5), orders, REPLACE)).all()
    assert (divergences(dp_event.ComposedDpEvent([]), orders, ADD) == 0).all()


def test_what_has_no_bound_is_never_allowed():
    chosen = RenyiFilter.for_ceiling(5, 1e-5)
    assert not chosen.allows([math.inf] * len(chosen.orders), 5, 1e-5)
    assert not chosen.allows([math.nan] * len(chosen.orders), 5, 1e-5)
    assert chosen.epsilon([math.inf] * len(chosen.orders), 1e-5) == math.inf
    assert chosen.epsilon([0.0] * len(chosen.orders), 1e-5) == 0
    some = [0.01 * order for order in chosen.orders]
    assert chosen.epsilon(some, 1e-5) < chosen.epsilon([math.inf, *some[1:]], 1e-5) < math.inf


@pytest.mark.parametrize(
    ("orders", "weights"), [((), ()), ((1, 2), (0.5, 0.5)), ((3, 2), (0.5, 0.5)), ((2, 3), (0.9, 0.9)), ((2,), (0.0,))]
)
def test_orders_and_weights_that_prove_nothing_are_refused(orders, weights):
    with pytest.raises(ConfigError):
        RenyiFilter(orders, weights)


def test_an_epoch_that_others_see_from_within_is_not_amplified():
    chosen, noise = RenyiFilter.for_ceiling(2, 1e-6), dp_event.GaussianDpEvent(3)
    epoch = dp_event.SelfComposedDpEvent(RandomAllocationDpEvent(20, noise), 4)
    whole = chosen.costs(dp_event.SelfComposedDpEvent(noise, 4), ADD)
    np.testing.assert_allclose(chosen.costs(epoch, ADD), whole)
    assert (divergences(epoch, chosen.orders, ADD) < whole).all()


def test_more_is_never_cheaper():
    chosen = RenyiFilter.for_ceiling(2, 1e-6)
    costs = [chosen.costs(steps(noise, count), ADD) for noise, count in itertools.product((3.0, 1.5, 1.0), (10, 100))]
    sums = list(itertools.accumulate(costs, lambda a, b: a + b))
    found = [chosen.epsilon(each, 1e-6) for each in sums]
    assert found == sorted(found)
