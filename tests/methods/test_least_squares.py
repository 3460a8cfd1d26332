"""Least squares on noisy moments: one record moves them by at most 1, every direction has the noise that is charged,
and the solution is that of least squares.
"""

from __future__ import annotations

import math

import pytest
import torch
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from assay import Optimizer, Plan, Training, fit, methods
from assay.data.records import Records
from assay.errors import ConfigError
from assay.randomness.streams import Seeded

INPUTS, CLASSES = 3, 2
SHARE, COUNTS = 0.6, 0.02  # the default share of the second moments, and that of the label counts


def plan(**changes):
    options = {"records": 50, "batch_size": 10, "steps": 2, "noise_multiplier": 20.0, "delta": 1e-3}
    return Plan(**options | {"method": methods.get("least-squares")} | changes)


def head(inputs=INPUTS, classes=CLASSES):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def moments(x, y, seed, of=None):
    """The released moments as one vector, in the coordinates in which the noise is white."""
    stage = (of or plan()).stage
    released = stage.release(head(), Records(TensorDataset(x, y)), Seeded(seed), torch.device("cpu"), None)
    rows, columns = torch.triu_indices(INPUTS, INPUTS)
    weights = torch.where(rows == columns, 1.0, math.sqrt(2.0))
    second = math.sqrt(SHARE) * weights * released["second"][rows, columns]
    others = math.sqrt(1 - SHARE - COUNTS) * released["cross"].flatten(), math.sqrt(COUNTS) * released["counts"]
    return torch.cat([second, *others]), released["mean"]


ENTRIES = st.one_of(st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, 1e-30, -1e30, math.inf, math.nan]))
ROWS = st.lists(st.lists(ENTRIES, min_size=INPUTS, max_size=INPUTS), min_size=2, max_size=5)


@settings(max_examples=60)
@given(rows=ROWS, labels=st.lists(st.integers(-1, CLASSES), min_size=5, max_size=5))
def test_one_record_moves_the_moments_by_at_most_one(rows, labels):
    x, y = torch.tensor(rows), torch.tensor(labels[: len(rows)])
    # The mean is divided by the plan's number of records: with 10⁹ both releases subtract zero.
    of = plan(noise_multiplier=1e-6, records=10**9)
    (all_of_them, mean), (without, other) = moments(x, y, 0, of), moments(x[1:], y[1:], 0, of)
    assert torch.allclose(mean, other, atol=1e-5)
    assert float((all_of_them - without).norm()) <= 1 + 1e-4


def test_every_direction_has_the_noise_that_is_charged():
    draws = 2000
    empty = torch.zeros(4, INPUTS), torch.zeros(4, dtype=torch.long)
    found = torch.stack([moments(*empty, seed, plan(noise_multiplier=30.0))[0] for seed in range(draws)])
    covariance = torch.cov(found.T)
    # As in tests/battery: false alarms below 1e-6.
    slack = (1 - math.sqrt(found.shape[1] / draws) - 5.3 / math.sqrt(draws)) ** 2
    # The mean is another draw each time. That adds to the spread and takes nothing from it.
    assert torch.linalg.eigvalsh(covariance)[0].clamp(min=0).sqrt() >= 3.0 * math.sqrt(slack)


def test_the_plan_charges_for_the_mean_and_the_moments():
    assert plan().stage_event == ComposedDpEvent([GaussianDpEvent(16.0), GaussianDpEvent(2.0)])
    free = plan(method=methods.get("dpsgd"))
    assert plan().epsilon() > free.epsilon()
    assert [part.name for part in plan().stage.parts()] == [
        "mean of the inputs",
        "second moments of inputs and labels",
    ]


def test_with_hardly_any_noise_the_start_is_the_least_squares_solution():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, INPUTS, generator=generator, dtype=torch.float64).float() * 0.3  # no input is cut
    y = (x[:, 0] + 0.1 * x[:, 1] > 0.1).long()
    of = plan(records=400, noise_multiplier=1e-5, method=methods.get("least-squares", bound=1.0, scale=1.0))
    model = head()
    stage = of.stage
    stage.install(model, stage.release(model, Records(TensorDataset(x, y)), Seeded(0), torch.device("cpu"), None))
    centred = x - x.mean(0)
    targets = nn.functional.one_hot(y).float() - 1 / CLASSES
    expected = torch.linalg.lstsq(centred, targets).solution.T
    assert torch.allclose(model[1].weight, expected, atol=1e-2)
    assert torch.allclose(model[1].bias, targets.mean(0), atol=1e-3)


def test_a_run_learns_within_its_ceiling(tmp_path):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8000, INPUTS, generator=generator)
    data, test = (TensorDataset(r, (r @ torch.tensor([1.0, -2.0, 0.5]) > 0).long()) for r in x.split(4000))
    calibrated = Plan.calibrated(
        epsilon=1.0, delta=1e-5, records=4000, batch_size=400, steps=1, method=methods.get("least-squares")
    )
    result = fit(
        head(), data, plan=calibrated, training=Training(optimizer=Optimizer(lr=1e-3), seed=0), out=tmp_path, test=test
    )
    assert result.record["epsilon"]["verified"] <= 1.0
    assert result.record["result"]["test_accuracy"] > 0.95
    statement = (tmp_path / "statement.md").read_text()
    assert "second moments of inputs and labels" in statement


@pytest.mark.parametrize(
    ("model", "y", "field"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, 4), nn.Linear(4, 2)), torch.zeros(6, dtype=torch.long), "model"),
        (nn.Sequential(nn.Linear(INPUTS, 2), nn.LayerNorm(2)), torch.zeros(6, dtype=torch.long), "model"),
        (head(), torch.zeros(6), "method"),
    ],
)
def test_what_has_no_such_solution_is_refused(model, y, field):
    with pytest.raises(ConfigError) as refused:
        plan().stage.check(model, Records(TensorDataset(torch.zeros(6, INPUTS), y)), None)
    assert refused.value.field == field


@pytest.mark.parametrize("options", [{"share": 0.99}, {"ridge": 0.0}, {"relative": math.inf}, {"bound": -1.0}])
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(ConfigError):
        methods.get("least-squares", **options)
