"""One step audited through its real chain: tight where it is sound, and never above."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from assay import Plan, methods
from assay.audit.bounds import epsilon_of_mu
from assay.audit.single_step import audit_step
from assay.audit.specimen import Specimen, flat, releases_of
from assay.gradients import clipping
from assay.mechanisms.gaussian import Gaussian
from assay.methods.chain import Chain
from assay.randomness.streams import Seeded

DELTA = 1e-5


def chain(name: str = "dpsgd", *, clip: str | None = None, noise: float = 1.0, micro: int = 1, **options) -> Chain:
    method = methods.get(name, **options)
    plan = Plan(
        records=1000,
        batch_size=100,
        steps=1,
        noise_multiplier=noise,
        delta=DELTA,
        method=method,
        clip=clipping.parse(clip or str(method.clip)),
        micro_batch=micro,
    )
    return plan.for_layers(Specimen().names).chain()


def audited(under_audit: Chain, **options):
    return audit_step(under_audit, Specimen(), delta=DELTA, randomness=Seeded(1), **options)


@pytest.mark.parametrize("noise", [0.4, 0.8])
def test_the_gaussian_bound_is_within_a_tenth_of_the_steps_epsilon(noise):
    """Fixed seed. A bound above the true ε has a probability of 5 % at most (0.3 % for these two counts together)."""
    true = epsilon_of_mu(1 / noise, DELTA)
    found = audited(chain(noise=noise))
    assert 0.9 * true < found.epsilon <= true
    assert 0 < found.epsilon_any < found.epsilon


@pytest.mark.parametrize(
    "under_audit",
    [
        chain(clip="flat:0.5"),
        chain(clip="per-layer:1.0"),
        chain(clip="auto:2.0"),
        chain(clip="adaptive:0.5"),
        chain(micro=4),
        chain("discrete", micro=4),
        chain("gredp"),
        chain("gredp", variant="published"),
    ],
    ids=str,
)
def test_the_canary_moves_the_sum_by_all_that_is_declared(under_audit):
    """Deterministic: the audit is worth something because its canary is as bad as a record can be, and no worse."""
    found = audited(under_audit, releases=500)
    declared = 1 / under_audit.event().noise_multiplier
    assert 0.998 * under_audit.l2 < found.sensitivity <= under_audit.l2 * (1 + 1e-6)
    assert 0.6 * declared < found.mu < 1.1 * declared


def test_the_direction_with_the_least_noise_is_found():
    """Noise of 0.9 in even and 0.3 in odd directions (a/b): the audit sees more than 0.75 of what 0.3 gives away."""
    found = audited(chain("gredp", variant="published", noise_form="0.9/0.3", noise=4.0), releases=2500)
    declared = math.sqrt(4) / (4.0 * 0.3)
    assert 0.75 * declared < found.mu <= declared
    assert "least noise" in found.canary


def test_real_valued_frequency_noise_leaves_a_direction_bare():
    found = audited(chain("gredp", variant="published", noise_form="real", noise=100.0))
    assert found.mu == found.epsilon == found.epsilon_any == math.inf
    assert "without noise" in found.canary


def test_a_bound_that_nobody_enforces_is_no_bound():
    found = audited(Chain(clip=clipping.Assumed(bound=1.0), noise=Gaussian(multiplier=1.0, reference=1.0)))
    assert found.epsilon == math.inf
    assert "nothing bounds it" in found.canary


def test_no_noise_is_no_privacy():
    assert audited(chain(noise=0.0)).epsilon == math.inf


@dataclass(frozen=True, kw_only=True)
class Elsewhere(Gaussian):
    """A mechanism that returns new tensors."""

    def release(self, grads, stream):
        private = super().release(grads, stream)
        return replace(private, value={name: value.clone() for name, value in private.value.items()})


def test_releases_are_the_chains_own_and_independent():
    under_audit = chain(noise=2.0)
    specimen = Specimen()
    total = specimen.total(under_audit, torch.ones(1, specimen.size), None)
    streams = [Seeded(4).stream("a", i) for i in range(300)]
    found = releases_of(under_audit, total, streams)
    again = releases_of(
        replace(under_audit, noise=Elsewhere(multiplier=2.0)), total, [Seeded(4).stream("a", i) for i in range(300)]
    )
    assert torch.equal(found, again)
    spread = (found - flat(total)) / (2.0 * under_audit.l2)
    assert spread.unique().numel() == spread.numel()
    # 300 × 41 standard normal numbers: the mean is within 6 standard errors but for 2e-9 of the time
    assert abs(float(spread.mean())) < 6 / math.sqrt(spread.numel())
