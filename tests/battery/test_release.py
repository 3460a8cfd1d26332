"""The release of one step, for every form of every method: bounded before the noise, covered by it in every
direction.
"""

from __future__ import annotations

import math

import pytest
import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, NonPrivateDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from assay import methods
from assay.gradients.record_grads import RecordGrads
from assay.gradients.uses.base import Apart, Dense
from assay.mechanisms.types import Bounded
from assay.methods.chain import Chain
from assay.randomness.streams import Seeded
from battery.forms import FORMS, Form

# A kernel, a pair of circulant blocks and two biases, in two layers: the shapes that methods treat differently.
SHAPES = {
    "conv.weight": (1, 2, 3, 3),
    "conv.bias": (3,),
    "fc.weight": (1, 2, 4),
    "fc.bias": (4,),
}
LAYERS = ["conv", "fc"]
_SIZE = sum(math.prod(shape) for shape in SHAPES.values())
_RELEASES = 4000
# The smallest eigenvalue of the empirical covariance of n draws of white noise in d dimensions is below
# (1 - √(d/n) - t/√n)² with probability at most e^(-t²/2) (Davidson and Szarek 2001): below 1e-6 for t = 5.3.
_SLACK = (1 - math.sqrt(_SIZE / _RELEASES) - 5.3 / math.sqrt(_RELEASES)) ** 2


def weakest_std(chain: Chain) -> float:
    """The smallest standard deviation of the released noise over all directions, as measured."""
    draws = torch.empty(_RELEASES, _SIZE, dtype=torch.float64)
    for i in range(_RELEASES):
        zero = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
        released = chain.release(Bounded(zero, chain.l2), Seeded(7).stream("noise", i))
        draws[i] = torch.cat([v.flatten() for v in released.value.values()])
    covariance = draws.t() @ draws / _RELEASES
    return float(torch.linalg.eigvalsh(covariance)[0].clamp(min=0).sqrt())


def covered(chain: Chain, charged: DpEvent) -> bool:
    """Whether every direction has the noise that the charge says (false alarms: below 1e-6)."""
    if isinstance(charged, NonPrivateDpEvent):
        return True
    assert isinstance(charged, GaussianDpEvent)
    return weakest_std(chain) >= charged.noise_multiplier * chain.l2 * math.sqrt(_SLACK)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_no_direction_has_less_noise_than_the_event_says(form: Form):
    chain = form.chain(LAYERS)
    assert covered(chain, chain.event())


def test_the_check_exposes_gredp_with_real_valued_noise():
    form = Form(methods.get("gredp", variant="published", noise_form="real"))
    chain = form.chain(LAYERS)
    assert weakest_std(chain) < 1e-12, "differences of mirrored coordinates carry no noise at all"
    assert not covered(chain, GaussianDpEvent(0.01))
    assert isinstance(chain.event(), NonPrivateDpEvent)


def test_the_check_exposes_frequency_noise_charged_at_sigma():
    form = Form(methods.get("gredp", variant="published"))
    chain = form.chain(LAYERS)
    assert not covered(chain, GaussianDpEvent(form.plan().noise_multiplier))


def test_the_check_exposes_micro_batches_charged_at_c():
    form = Form(methods.get("discrete", variant="published"), micro_batch=3)
    chain = form.chain(LAYERS)
    assert not covered(chain, GaussianDpEvent(1.0))
    assert chain.event() == GaussianDpEvent(0.5)


def one_record(values: torch.Tensor) -> RecordGrads:
    parameters = {name: nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
    uses, start = [], 0
    for name, shape in SHAPES.items():
        size = math.prod(shape)
        uses.append(([name], Apart([Dense(values[:, start : start + size].reshape(len(values), *shape))])))
        start += size
    layer_of = {name: LAYERS.index(name.partition(".")[0]) for name in SHAPES}
    return RecordGrads(len(values), uses, parameters, layer_of, len(LAYERS))


ENTRIES = st.one_of(
    st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, 1e-30, -1e30, 3e38, math.inf, -math.inf, math.nan])
)


@pytest.mark.parametrize("form", [f for f in FORMS if math.isfinite(f.rule.l2)], ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_one_record_moves_the_sum_by_at_most_the_bound(form: Form, data: st.DataObject):
    chain = form.chain(LAYERS)
    rows = data.draw(st.lists(st.lists(ENTRIES, min_size=_SIZE, max_size=_SIZE), min_size=2, max_size=4))
    values = torch.tensor(rows, dtype=torch.float32)
    groups = chain.clip.groups(LAYERS)

    def total(kept: torch.Tensor) -> torch.Tensor:
        slots = torch.zeros(len(kept), dtype=torch.long) if chain.micro > 1 else None
        if len(kept) == 0:
            return torch.zeros(_SIZE, dtype=torch.float64)
        summed, _ = chain.clipped_sum(one_record(kept), groups, slots)
        return torch.cat([v.flatten() for v in summed.values()]).double()

    assert float((total(values) - total(values[1:])).norm()) <= chain.l2 * (1 + 1e-6)
