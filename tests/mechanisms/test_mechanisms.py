"""Mechanisms and chains: the noise really added, and an event that tells the truth about it."""

import math

import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent, NonPrivateDpEvent

from assay.errors import ConfigError
from assay.gradients.clipping import Flat, PerLayer
from assay.gradients.engine import Engine
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.types import Bounded
from assay.methods.chain import Chain
from assay.randomness.streams import Blocks, Seeded

SHAPES = {"a": (3, 4), "b": (5,), "c": ()}
COORDINATES = 18


def zeros(l2: float) -> Bounded:
    return Bounded({name: torch.zeros(shape) for name, shape in SHAPES.items()}, l2)


def draws(mechanism, l2: float, count: int) -> torch.Tensor:
    rows = []
    for step in range(count):
        value = mechanism.release(zeros(l2), Seeded(1).stream("noise", step)).value
        assert {name: v.shape for name, v in value.items()} == SHAPES
        rows.append(torch.cat([v.flatten() for v in value.values()]))
    return torch.stack(rows).double()


def test_gaussian_noise_is_multiplier_times_bound_in_every_coordinate():
    """Variance of 36,000 numbers within 6 standard errors, for each coordinate within 6.5: false alarms below 1e-8."""
    seen = draws(Gaussian(multiplier=1.5), 0.4, 2000) / (1.5 * 0.4)
    assert abs(float(seen.var()) - 1) < 6 * math.sqrt(2 / seen.numel())
    assert float((seen.var(0) - 1).abs().max()) < 6.5 * math.sqrt(2 / 2000)


def test_events_tell_what_was_added():
    stream = Seeded(0).stream("noise", 0)
    assert Gaussian(multiplier=1.2).release(zeros(3.0), stream).event == GaussianDpEvent(1.2)
    assert Gaussian(multiplier=1.2, reference=1.0).release(zeros(2.0), stream).event == GaussianDpEvent(0.6), (
        "noise relative to half the true bound is worth half"
    )
    released = Gaussian(multiplier=0.0).release(zeros(1.0), stream)
    assert isinstance(released.event, NonPrivateDpEvent)
    assert all(not v.any() for v in released.value.values())


@pytest.mark.parametrize("multiplier", [-1.0, math.nan, math.inf])
def test_bad_noise_is_refused(multiplier):
    with pytest.raises(ConfigError) as caught:
        Gaussian(multiplier=multiplier)
    assert caught.value.field == "noise_multiplier"


def test_a_chain_states_its_cost_by_releasing_nothing():
    assert Chain(clip=Flat(bound=2.0), noise=Gaussian(multiplier=1.1)).event() == GaussianDpEvent(1.1)
    assert Chain(
        clip=Flat(bound=2.0), noise=Gaussian(multiplier=1.1, reference=2.0), micro=4
    ).event() == GaussianDpEvent(0.55)


def test_a_chain_runs_its_parts_in_order():
    order = []

    def halve(grads: Bounded) -> Bounded:
        order.append("before")
        return Bounded({n: v / 2 for n, v in grads.total.items()}, grads.l2 / 2)

    class AddOne:
        needs_white = keeps_white = True

        def __call__(self, grads, noise_std):
            order.append("after")
            assert noise_std == pytest.approx(0.5 * 0.5 / 10)
            return {n: v + 1 for n, v in grads.items()}

    chain = Chain(clip=Flat(bound=1.0), before=[halve], noise=Gaussian(multiplier=0.5), after=[AddOne()])
    released = chain.release(zeros(1.0), Seeded(0).stream("noise", 0))
    assert released.noise_std == 0.25
    assert released.event == GaussianDpEvent(0.5), "the encoder restated the bound, the noise followed it"
    chain.finish(released, 10)
    assert order == ["before", "after"]


@pytest.mark.parametrize("clip", [Flat(bound=0.3), PerLayer(bound=0.3)])
def test_a_per_record_map_is_clipped_after_it(clip):
    """Signs of a gradient have norm √d; the clipped sum of one record has the bound's norm, in the signs' direction."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    engine = Engine(model)
    chain = Chain(
        clip=clip, noise=Gaussian(multiplier=1.0), each=[lambda whole: {n: v.sign() for n, v in whole.items()}]
    )
    groups = clip.groups(engine.layers)
    x = torch.randn(5, 4)
    total, _ = chain.clipped_sum(engine.collect(model(x).square().sum(1)), groups, None)
    one, norms = chain.clipped_sum(engine.collect(model(x[:1]).square().sum(1)), groups, None)
    flat = torch.cat([v.flatten() for v in one.values()])
    assert float(flat.norm()) == pytest.approx(0.3, rel=1e-4)
    assert norms.shape == (1, max(groups) + 1)
    assert float(torch.cat([v.flatten() for v in total.values()]).norm()) <= 5 * 0.3 * (1 + 1e-5)


def test_a_large_sum_has_noise_of_its_own_in_every_parameter():
    size = 600_000  # two of them are drawn one by one
    blocks = Blocks(Seeded(5), "noise")
    total = {name: torch.zeros(size) for name in "ab"}
    first, other = Gaussian(multiplier=2.0).release(Bounded(total, 0.5), blocks.at(0)).value.values()
    # a correlation of 600,000 pairs is 0 ± 1/√600000, a mean square 1 ± √(2/600000); six of those fail once in 5e8
    assert abs(float((first * other).mean())) < 6 / math.sqrt(size)
    for part in (first, other):
        assert float(part.double().square().mean()) == pytest.approx(1.0, abs=6 * math.sqrt(2 / size))
    again = Gaussian(multiplier=2.0).release(
        Bounded({"a": torch.zeros(size), "b": torch.zeros(size)}, 0.5), blocks.at(1)
    )
    assert abs(float((first * again.value["a"]).mean())) < 6 / math.sqrt(size)
