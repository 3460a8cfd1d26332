"""The lower bound on DPSUR's accepted updates (experiments/dpsur): DP-SGD's without selection, above the claim with."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay import Plan, methods
from assay.accounting.epsilon import Adjacency, epsilon, rdp_epsilon
from assay.audit.accepted import epsilon_of_accepted
from assay.audit.plans import audit_plan
from assay.audit.result import Verdict
from assay.randomness.streams import Seeded
from zoo import mutants


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


def theirs(kind=Plan, validation=256):
    """The authors' settings for MNIST and ε = 3, and trials enough for their updates."""
    return kind(
        records=60_000,
        batch_size=1024,
        steps=13_267,
        noise_multiplier=1.35,
        delta=1e-5,
        method=methods.get("dpsur", variant="published", validation=validation, sigma_v=0.9, updates=1585),
    )


@pytest.mark.parametrize(
    ("kind", "said"), [(Plan, Verdict.CLAIM_REFUTED), (mutants.ChargesTheAccepted, Verdict.BUG)], ids=["plan", "bug"]
)
def test_the_audit_refutes_a_claim_for_accepted_updates_alone(kind, said):
    """The seed is fixed. With another one the step's μ would be too large with a probability of at most 2.5 %."""
    found = audit_plan(theirs(kind), randomness=Seeded(0))
    assert found.verdict is said
    assert 3.2 < found.audit.epsilon < 3.7206, "what experiments/dpsur/bound.py has for the true noise"


def test_the_audit_of_accepted_updates_does_not_exceed_the_bound_for_the_true_noise(bound):
    setting = bound.SETTINGS[1]
    least = bound.epsilon_at_least(*setting.accepted(1.5, 1.5), 1585)
    found = epsilon_of_accepted(theirs(), 1 / 1.35, Seeded(0), significance=1e-6)
    assert 0.9 * least <= found <= least, "10,000 tests bound each rate; false alarms: 1e-6"
    assert epsilon_of_accepted(theirs(), 1 / 1.35, Seeded(0), significance=1e-6, steps=2000) < 0.5 * found
    often_empty = theirs(validation=2.5)
    assert epsilon_of_accepted(often_empty, 1 / 1.35, Seeded(0), significance=1e-6) == 0
