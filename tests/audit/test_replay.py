"""Record and replay: the real step on neighbouring data sets, deterministic."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import Adjacency, ConfigError, Plan, methods
from assay.accounting.schedules import Decay
from assay.audit.observe import observed
from assay.audit.replay import replay
from assay.gradients import clipping
from assay.randomness.streams import Seeded
from assay.runs.result import cross_entropy
from assay.training.step import PrivateStep


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3))


def records(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, 1, 8, 8, generator=generator), torch.arange(n) % 3


def plan(name: str = "dpsgd", clip: str | None = None, micro: int = 1, **options) -> Plan:
    method = methods.get(name, **options)
    return Plan(
        records=5,
        batch_size=2,
        steps=3,
        noise_multiplier=1.0,
        delta=1e-3,
        method=method,
        clip=clipping.parse(clip or str(method.clip)),
        micro_batch=micro,
    )


def adversarial(x: torch.Tensor, y: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Records made to break a bound, shaped like this one."""
    return {
        "an ordinary record": (x, y),
        "zeros": (torch.zeros_like(x), y),
        "a large record": (x * 1e3, y),
        "a huge record": (torch.full_like(x, 1e30), y),
        "a record with NaN": (torch.full_like(x, torch.nan), y),
        "a record with Inf": (torch.full_like(x, torch.inf), y),
    }


@pytest.mark.parametrize("others", [0, 1, 6])
@pytest.mark.parametrize(
    "under_audit",
    [
        plan(clip="flat:0.5"),
        plan(clip="per-layer:0.5"),
        plan(clip="auto:0.5"),
        plan(clip="adaptive:0.5"),
        plan(micro=3),
        *(plan(name) for name in methods.available()),
        plan("gredp", variant="published"),
        plan("gredp", variant="published", noise_form="real"),
    ],
    ids=lambda p: f"{p.method.name}-{p.method.variant}-{p.clip}-{p.micro_batch}",
)
def test_no_record_moves_more_than_is_declared(model, under_audit, others):
    x, y = records(others + 1)
    data = TensorDataset(x[:-1], y[:-1])
    for name, record in adversarial(x[-1], y[-1]).items():
        found = replay(model, under_audit, data, record, loss=cross_entropy, name=name)
        assert not found.faults
        assert found.ratio <= 1 + 1e-4


def test_a_record_that_is_clipped_moves_all_that_is_declared(model):
    x, y = records(4)
    found = replay(model, plan(clip="flat:0.01"), TensorDataset(x[:3], y[:3]), (x[3], y[3]), loss=cross_entropy)
    assert 0.999 < found.ratio <= 1


def test_the_model_is_left_as_it_was(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, y = records(4)
    replay(model, plan(), TensorDataset(x[:3], y[:3]), (x[3], y[3]), loss=cross_entropy)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_only_defined_where_a_record_can_be_absent(model):
    x, y = records(4)
    made = Plan(records=3, batch_size=2, steps=1, noise_multiplier=1.0, delta=1e-3, adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(ConfigError, match="adjacency"):
        replay(model, made, TensorDataset(x[:3], y[:3]), (x[3], y[3]), loss=cross_entropy)


def test_a_step_that_is_observed_releases_with_the_noise_of_its_own_level(model):
    falling = replace(plan(), steps=4, noise_schedule=Decay(levels=4, last=0.25))
    step = PrivateStep(model, falling, randomness=Seeded(0))
    step.chain = watched = observed(step.chain)
    for x, y in step.batches(TensorDataset(*records(5))):
        step.backward(cross_entropy(model(x), y))
    step.close()
    wanted = [falling.chain(noise_factor=falling.noise_factor(t)).event() for t in range(4)]
    assert [release.event for release in watched.releases] == wanted
    assert len({event.noise_multiplier for event in wanted}) == 4
