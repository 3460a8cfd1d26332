"""Class means: one record's influence on what is released, its noise and cost, and what the model subtracts."""

from __future__ import annotations

import json
import math

import pytest
import torch
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from assay import ConfigError, Plan, Training, fit
from assay.accounting.epsilon import epsilon, gaussian_epsilon
from assay.data.records import Records
from assay.mechanisms.gaussian import Gaussian
from assay.methods.perturb.class_mean import ByClass, ClassMean
from assay.methods.perturb.mean import describe, parse
from assay.randomness.streams import Seeded

CLASSES = 3


def mean_of(x, y, *, noise=1e-6, bound=None, count=100, seed=0):
    stage = ByClass(ClassMean(noise=noise, bound=bound, classes=CLASSES), count)
    return stage.release(nn.Linear(1, 1), Records(TensorDataset(x, y)), Seeded(seed), torch.device("cpu"), None)["mean"]


@pytest.fixture
def totals(monkeypatch):
    """What is handed to the mechanism, before the noise."""
    seen, plain = [], Gaussian.release

    def look(self, grads, stream):
        seen.append((torch.cat([value.flatten() for value in grads.total.values()]), grads.l2))
        return plain(self, grads, stream)

    monkeypatch.setattr(Gaussian, "release", look)
    return seen


ENTRIES = st.one_of(st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, 1e-30, -1e30, math.inf, math.nan]))


def test_one_record_moves_what_is_released_by_at_most_what_is_stated(totals):
    @given(
        one=st.lists(ENTRIES, min_size=4, max_size=4),
        label=st.integers(-1, CLASSES),
        bound=st.sampled_from([None, 0.5]),
    )
    def each(one, label, bound):
        x = torch.cat([torch.randn(7, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([one])])
        y = torch.cat([torch.arange(7) % CLASSES, torch.tensor([label])])
        mean_of(x, y, bound=bound)
        mean_of(x[:7], y[:7], bound=bound)
        (there, l2), (without, _) = totals[-2:]
        assert l2 == 1.0
        assert float((there - without).norm()) <= 1 + 1e-12

    each()


def test_classes_of_any_size_weigh_the_same():
    x = torch.cat([torch.full((60, 4), -0.5), torch.full((30, 4), 0.1), torch.full((10, 4), 1.0)])
    y = torch.repeat_interleave(torch.arange(3), torch.tensor([60, 30, 10]))
    torch.testing.assert_close(mean_of(x, y), torch.full((4,), 0.2), atol=1e-4, rtol=0)


def test_it_costs_one_gaussian_release_and_has_more_noise_than_the_mean(tmp_path):
    center = parse("class-mean:noise=30,classes=2")
    plan = Plan(records=200, batch_size=200, steps=10, noise_multiplier=20.0, delta=1e-5, center=center)
    assert describe(center) == "class-mean:noise=30,classes=2"
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.stage_event == ComposedDpEvent([GaussianDpEvent(30.0)])
    assert epsilon(plan.stage_event, 1e-5, plan.adjacency) == pytest.approx(gaussian_epsilon(30.0, 1e-5), rel=1e-9)
    together = gaussian_epsilon((1 / 30**2 + 10 / 20**2) ** -0.5, 1e-5)
    assert together <= plan.epsilon() <= 1.002 * together
    x, y = torch.zeros(600, 10_000), torch.arange(600) % CLASSES
    found = mean_of(x, y, noise=1.0, bound=1.0, count=600)
    # √K times the noise of the mean, and 1/√0.9 for the share of the sizes, whose own noise is 1.6 %. The relative
    # error of a standard deviation of 10,000 numbers is 0.7 %; six of those are missed once in 5e8.
    assert float(found.std()) == pytest.approx(math.sqrt(CLASSES / 0.9) / 600, rel=0.12)
    data = TensorDataset(torch.randn(200, 4), torch.arange(200) % 2)
    result = fit(nn.Linear(4, 2), data, plan=plan, training=Training(seed=1), out=tmp_path / "run")
    assert result.record["parts"][0]["name"] == "class means of the inputs and class sizes"
    assert "the model subtracts the mean over classes" in result.statement


def test_refusals():
    with pytest.raises(ConfigError, match="2 or more"):
        ClassMean(classes=1)
    stage = ByClass(ClassMean(classes=2), 6)
    with pytest.raises(ConfigError, match="classes"):
        stage.check(nn.Linear(4, 1), Records(TensorDataset(torch.zeros(6, 4), torch.zeros(6))), None)
