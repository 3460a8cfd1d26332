"""One round of a federated method, audited: what leaves without noise is found, and sound methods stay below
their ε.
"""

import math
from dataclasses import replace

import pytest

from assay import ConfigError
from assay.audit import Verdict
from assay.audit.rounds import audit_rounds, composed
from assay.audit.survey import federation
from assay.federated import methods
from assay.federated.plan import Silo
from assay.mechanisms.gaussian import Gaussian
from assay.randomness.streams import Seeded

DELTA = 1e-3
SOUND = [(name, noise) for name in methods.available() for noise in methods.get(name).noises]


def plan(name, noise=None, epsilon=2.0, **options):
    made = federation(methods.get(name, **options), delta=DELTA)
    made = replace(made, per_round=3, clients=30) if noise == "distributed" else made
    return replace(made, noise=noise or made.noise).calibrated(epsilon)


@pytest.mark.parametrize(("name", "noise"), SOUND)
def test_no_sound_method_is_refuted(name, noise):
    """Fixed seed; the bound has 95 % confidence and nothing near the verified ε to fail by."""
    found = audit_rounds(plan(name, noise), releases=600, randomness=Seeded(0))
    assert found.verdict is Verdict.CONSISTENT
    assert found.audit.epsilon <= found.verified


@pytest.mark.parametrize("name", ["fedags", "fedsnlc"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_what_is_published_is_refuted(name, epsilon):
    found = audit_rounds(plan(name, epsilon=epsilon, variant="published"), releases=200, randomness=Seeded(0))
    assert found.verdict is Verdict.CLAIM_REFUTED
    assert found.audit.epsilon == math.inf
    assert "without noise" in found.step.canary


@pytest.mark.parametrize("few", [0, 1, 99])
def test_too_few_rounds_are_refused(few):
    with pytest.raises(ConfigError, match=r"releases = .*: a whole number, 100 or above"):
        audit_rounds(plan("fedavg"), releases=few, randomness=Seeded(0))


def test_the_fewest_rounds_do_not_refute_a_sound_plan():
    assert audit_rounds(plan("fedavg"), releases=100, randomness=Seeded(0)).verdict is Verdict.CONSISTENT


def test_most_of_a_rounds_privacy_is_seen():
    """Fixed seed: μ = 1/σ with central noise, within a fifth of it at 6,000 rounds in each world."""
    made = plan("fedavg")
    found = audit_rounds(made, randomness=Seeded(1))
    assert 0.7 / made.noise_multiplier < found.step.mu <= 1 / made.noise_multiplier
    assert 0.5 * found.verified < found.audit.epsilon <= found.verified


def test_a_server_that_adds_too_little_noise_is_found_out(monkeypatch):
    """Half the noise that is charged: fixed seed, and far outside what chance allows (μ doubles)."""
    release = Gaussian.release
    monkeypatch.setattr(
        Gaussian, "release", lambda self, *given: release(replace(self, multiplier=self.multiplier / 4), *given)
    )
    found = audit_rounds(plan("fedavg"), randomness=Seeded(0))
    assert found.verdict is Verdict.BUG


def test_turns_that_are_seen_are_composed_without_amplification():
    hidden, seen = plan("fedavg"), plan("fedavg", "local")
    assert composed(hidden, 0.0) == 0.0
    assert composed(hidden, math.inf) == math.inf
    assert composed(hidden, 1 / hidden.noise_multiplier) == pytest.approx(hidden.epsilon() / 1.01, rel=1e-6)
    # a client that is replaced moves by twice its bound
    assert composed(seen, 2 / seen.noise_multiplier) == pytest.approx(seen.epsilon() / 1.01, rel=1e-6)


def test_records_are_audited_elsewhere():
    made = replace(plan("fedavg"), unit="record", silo=Silo(records=100, batch_size=10, steps=3))
    with pytest.raises(ConfigError, match=r"unit.*record.*dpsgd"):
        audit_rounds(made)
