"""Steps preconditioned by noisy second moments: one record moves the moments by at most 1, every coordinate has the
noise that is charged, the whole costs what Gaussian releases compose to, and no direction is amplified.
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
from assay.accounting.epsilon import gaussian_epsilon
from assay.data.records import Records
from assay.errors import ConfigError
from assay.methods import moments
from assay.models.inputs import adapt_as
from assay.randomness.streams import Seeded

INPUTS, CLASSES = 3, 2


def plan(**changes):
    options = {"records": 50, "batch_size": 10, "steps": 2, "noise_multiplier": 20.0, "delta": 1e-3}
    return Plan(**options | {"method": methods.get("newton")} | changes)


def head(inputs=INPUTS, classes=CLASSES):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def released(x, seed, of):
    records = Records(TensorDataset(x, torch.zeros(len(x), dtype=torch.long)))
    return of.stage.release(head(x.shape[1]), records, Seeded(seed), torch.device("cpu"), None)


ENTRIES = st.one_of(st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, 1e-30, -1e30, math.inf, math.nan]))
ROWS = st.lists(st.lists(ENTRIES, min_size=INPUTS, max_size=INPUTS), min_size=2, max_size=5)


@settings(max_examples=30)
@given(rows=ROWS)
def test_one_record_moves_the_moments_by_at_most_one(rows):
    x = torch.tensor(rows)
    # The mean is divided by the plan's number of records: with 10⁹ both releases subtract zero.
    of = plan(noise_multiplier=1e-6, records=10**9)
    there, without = released(x, 0, of), released(x[1:], 0, of)
    assert torch.allclose(there["mean"], without["mean"], atol=1e-5)
    assert float(moments.packed(there["second"] - without["second"]).norm()) <= 1 + 1e-4


@given(size=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_packing_keeps_lengths_and_is_undone(size, seed):
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double()
    matrix += matrix.T.clone()
    packed = moments.packed(matrix)
    assert float(packed.norm()) == pytest.approx(float(matrix.norm()), rel=1e-12)
    assert torch.allclose(moments.unpacked(packed, size), matrix, rtol=1e-12)


def test_every_coordinate_has_the_noise_that_is_charged():
    of = plan(noise_multiplier=5.0)  # the moments at 4
    noise = moments.packed(released(torch.zeros(2, 150), 0, of)["second"])
    # The mean that is subtracted is noise as well: two records of norm 1 at most, among 11,325 numbers.
    # The relative error of the deviation is 0.7 %; six of those are missed once in 5e8.
    assert float(noise.std()) == pytest.approx(4.0, rel=0.045)


def test_the_whole_costs_what_gaussian_releases_compose_to():
    assert plan().stage_event == ComposedDpEvent([GaussianDpEvent(64.0), GaussianDpEvent(16.0)])
    whole = plan(batch_size=50)  # every record in every step: 1/σ² of Gaussian releases add up
    together = (1 / 64**2 + 1 / 16**2 + 2 / 20**2) ** -0.5
    assert whole.epsilon() == pytest.approx(gaussian_epsilon(together, 1e-3), rel=2e-3)
    assert whole.epsilon() >= gaussian_epsilon(together, 1e-3)


def spread(count=4000, seed=1):
    """Inputs that differ most along one axis."""
    return torch.randn(count, INPUTS, generator=torch.Generator().manual_seed(seed)) * torch.tensor([1.0, 0.2, 0.2])


@pytest.mark.parametrize("power", [0.25, 0.5])
def test_both_places_shorten_what_differs_most_and_amplify_nothing(power):
    of = {
        place: plan(records=4000, noise_multiplier=50.0, method=methods.get("newton", place=place, power=power))
        for place in ("before", "after")
    }
    x, model = spread(), head()
    answer = released(x, 0, of["before"])
    of["before"].stage.install(model, answer)
    kept = torch.eye(INPUTS) - model.input_damping @ model.input_damping.T
    assert kept[0, 0] < 0.9
    assert float(torch.linalg.eigvalsh(kept)[-1]) <= 1 + 1e-6
    assert of["before"].stage.denoisers(model, answer) == ()
    (denoise,) = of["after"].stage.denoisers(head(), answer)
    gradients = {"1.weight": torch.eye(INPUTS), "1.bias": torch.ones(2)}
    found = denoise(gradients, 1.0)
    torch.testing.assert_close(found["1.weight"], kept @ kept, atol=1e-5, rtol=1e-5)
    assert torch.equal(found["1.bias"], gradients["1.bias"])
    values = torch.linalg.eigvalsh(answer["second"])
    ridge = of["before"].stage.noise * math.sqrt(2 * INPUTS) + 4e-3
    expected = (values.clamp(min=ridge) / ridge) ** (-2 * power)
    torch.testing.assert_close(
        torch.linalg.eigvalsh(found["1.weight"].double()), expected.flip(0), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_run_learns_and_is_charged_as_planned(place, tmp_path):
    data, test = (TensorDataset(r, (r @ torch.tensor([1.0, -1.0, 0.5]) > 0).long()) for r in spread().split(2000))
    of = plan(records=2000, batch_size=500, steps=12, noise_multiplier=6.0, method=methods.get("newton", place=place))
    training = Training(optimizer=Optimizer(lr=40.0), seed=0)
    result = fit(head(), data, plan=of, training=training, out=tmp_path / "run", test=test)
    assert result.record["epsilon"]["verified"] == pytest.approx(of.epsilon(), rel=1e-3)
    assert result.record["result"]["test_accuracy"] > 0.85
    assert "second moments of the inputs" in result.statement
    other = head()
    adapt_as(other, result.model.state_dict())
    other.load_state_dict(result.model.state_dict())
    torch.testing.assert_close(other(test.tensors[0]), result.model(test.tensors[0]))


@pytest.mark.parametrize(
    "options", [{"place": "inside"}, {"ridge": 0.0}, {"relative": math.inf}, {"power": -1.0}, {"mean": 0.0}]
)
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(ConfigError) as refused:
        methods.get("newton", **options)
    assert refused.value.field in options


def test_what_is_not_one_linear_layer_is_refused():
    with pytest.raises(ConfigError, match="one linear layer"):
        plan().stage.check(
            nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, 4), nn.Linear(4, 2)),
            Records(TensorDataset(torch.zeros(6, INPUTS), torch.zeros(6, dtype=torch.long))),
            None,
        )
