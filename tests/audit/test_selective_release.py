"""The lower bound on DPSUR's accepted updates (experiments/dpsur): DP-SGD's without selection, above the claim with."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay.accounting.epsilon import Adjacency, epsilon, rdp_epsilon


@pytest.fixture(scope="module")
def bound():
    path = Path(__file__).parents[2] / "experiments/dpsur/bound.py"
    spec = importlib.util.spec_from_file_location("dpsur_bound", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


NEVER = 9.0


def test_without_selection_it_is_the_subsampled_gaussian(bound):
    setting = bound.SETTINGS[0]
    pair = setting.accepted(NEVER, NEVER)
    event = SelfComposedDpEvent(PoissonSampledDpEvent(setting.rates[0], GaussianDpEvent(setting.sigma)), 576)
    exact = epsilon(event, bound.DELTA, Adjacency.ADD_OR_REMOVE_ONE)
    least = bound.epsilon_at_least(*pair, 576)
    assert 0.97 * exact <= least <= exact
    assert bound.excess(setting, *pair)[0] < 1


def test_the_claim_charges_for_validation_too(bound):
    setting = bound.SETTINGS[0]
    rate = setting.rates[0]
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(setting.sigma)), 576)
    assert setting.claimed(576) > 1.01 * rdp_epsilon(event, bound.DELTA, Adjacency.ADD_OR_REMOVE_ONE)


def test_an_accepted_update_costs_more_than_the_paper_charges(bound):
    setting = bound.SETTINGS[1]
    times, order = bound.excess(setting, *setting.accepted(1.5, 1.5))
    assert order == 2
    assert times == pytest.approx(1.765, abs=1e-3)
    assert setting.claimed(1585) <= 3.0
    assert bound.epsilon_at_least(*setting.accepted(1.5, 1.5), 1585) > 3.6
