"""What each method's messages hold, and what they do not."""

import math

import numpy as np
import pytest
import torch

from assay.errors import ConfigError
from assay.federated.exchange import Work
from assay.federated.layout import Layout
from assay.federated.wire import Message
from assay.randomness.streams import Seeded

from . import tiny

SIZE = 17


def work(update, loss=0.7, records=10, start=None, loss_at=None, weight=1.0):
    return Work(
        start=torch.zeros(SIZE) if start is None else start,
        update=update,
        loss=loss,
        records=records,
        weight=weight,
        lr=0.5,
        loss_at=loss_at or (lambda vector: float(vector.sum())),
    )


def exchange(plan):
    return plan.method.exchange(plan, Layout.of(tiny.model()))


def stream(step=0):
    return Seeded(4).stream("test", step)


def update(seed=0, scale=0.01):
    return scale * torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("noise", ["central", "local", "distributed"])
def test_sound_fedags_sends_the_set_and_nothing_else(noise):
    plan = tiny.plan("fedags", noise=noise, rounds=10, noise_multiplier=0.5)
    both = exchange(plan)
    both.released = torch.arange(
        SIZE, dtype=torch.float64
    )  # earlier released updates: the last coordinates are largest
    task = both.instructions(6)  # all but 6/10 of 17: 7 coordinates
    kept = both.selected(task)
    assert kept.tolist() == [False] * 10 + [True] * 7
    u = update()
    _, one = both.answer(work(u), task, 6, stream())
    changed = u.clone()
    changed[:10] += 1000.0
    _, other = both.answer(work(changed), task, 6, stream())
    assert len(one["update"]) == 7
    assert np.array_equal(one["update"], other["update"]), (
        "what is outside the set has no influence, not even by clipping"
    )


def test_the_set_of_fedags_depends_on_released_values_only():
    plan = tiny.plan("fedags", rounds=10)
    a, b = exchange(plan), exchange(plan)
    for turn in range(5):
        task = a.instructions(turn)
        assert np.array_equal(task["set"], b.instructions(turn)["set"])
        messages = [
            Message(both.answer(work(update(turn + 100 * i)), task, turn, stream())[1], {})
            for i, both in enumerate((a, b))
        ]
        released = a.combine(messages[:1], task, turn, stream(turn))
        # b sees other clients but, as it happens, the same released update
        kept = b.selected(task)
        b.released[kept] = 0.9 * b.released[kept] + 0.1 * released[kept]
        assert np.array_equal(a.instructions(turn + 1)["set"], b.instructions(turn + 1)["set"])


def test_sound_fedags_with_weights_by_loss_stays_within_the_bound():
    plan = tiny.plan("fedags", {"weights": "loss"}, noise_multiplier=0.0)
    both = exchange(plan)
    task = both.instructions(0)
    for loss in (-1.0, 0.0, 0.5, 3.0, 1e9, math.nan, math.inf):
        fields, sent = both.answer(work(update(scale=100.0), loss=loss), task, 0, stream())
        assert fields == {}, "no loss leaves"
        assert 0.499 < np.linalg.norm(sent["update"]) <= 1 + 1e-6


def test_published_fedags_to_the_letter():
    plan = tiny.plan("fedags", {"variant": "published"}, noise="local", rounds=10, noise_multiplier=2.0)
    both = exchange(plan)
    ordered = torch.arange(1.0, SIZE + 1)
    # ⌈t|W|/T⌉ of 17 in 10 rounds, at most the ⌈0.9·17⌉ = 16th, counted from 1
    assert [float(both.threshold(ordered.flip(0), t)) for t in range(10)] == [2, 4, 6, 7, 9, 11, 12, 14, 16, 16]
    u = update(scale=1.0)
    clean = (-u / 0.5).double()
    clean /= max(1.0, float(clean.norm()))
    fields, sent = both.answer(work(u), {}, 3, stream())
    bare = torch.isclose(torch.from_numpy(sent["gradient"]).double(), clean, atol=1e-7)
    assert bare.any(), "insignificant coordinates leave as they are: this is why ε is infinite"
    assert not bare.all()
    assert fields == {"loss": 0.7, "records": 10}


def test_weights_of_published_fedags():
    plan = tiny.plan("fedags", {"variant": "published"}, noise="local")
    both = exchange(plan)
    g = [np.full(SIZE, 1.0, np.float32), np.full(SIZE, -2.0, np.float32)]
    answers = [
        Message({"gradient": g[0]}, {"loss": 1.0, "records": 30}),
        Message({"gradient": g[1]}, {"loss": 3.0, "records": 10}),
    ]
    # γ = (n_k L + n L_k)/(2nL): (30·4 + 40·1)/(2·40·4) = ½ and (10·4 + 40·3)/320 = ½
    assert torch.allclose(both.combine(answers, {}, 0, stream()), torch.full((SIZE,), -0.5 + 1.0, dtype=torch.float64))
    assert not both.combine([], {}, 0, stream()).any()


def test_scores_of_fedsnlc_are_changes_of_the_loss():
    from assay.federated.methods.fedsnlc import loss_changes

    u = update()
    found = loss_changes(work(u), Layout.of(tiny.model()))
    parts = Layout.of(tiny.model()).blocks().values()
    assert torch.allclose(found, torch.tensor([-float(u[p].sum()) for p in parts], dtype=torch.float64), atol=1e-6)
    bad = loss_changes(work(u, loss_at=lambda _: math.nan), Layout.of(tiny.model()))
    assert not bad.any()


def test_sound_fedsnlc_is_one_vector_within_the_bound():
    plan = tiny.plan("fedsnlc", noise_multiplier=0.0, per_round=1)
    both = exchange(plan)
    task = both.instructions(0)
    _, sent = both.answer(work(update(scale=100.0), loss_at=lambda v: 1e6 * float(v[0])), task, 0, stream())
    assert len(sent["update"]) == SIZE + 3
    assert np.linalg.norm(sent["update"]) <= 1 + 1e-6
    u = update()
    _, sent = both.answer(work(u), task, 0, stream())
    released = both.combine([Message(sent, {})], task, 0, stream())
    assert torch.allclose(released.float(), u, atol=1e-6), "without noise, the update comes out as it went in"


def test_sound_fedsnlc_keeps_the_parts_that_scored_highest():
    plan = tiny.plan("fedsnlc", {"keep": 0.4, "warmup": 1}, rounds=10, noise_multiplier=0.1)
    both = exchange(plan)
    assert both.selected(both.instructions(0)).all()
    assert list(both.layout.shapes) == ["shift", "linear.weight", "linear.bias"]
    both.scores = torch.tensor([0.3, 0.1, 0.5], dtype=torch.float64)
    kept = both.selected(both.instructions(1))
    assert kept.tolist() == [True] * 2 + [False] * 12 + [True] * 3
    restored = exchange(plan)
    restored.restore(both.state())
    assert torch.equal(restored.scores, both.scores)


def test_published_fedsnlc_leaves_parts_bare():
    plan = tiny.plan("fedsnlc", {"variant": "published"}, noise="local", noise_multiplier=2.0)
    both = exchange(plan)
    u = update()
    _, sent = both.answer(work(u), {}, 0, stream())
    bare = np.isclose(sent["gradient"], (-u / 0.5).numpy(), atol=1e-6)
    assert bare.any()
    assert not bare.all()


@pytest.mark.parametrize("method", ["fedavg", "fedags", "fedsnlc", "cpsgd"])
def test_weights_only_ever_shrink_a_vector(method):
    plan = tiny.plan(method, noise="distributed", noise_multiplier=1e-3 if method != "cpsgd" else 1.0)
    both = exchange(plan)
    task = both.instructions(0)
    _, heavy = both.answer(work(update(scale=9.0), weight=1.0), task, 0, stream())
    _, light = both.answer(work(update(scale=9.0), weight=0.1), task, 0, stream())
    assert heavy.keys() == light.keys()
    assert tiny.seeded(weight_records=20).weight(5) == 0.25
    assert tiny.seeded(weight_records=20).weight(500) == 1.0
    assert tiny.seeded().weight(500) == 1.0


def test_svt_chooses_few_and_only_they_leave():
    plan = tiny.plan(
        "fedags", {"select": "svt", "svt_epsilon": 1e6, "least": 0.3}, noise="local", noise_multiplier=1e-9
    )
    both = exchange(plan)
    assert both.count == 6
    u = torch.zeros(SIZE)
    u[[2, 9, 11]] = torch.tensor([0.5, -0.6, 0.3])
    _, sent = both.answer(work(u), {}, 0, stream())  # hardly any noise: exactly the large ones are chosen
    released = both.combine([Message(sent, {})], {}, 0, stream())
    assert torch.allclose(released.float(), u, atol=1e-6)
    assert len(sent["update"]) == 6
    # with real noise, never more than c
    noisy = exchange(tiny.plan("fedags", {"select": "svt", "least": 0.3}, noise="local"))
    counts = [int(noisy.choose(u, stream(i)).sum()) for i in range(50)]
    assert max(counts) == 6
    forged = {"set": np.full(3, 255, np.uint8), "update": np.ones(6, np.float32)}
    assert float(noisy.combine([Message(forged, {})], {}, 0, stream()).sum()) == 6


def test_svt_is_as_private_as_it_is_charged():
    """Two inputs as far apart as clipping allows, one coordinate: the chance that it is chosen differs by at most e^ε
    (false alarm < 1e-6).
    """
    options = {"select": "svt", "svt_epsilon": 0.5, "least": 1.0}
    plan = tiny.plan("fedags", options, noise="local", size=1)
    both = type(exchange(plan))(plan.method, plan, 1)
    n = 6000
    seen = []
    for value in (0.0, 1.0):
        draws = Seeded(int(value)).stream("svt", 0)
        seen.append(sum(int(both.choose(torch.tensor([value]), draws).sum()) for _ in range(n)) / n)
    slack = 5 * math.sqrt(0.25 / n)
    for p, q in (seen, seen[::-1]):
        assert p - slack <= math.exp(0.5) * (q + slack)
        assert (1 - p) - slack <= math.exp(0.5) * (1 - q + slack)
    assert seen[1] > seen[0]


@pytest.mark.parametrize("name", ["fedags", "fedsnlc"])
def test_the_claim_of_equation_2_is_relative_to_the_sensitivity_and_no_reading_has_an_epsilon(name):
    for sensitivity in (1.0, 0.1):
        options = {"variant": "published", "sensitivity": sensitivity}
        plan = tiny.plan(name, options, noise="local", noise_multiplier=2.4052 * sensitivity)
        assert plan.claimed() == pytest.approx(0.5, rel=1e-3)
        assert math.isinf(plan.epsilon())
    with pytest.raises(ConfigError, match="published"):
        tiny.plan(name, {"sensitivity": 0.1})
