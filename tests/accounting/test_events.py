"""Events are joined exactly, written and read back unchanged, and refused when anything is out of range."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st

from assay.accounting import events
from assay.errors import ConfigError

noise = st.floats(0, 1e6)
leaves = st.one_of(
    st.just(dp_event.NoOpDpEvent()),
    st.just(dp_event.NonPrivateDpEvent()),
    st.builds(dp_event.GaussianDpEvent, noise),
    st.builds(dp_event.LaplaceDpEvent, noise),
    st.builds(dp_event.ZCDpEvent, noise),
    st.builds(dp_event.RandomizedResponseDpEvent, st.floats(0, 1), st.integers(1, 100)),
)
any_event = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(dp_event.PoissonSampledDpEvent, st.floats(0, 1), inner),
        st.builds(dp_event.SampledWithoutReplacementDpEvent, st.integers(50, 10**6), st.integers(0, 50), inner),
        st.builds(dp_event.SelfComposedDpEvent, inner, st.integers(0, 10**6)),
        st.builds(dp_event.ComposedDpEvent, st.lists(inner, max_size=3)),
    ),
    max_leaves=6,
)


@given(any_event)
def test_an_event_comes_back_from_json_unchanged(event: dp_event.DpEvent) -> None:
    text = json.dumps(events.to_json(event), allow_nan=False)
    assert events.from_json(json.loads(text)) == event


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6))
def test_gaussians_on_one_batch_are_one_gaussian(multipliers: list[float]) -> None:
    merged = events.joint([dp_event.GaussianDpEvent(m) for m in multipliers])
    # Privacy of Gaussians depends on the distance of the means in units of the noise alone, and distances of
    # independent parts add in squares.
    distance = math.hypot(*(1 / m for m in multipliers))
    assert isinstance(merged, dp_event.GaussianDpEvent)
    assert merged.noise_multiplier == pytest.approx(1 / distance, rel=1e-12)


def test_joint_looks_into_compositions_and_drops_what_costs_nothing() -> None:
    merged = events.joint(
        [
            dp_event.NoOpDpEvent(),
            dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(2.0), 4),
            dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1.0), dp_event.NoOpDpEvent()]),
        ]
    )
    assert merged == dp_event.GaussianDpEvent(pytest.approx(2**-0.5))
    assert events.joint([]) == events.joint([dp_event.NoOpDpEvent()]) == dp_event.NoOpDpEvent()
    laplace = dp_event.LaplaceDpEvent(1.0)
    assert events.joint([laplace]) == laplace


def test_joint_keeps_side_by_side_what_it_cannot_merge() -> None:
    laplace = dp_event.LaplaceDpEvent(3.0)
    merged = events.joint([laplace, dp_event.GaussianDpEvent(1.0), dp_event.GaussianDpEvent(1.0), laplace])
    assert merged == dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(pytest.approx(2**-0.5)), laplace, laplace])


@pytest.mark.parametrize(
    "bare", [dp_event.NonPrivateDpEvent(), dp_event.GaussianDpEvent(0.0), dp_event.GaussianDpEvent(1e-320)]
)
def test_one_release_without_noise_leaves_no_privacy(bare: dp_event.DpEvent) -> None:
    merged = events.joint([dp_event.GaussianDpEvent(1.0), bare])
    assert merged in (dp_event.NonPrivateDpEvent(), dp_event.GaussianDpEvent(0.0))


GAUSSIAN = {"kind": "gaussian", "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"kind": "gaussian", "noise_multiplier": -1.0}, "event.noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": math.nan}, "event.noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": math.inf}, "event.noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": "1"}, "event.noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": True}, "event.noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": None}, "event.noise_multiplier"),
        ({"kind": "gaussian"}, "event"),
        ({"kind": "gaussian", "noise_multiplier": 1.0, "count": 3}, "event"),
        ({"kind": "self-composed", "event": GAUSSIAN, "count": -1}, "event.count"),
        ({"kind": "self-composed", "event": GAUSSIAN, "count": 2.5}, "event.count"),
        ({"kind": "self-composed", "event": GAUSSIAN, "count": 10**400}, "event.count"),
        ({"kind": "self-composed", "event": GAUSSIAN}, "event"),
        ({"kind": "poisson-sampled", "sampling_probability": 1.5, "event": GAUSSIAN}, "event.sampling_probability"),
        ({"kind": "poisson-sampled", "sampling_probability": 0.5, "event": {}}, "event.event.kind"),
        (
            {"kind": "sampled-without-replacement", "source_dataset_size": 5, "sample_size": 6, "event": GAUSSIAN},
            "event.sample_size",
        ),
        ({"kind": "composed", "events": GAUSSIAN}, "event.events"),
        ({"kind": "composed", "events": [GAUSSIAN, {"kind": "gaussian"}]}, "event.events[1]"),
        ({"kind": "mixture", "noise": 1.0}, "event.kind"),
        ({"kind": "zcdp", "rho": -1.0, "xi": 0.0}, "event.rho"),
        ({"kind": "zcdp", "rho": 1.0, "xi": 0.1}, "event.xi"),
        ({"kind": ["gaussian"]}, "event.kind"),
        ([GAUSSIAN], "event"),
    ],
)
def test_a_file_edited_by_hand_is_refused_by_field(data: object, field: str) -> None:
    with pytest.raises(ConfigError) as error:
        events.from_json(data)
    assert error.value.field == field


@pytest.mark.parametrize(
    "event",
    [
        dp_event.UnsupportedDpEvent(),
        dp_event.SingleEpochTreeAggregationDpEvent(1.0, 8),
        dp_event.ZCDpEvent(1.0, 0.5),
        dp_event.ZCDpEvent(math.inf),
        dp_event.SampledWithReplacementDpEvent(10, 2, dp_event.GaussianDpEvent(1.0)),
        dp_event.ComposedDpEvent([dp_event.DiscreteLaplaceDpEvent(1.0, 1)]),
        dp_event.GaussianDpEvent(math.nan),
        dp_event.PoissonSampledDpEvent(-0.1, dp_event.GaussianDpEvent(1.0)),
        dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), -3),
    ],
)
def test_events_of_other_kinds_or_out_of_range_are_not_written(event: dp_event.DpEvent) -> None:
    with pytest.raises(ConfigError):
        events.to_json(event)
    with pytest.raises(ConfigError):
        events.joint([event])


def test_numbers_of_numpy_are_written_as_plain_ones() -> None:
    step = dp_event.PoissonSampledDpEvent(np.float64(0.25), dp_event.GaussianDpEvent(np.float32(1.5)))
    data = events.to_json(dp_event.SelfComposedDpEvent(step, np.int64(7)))
    assert json.loads(json.dumps(data)) == data
