"""Bugs that one step shows: the auditor catches every one, and leaves its correct twin alone."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from tests.zoo.low_bits import cancelled_bits, low_bits
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from assay.audit.bounds import epsilon_of_mu
from assay.audit.observe import turned_into
from assay.audit.single_step import audit_step
from assay.audit.specimen import Specimen
from assay.errors import ConfigError
from assay.gradients.arithmetic import keeps_digits
from assay.gradients.clipping import Assumed, Flat, PerLayer
from assay.gradients.engine import Engine
from assay.mechanisms.exact import ExactGaussian, Grid
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.spectral import Spectral
from assay.methods.chain import Chain
from assay.methods.encode.mean import ClippedMean
from assay.randomness.streams import Seeded
from assay.training.meter import MeanLoss

from . import mutants

DELTA, SIGMA = 1e-5, 1.5
NOISE = Gaussian(multiplier=SIGMA)
RIGHT = Chain(clip=Flat(bound=1.0), noise=NOISE)
LAYERS = Specimen().layers
SPECTRAL = {"multiplier": SIGMA, "reference": 1.0 / math.sqrt(LAYERS)}

MEAN = {"bound": 1.0, "size": 4.0, "tensors": len(Specimen().parameters), "substituted": False}

# name: (the bug, its correct twin)
ZOO: dict[str, tuple[Chain, Chain]] = {
    "ghost clip ignoring C": (Chain(clip=mutants.IgnoresC(bound=1.0), noise=NOISE), RIGHT),
    "wrong bias norm": (turned_into(mutants.ForgetsBias, RIGHT), RIGHT),
    "micro-batch charged at C": (
        mutants.MicroBatchAtC(clip=Flat(bound=1.0), noise=NOISE, micro=4),
        Chain(clip=Flat(bound=1.0), noise=NOISE, micro=4),
    ),
    "per-tensor clipping charged as flat": (
        Chain(clip=mutants.EachTensorAtC(bound=1.0), noise=NOISE),
        Chain(clip=PerLayer(bound=1.0), noise=NOISE),
    ),
    "un-noised gradient also accumulated": (Chain(clip=Flat(), noise=mutants.RawToo(multiplier=SIGMA)), RIGHT),
    "generator reseeded each step": (Chain(clip=Flat(), noise=mutants.Reseeded(multiplier=SIGMA)), RIGHT),
    "noise on no rank": (Chain(clip=Flat(), noise=mutants.NoiseOnNoRank(multiplier=SIGMA)), RIGHT),
    "noise on every rank, too little": (
        Chain(clip=Flat(), noise=mutants.NoiseOnEveryRank(multiplier=SIGMA, share=0.25)),
        Chain(clip=Flat(), noise=mutants.NoiseOnEveryRank(multiplier=SIGMA, share=0.5)),
    ),
    "each augmentation clipped separately": (
        turned_into(mutants.Augmented, RIGHT, wrong=True),
        turned_into(mutants.Augmented, RIGHT, wrong=False),
    ),
    "GReDP with real-valued frequency noise": (
        Chain(clip=PerLayer(), noise=mutants.ChargedAtSigma(**SPECTRAL, a=1.0, b=0.0)),
        Chain(clip=PerLayer(), noise=Spectral(**SPECTRAL)),
    ),
    "GReDP charged at σ": (
        Chain(clip=PerLayer(), noise=mutants.ChargedAtSigma(**SPECTRAL)),
        Chain(clip=PerLayer(), noise=Spectral(**SPECTRAL, a=0.9, b=0.6)),
    ),
    "FedAGS sending insignificant coordinates bare": (
        Chain(clip=Flat(), noise=mutants.InsignificantBare(multiplier=SIGMA)),
        Chain(clip=Flat(), noise=mutants.InsignificantBare(multiplier=SIGMA, part=0.0)),
    ),
    "data-dependent standardisation before noise": (
        Chain(clip=Flat(), noise=NOISE, before=(mutants.standardised,)),
        RIGHT,
    ),
    "a clipped mean charged at its bound over the batch size": (
        Chain(clip=Assumed(bound=1.0), noise=Gaussian(multiplier=SIGMA), before=(mutants.MeanAtRadius(**MEAN),)),
        Chain(clip=Assumed(bound=1.0), noise=Gaussian(multiplier=SIGMA), before=(ClippedMean(**MEAN),)),
    ),
    "a spectral slice that leaves the last coefficient bare": (
        Chain(clip=Flat(), noise=mutants.LastCoefficientBare(multiplier=SIGMA, leave=1)),
        Chain(clip=Flat(), noise=mutants.LastCoefficientBare(multiplier=SIGMA, leave=0)),
    ),
}


def mu(chain: Chain) -> tuple[float, float]:
    """Audited and declared."""
    found = audit_step(chain, Specimen(), delta=DELTA, randomness=Seeded(2), releases=2500)
    return found.mu, 1 / chain.event().noise_multiplier


@pytest.mark.parametrize("bug", ZOO)
def test_the_bug_is_caught(bug):
    audited, declared = mu(ZOO[bug][0])
    assert audited > 1.2 * declared


TWINS = {id(twin): (bug, twin) for bug, (_, twin) in ZOO.items()}


@pytest.mark.parametrize("twin", [twin for _, twin in TWINS.values()], ids=[bug for bug, _ in TWINS.values()])
def test_the_twin_is_left_alone(twin):
    """Fixed seed; each would be rejected 5 % of the time at most."""
    audited, declared = mu(twin)
    assert 0.7 * declared < audited <= declared


def test_rounded_noise_shows_in_the_low_bits_and_nowhere_else():
    bug = Chain(clip=Flat(), noise=mutants.HalfPrecision(multiplier=SIGMA))
    audited, declared = mu(bug)
    assert audited <= declared
    for chain, found in ((bug, True), (RIGHT, False)):
        epsilon = low_bits(chain, Specimen(), delta=DELTA, randomness=Seeded(3))
        assert epsilon > 5 if found else epsilon == 0


def test_a_twin_is_rejected_no_more_often_than_allowed():
    """25 audits at 80 % confidence: more than 16 alarms have a probability below 1e-6."""
    small = Specimen(1)
    over = sum(
        audit_step(RIGHT, small, delta=DELTA, confidence=0.8, randomness=Seeded(100 + i), releases=200).mu > 1 / SIGMA
        for i in range(25)
    )
    assert over <= stats.binom.isf(1e-6, 25, 0.2)


def test_floating_point_noise_shows_where_it_cancels_the_sum_and_exact_noise_does_not():
    """The bug is Assay's own floating-point noise, which every statement names; the twin has exact noise."""
    declared = epsilon_of_mu(1 / SIGMA, DELTA)
    exact = Chain(clip=Flat(), noise=ExactGaussian(multiplier=SIGMA, grid=Grid(1.0)))
    for chain, found in ((RIGHT, True), (exact, False)):
        epsilon = cancelled_bits(chain, Specimen(), delta=DELTA, randomness=Seeded(3), releases=1000)
        assert epsilon > declared if found else epsilon == 0
    assert low_bits(exact, Specimen(), delta=DELTA, randomness=Seeded(3), releases=300) == 0


def test_rounding_that_a_record_chooses():
    """One word again and again: float32 sums of equal numbers lose always in one direction, and not always as much."""
    draw = torch.Generator().manual_seed(0)
    model, longest = nn.Embedding(8, 2), {"bug": 0.0, "twin": 0.0}
    engine = Engine(model)
    for _ in range(60):
        slope, bound = torch.rand((), generator=draw), 0.3 + float(torch.rand((), generator=draw))
        words = torch.full((1, 4096), 3)
        grads = engine.collect((model(words) * slope).sum((1, 2)))
        norms = {"bug": grads.per_record()["weight"].flatten(1).norm(dim=1, keepdim=True), "twin": grads.norms([0])}
        for name, norm in norms.items():
            clipped = grads.weighted_sum(Flat(bound).weights(norm), [0])["weight"]
            longest[name] = max(longest[name], float(clipped.double().norm()) / bound)
    engine.detach()
    assert longest["bug"] > 1 + 1e-5
    assert longest["twin"] <= 1


def test_long_sums_that_a_record_chooses():
    """Two positions with a hundred thousand equal inputs: their inner product loses always in one direction."""
    positions, inputs, outputs = 2, 2**17, 4
    model, longest = nn.Linear(inputs, outputs, bias=False), {"bug": 0.0, "twin": 0.0}
    engine = Engine(model)
    for value in torch.linspace(1, 2, 12).tolist()[1:8]:
        x = torch.full((1, positions, inputs), value)
        grads = engine.collect(model(x).sum((1, 2)))
        summed = float(np.add.accumulate(x[0, 0].square().numpy())[-1])  # one number after the other
        in_turn = positions * torch.tensor([[outputs * summed]]).sqrt()
        for name, norm in (("bug", in_turn), ("twin", grads.norms([0]))):
            clipped = grads.weighted_sum(Flat(1.0).weights(norm), [0])["weight"]
            longest[name] = max(longest[name], float(clipped.double().norm()))
    engine.detach()
    assert longest["bug"] > 1 + 1e-4
    assert longest["twin"] <= 1


class Bfloat16Products(TorchDispatchMode):
    """Computes as a processor with AMX: products round their factors to bfloat16 wherever torch allows that."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default) and not keeps_digits("mkldnn", "matmul"):
            args = [factor.bfloat16().float() for factor in args]
        return func(*args, **(kwargs or {}))


def test_products_of_rounded_factors():
    """Positions that cancel once they are rounded, and no longer do once they are weighted and rounded again."""
    width, draw = 64, torch.Generator().manual_seed(0)
    model, longest = nn.Linear(width, width, bias=False), {"bug": 0.0, "twin": 0.0}
    engine, groups = Engine(model), [0]
    allowed = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with Bfloat16Products():  # a network whose products are rounded is no reason to refuse it
            network = nn.Sequential(nn.Linear(40, width), nn.ReLU(), nn.Linear(width, 10))
            other = Engine(network)
            other.collect(network(torch.randn(32, 40, generator=draw)).logsumexp(1))
            assert other.proven
            engine.collect(model(torch.randn(8, 2, width, generator=draw)).sum((1, 2)))
        for _ in range(8):
            slopes = 64 + torch.randint(64, (1, 1, width), generator=draw).float() / 2
            slopes = torch.cat([slopes * (1 + 0.001), -slopes * (1 - 0.001)], 1)
            x = torch.ones(1, 2, width)
            with Bfloat16Products():
                grads = engine.collect((model(x) * slopes).sum((1, 2)))
                bug = grads.weighted_sum(Flat(1.0).weights(grads.norms(groups)), groups)
                twin, _ = RIGHT.clipped_sum(grads, groups, None)
            for name, clipped in (("bug", bug), ("twin", twin)):
                longest[name] = max(longest[name], float(clipped["weight"].double().norm()))
    finally:
        torch.set_float32_matmul_precision(allowed)
        engine.detach()
    assert longest["bug"] > 1.5
    assert longest["twin"] <= 1


@pytest.mark.parametrize("bound", [1e-25, 1e-15])
def test_a_bound_so_small_that_norms_underflow(bound):
    """Squares of float32 numbers below 1e-23 are zero: such gradients would not be clipped."""
    if bound < 1e-15:
        with pytest.raises(ConfigError, match="1e-15"):
            Flat(bound)
        return
    model, words = nn.Embedding(8, 2), torch.arange(6).view(3, 2)
    engine = Engine(model)
    for scale in (1e-18, 1e-12, 1e-3):
        grads = engine.collect((model(words) * scale).sum((1, 2)))
        weights = Flat(bound).weights(grads.norms([0]))
        for record in torch.eye(3):
            clipped = grads.weighted_sum(weights * record[:, None], [0])["weight"]
            assert float(clipped.double().norm()) <= bound
    engine.detach()


@pytest.mark.parametrize("kind", [mutants.SumsInFloat32, MeanLoss])
def test_a_sum_of_many_losses_that_rounding_moves(kind):
    """The released loss has noise for what one record adds to a sum, and not for how the sum is rounded without it."""
    meter, furthest = kind(), 0.0
    losses = 3 * torch.rand(300_000, generator=torch.Generator().manual_seed(0))
    losses[::1000] = 3.0
    whole = meter.measure(losses, losses).double()
    for record in range(0, 300_000, 15_000):
        without = torch.cat([losses[:record], losses[record + 1 :]])
        furthest = max(furthest, float(whole - meter.measure(without, without)) / meter.sensitivity)
    assert furthest > 1.01 if kind is mutants.SumsInFloat32 else furthest == 1
