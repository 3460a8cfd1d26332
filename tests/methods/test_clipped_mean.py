"""DP-LSSGD as its authors' code runs it: the mean of a batch is clipped, and the ledger charges what that is worth."""

from __future__ import annotations

import math

import pytest
import torch

from assay import methods
from assay.accounting.epsilon import Adjacency
from assay.audit.plans import audit_plan
from assay.audit.result import Verdict
from assay.data.samplers.permuted import Permuted
from assay.data.samplers.poisson import Poisson
from assay.data.samplers.without_replacement import WithoutReplacement
from assay.errors import AssayError, ConfigError
from assay.gradients.clip_rules.assumed import Assumed
from assay.gradients.clip_rules.flat import Flat
from assay.mechanisms.types import Bounded
from assay.methods.encode.mean import ClippedMean
from assay.methods.plan import Plan
from assay.randomness.streams import Seeded

# The noise that the authors' scripts add to the mean gradient, by the ε that the paper's Table 2 states for it.
NOISE = {0.3: 0.1162, 0.25: 0.1393, 0.2: 0.1739, 0.15: 0.2316, 0.1: 0.3471}


def authors(epsilon=0.1, sampling=Poisson, **more):
    settings = {
        "records": 60_000,
        "batch_size": 128,
        "steps": 50 * 469,
        "delta": 1e-5,
        "clip": Assumed(1.0),
        "sampling": sampling,
        "adjacency": Adjacency.REPLACE_ONE if sampling.replaces else Adjacency.ADD_OR_REMOVE_ONE,
        "method": methods.get("lssgd", variant="authors", groups=2),
    }
    return Plan.calibrated(epsilon=epsilon, **{**settings, **more})


@pytest.mark.parametrize(("epsilon", "noise"), NOISE.items())
def test_noise_is_that_of_the_authors_scripts(epsilon, noise):
    assert authors(epsilon).noise_multiplier / 128 == pytest.approx(noise, rel=2e-3)


@pytest.mark.parametrize(("sampling", "verified"), [(Poisson, 2242), (Permuted, 1905)])
def test_a_claim_of_a_tenth_is_worth_this(sampling, verified):
    # The mean of each of two tensors moves by 2: multiplier 0.3471/√8, over 23,450 Poisson steps or 50 epochs.
    plan = authors(sampling=sampling)
    assert plan.claimed() == pytest.approx(0.1, rel=1e-3)
    assert plan.epsilon() == pytest.approx(verified, rel=5e-3)


def test_a_long_gradient_turns_any_mean_round_and_no_further():
    clip = ClippedMean(bound=1.0, size=4.0, tensors=2, substituted=False)
    stream = torch.Generator().manual_seed(0)
    others = {"weight": torch.randn(3, 5, generator=stream), "bias": torch.randn(3, generator=stream)}
    for length in (0.0, 1e-3, 1.0, 1e6, 1e30):
        moved = {name: value - length * others[name] for name, value in others.items()}
        one, two = clip(Bounded(others, math.inf)), clip(Bounded(moved, math.inf))
        apart = math.sqrt(sum(float((one.total[n] - two.total[n]).double().square().sum()) for n in others))
        assert apart <= one.l2 == two.l2 == 2 * 4 * math.sqrt(2)
        assert all(float(v.double().norm()) <= 4 for v in two.total.values())
    assert apart > 0.5 * one.l2


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_a_sum_that_is_not_finite_is_bounded_too(wrong):
    clip = ClippedMean(bound=1.0, size=4.0, tensors=1, substituted=True)
    found = clip(Bounded({"weight": torch.tensor([1.0, wrong])}, math.inf))
    assert found.total["weight"].tolist() == [0.0, 0.0]
    assert clip(Bounded({"weight": torch.full((3,), 3e38)}, math.inf)).total["weight"].norm() <= 4


def test_more_tensors_than_were_charged_for_are_refused():
    clip = ClippedMean(bound=1.0, size=4.0, tensors=1, substituted=True)
    with pytest.raises(AssayError, match="2 tensors"):
        clip(Bounded({"weight": torch.ones(2), "bias": torch.ones(1)}, math.inf))


@pytest.mark.parametrize("sampling", [Poisson, WithoutReplacement, Permuted])
def test_an_audit_refutes_the_claim_and_stays_below_what_is_verified(sampling):
    found = audit_plan(authors(sampling=sampling), releases=400, randomness=Seeded(0))
    # All of it is shown: the canary turns the mean of both tensors round.
    assert found.step.sensitivity == pytest.approx(2 * 128 * math.sqrt(2), rel=1e-3)
    assert found.audit.epsilon <= found.verified
    assert found.verdict is Verdict.CLAIM_REFUTED


def test_a_model_decides_how_many_tensors_there_are():
    method = methods.get("lssgd", variant="authors")
    assert method.for_model(torch.nn.Linear(3, 2)).groups == 2
    assert method.for_model(torch.nn.Linear(3, 2, bias=False)).groups == 1
    assert method.for_layers(["one", "two"]).groups == 4
    with pytest.raises(ConfigError, match="groups"):
        authors(method=method).epsilon()


def test_records_that_are_clipped_belong_to_the_other_variants():
    with pytest.raises(ConfigError, match="clips the mean of a batch"):
        authors(clip=Flat(1.0)).chain()
    with pytest.raises(ConfigError, match="groups"):
        methods.get("lssgd", variant="published", groups=2)
