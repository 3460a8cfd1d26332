"""What is sent and what is released: bounds that hold for every update, and noise that is really there, read from the
bytes.

Statistical tests have a false-alarm rate of at most 1e-6 each, with fixed seeds.
"""

import math

import numpy as np
import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent, ZCDpEvent
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import chi2, norm

from assay.errors import ConfigError
from assay.federated.methods.cpsgd import Quantiser, hadamard
from assay.federated.noise import Central, Distributed, Local, Released
from assay.federated.wire import Message, Schema, decode, encode
from assay.randomness.streams import Seeded

from . import tiny

vectors = hnp.arrays(
    np.float32,
    st.integers(1, 30),
    elements=st.one_of(st.floats(-4, 4, width=32), st.floats(width=32)),
)


def stream(step=0):
    return Seeded(9).stream("test", step)


def silent_shares(share):
    """`Distributed` with its noise taken off again, to see what it adds noise to."""

    def ints(vector):
        sent = share.send(torch.from_numpy(vector), stream()).astype(np.int64)
        noise = share.send(torch.zeros(len(vector)), stream()).astype(np.int64)
        found = (sent - noise) % 2**share.bits
        return np.where(found >= 2 ** (share.bits - 1), found - 2**share.bits, found)

    return ints


@given(vectors, st.floats(0.01, 100))
def test_a_client_in_the_central_case_sends_at_most_its_bound(vector, bound):
    sent = Central(bound, 1.0, 5).send(torch.from_numpy(vector), stream())
    assert np.isfinite(sent).all()
    assert np.linalg.norm(sent.astype(np.float64)) <= bound * (1 + 1e-6)


fives = hnp.arrays(np.float32, 5, elements=st.floats(-1e3, 1e3, width=32))


@given(st.lists(fives, max_size=3), st.integers(0, 100))
def test_one_client_moves_the_servers_sum_by_at_most_the_bound(others, seed):
    """Whatever it sends, norms beyond the bound included: the server clips again."""
    forged = np.float32(1e30) * np.random.default_rng(seed).standard_normal(5).astype(np.float32)
    server = Central(2.0, 0.0, 1)
    with_it = server.average([*others, forged], 5, stream())
    without = server.average(others, 5, stream())
    assert float(torch.linalg.vector_norm(with_it - without)) <= 2.0 * (1 + 1e-9)


@given(vectors, st.floats(0.01, 100), st.floats(0.1, 50), st.integers(1, 20))
def test_whole_numbers_in_the_distributed_case_are_within_their_reach(vector, bound, multiplier, minimum):
    share = Distributed(bound, multiplier, minimum, 20, 100, len(vector))
    whole = silent_shares(share)(vector)
    assert int(whole @ whole) <= share.reach**2
    # Δ/(√n s) ≤ 1/σ is what the event is made of
    assert share.reach / (math.sqrt(minimum) * share.share) <= 1 / multiplier * (1 + 1e-12)
    assert share.event.rho <= 1 / (2 * multiplier**2) * (1 + 1e-12)
    assert share.reach >= 1000, "the grid is fine"


@given(hnp.arrays(np.float32, 37, elements=st.floats(width=32)), st.sampled_from([3, 5, 17, 101]), st.floats(0.1, 10))
def test_levels_of_cpsgd_are_within_their_bounds(vector, levels, bound):
    quantiser = Quantiser(37, bound, levels)
    signs = np.where(np.arange(64) % 3 == 0, -1.0, 1.0)
    whole = quantiser.forward(torch.from_numpy(vector), signs, stream())
    assert abs(whole).max() <= quantiser.linf == (levels - 1) // 2
    assert int(whole @ whole) <= quantiser.l2**2 * (1 + 1e-12)


def test_the_rotation_is_orthonormal_and_its_own_inverse():
    matrix = np.stack([hadamard(row) for row in np.eye(8)])
    assert np.allclose(matrix @ matrix.T, np.eye(8), atol=1e-15)
    assert np.allclose(hadamard(hadamard(np.arange(8.0))), np.arange(8.0))


def test_rounding_to_levels_has_no_bias():
    quantiser = Quantiser(60, 1.0, 17)
    vector = torch.linspace(-1, 1, 60) / 12
    signs = np.ones(64)
    mean = np.mean([quantiser.forward(vector, signs, stream(i)) for i in range(4000)], axis=0)
    back = quantiser.backward(mean, signs)
    deviation = quantiser.step * 0.5 / math.sqrt(4000)
    assert float((back - vector).abs().max()) < 6 * deviation


def check_normal(draws, std):
    """Mean and variance of draws that should be N(0, std²), one false alarm in 1e6."""
    n = draws.size
    assert abs(draws.mean()) < norm.ppf(1 - 1e-7) * std / math.sqrt(n)
    low, high = chi2.ppf([1e-7, 1 - 1e-7], n) / n
    assert low < np.mean(draws**2) / std**2 < high


def answer_bytes(plan, step, held=None):
    """The bytes of a client's answer in round `step`, and the schema to read them."""
    site = tiny.site(plan, tiny.seeded(seed=step), held)
    fields = {"round": 0, "turn": 0}
    instructions = site.exchange.instructions(0)
    task = encode("task", fields, {"model": site.layout.vector(tiny.model()).numpy(), **instructions})
    expected = site.exchange.expects(instructions)
    return site.answer(0, task), Schema(expected.arrays, {"round": int, **expected.fields})


@pytest.mark.parametrize("method", ["fedavg", "fedags"])
def test_the_noise_of_the_local_case_is_in_the_bytes_that_leave(method):
    plan = tiny.plan(method, noise="local", noise_multiplier=3.0, clip=0.01)
    draws = []
    for step in range(250):
        data, schema = answer_bytes(plan, step)
        draws.append(decode(data, "answer", schema).arrays["update"])
    # the update itself is at most 0.01 long, the noise 0.03 in each coordinate: σC, to a part in a hundred thousand of
    # the variance
    draws = np.stack(draws).astype(np.float64)
    signal = 0.01**2 / draws.shape[1] / 0.03**2
    low, high = chi2.ppf([1e-7, 1 - 1e-7], draws.size) / draws.size
    assert low < np.mean(draws**2) / 0.03**2 < high + signal + 2 * math.sqrt(signal / draws.size) * 6
    covariance = np.cov(draws.T) / 0.03**2
    assert np.linalg.eigvalsh(covariance).min() > 0.4, "no direction is left without noise"


def test_noise_differs_from_client_to_client_and_round_to_round():
    plan = tiny.plan(noise="local", noise_multiplier=3.0, clip=1e-9)
    site = tiny.site(plan, tiny.seeded())
    task = encode("task", {"round": 0, "turn": 0}, {"model": np.zeros(17, np.float32)})
    later = encode("task", {"round": 1, "turn": 1}, {"model": np.zeros(17, np.float32)})
    sent = [site.answer(0, task), site.answer(1, task), site.answer(0, later)]
    assert len(set(sent)) == 3
    assert site.answer(0, task) == sent[0], "with a fixed seed the same task has the same answer"


def test_without_a_seed_asking_again_gives_new_noise():
    """Or a server could ask about two models in one round and subtract the answers."""
    site = tiny.site(tiny.plan(noise="local"), tiny.seeded(seed=None))
    task = encode("task", {"round": 0, "turn": 0}, {"model": np.zeros(17, np.float32)})
    assert site.answer(0, task) != site.answer(0, task)


def test_the_servers_noise_is_in_what_it_releases():
    central = Central(0.5, 2.0, 10)
    draws = np.concatenate([central.average([], 50, stream(i)).numpy() for i in range(400)])
    check_normal(draws, 2.0 * 0.5 / 10)
    same = central.average([], 50, stream(0))
    plus = central.average([np.full(50, 0.01, np.float32)], 50, stream(0))
    assert torch.allclose(plus - same, torch.full((50,), 0.001, dtype=torch.float64), rtol=1e-5)


def test_shares_add_up_to_the_noise_that_is_charged():
    share = Distributed(1.0, 2.0, 5, 5, 5, 40)
    draws = []
    for i in range(400):
        sent = [share.send(torch.zeros(40), stream(5 * i + k)) for k in range(5)]
        draws.append(share.average(sent, 40, stream()).numpy() * 5)
    check_normal(np.concatenate(draws), share.share * math.sqrt(5) * 1.0 / share.reach)
    assert share.share * math.sqrt(5) / share.reach >= 2.0


def test_fewer_answers_than_counted_on_are_not_opened():
    share = Distributed(1.0, 2.0, 4, 5, 5, 3)
    sent = [share.send(torch.zeros(3), stream(k)) for k in range(5)]
    assert share.average(sent[:3], 3, stream()) is None
    assert share.average(sent[:4], 3, stream()) is not None


def test_the_sum_in_the_distributed_case_is_the_sum():
    share = Distributed(1.0, 1e-3, 3, 3, 3, 4)
    given = [torch.tensor([0.1, -0.5, 0.0, 0.3]) * k for k in (1.0, -0.5, 0.25)]
    average = share.average([share.send(v, stream(k)) for k, v in enumerate(given)], 4, stream())
    assert torch.allclose(average, torch.stack(given).mean(0).double(), atol=0.01)


def test_events():
    assert Central(1.0, 2.5, 3).event == GaussianDpEvent(2.5)
    assert Local(1.0, 2.5).event == GaussianDpEvent(2.5)
    assert isinstance(Distributed(1.0, 2.5, 3, 3, 3, 10).event, ZCDpEvent)
    with pytest.raises(ConfigError):
        Distributed(1.0, 0.0, 3, 3, 3, 10)


def test_what_is_private_already_is_sent_as_it_is():
    vector = torch.tensor([5.0, -7.0])
    assert Released().send(vector, stream()).tolist() == [5.0, -7.0]
    assert Released().send(torch.tensor([math.nan, 1.0]), stream()).tolist() == [0.0, 0.0]


def test_an_answer_of_cpsgd_hides_the_levels():
    plan = tiny.plan("cpsgd", noise="distributed", noise_multiplier=5.0)
    exchange = tiny.site(plan, tiny.seeded()).exchange
    zero = exchange.trials * exchange.minimum / 4
    draws = []
    for step in range(100):
        sent = []
        for k in range(3):
            data, schema = answer_bytes(
                plan, 3 * step + k, [(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))] * 6
            )
            sent.append(decode(data, "answer", schema))
        total = sum(message.arrays["levels"].astype(np.int64) for message in sent) % 2**exchange.bits
        draws.append(np.where(total >= 2 ** (exchange.bits - 1), total - 2**exchange.bits, total))
    check_normal(np.concatenate(draws).astype(float), math.sqrt(zero))
    assert math.sqrt(zero) >= 5.0 * exchange.quantiser.l2
    assert isinstance(sent[0], Message)
