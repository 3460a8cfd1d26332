"""Views of records: what they are, that a step averages them before clipping, and that runs with them resume."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from assay import ConfigError, Optimizer, Plan, PrivateStep, Training, fit
from assay.gradients.clipping import Flat
from assay.randomness.streams import Seeded
from assay.training import augment as room
from assay.training.averaging import Average, moving, tail


@pytest.fixture
def pictures() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    return TensorDataset(torch.randn(60, 1, 6, 6, generator=generator), torch.arange(60) % 3)


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))


def test_every_shift_happens_and_nothing_else_changes():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    shifted, labels = room.parse("shift:views=400,pixels=1")([x, torch.tensor([7])], Seeded(0).stream("augment", 0))
    assert shifted.shape == (400, 1, 4, 4)
    assert labels.tolist() == [7] * 400
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")[0]
    possible = {tuple(padded[:, i : i + 4, j : j + 4].flatten().tolist()) for i in range(3) for j in range(3)}
    seen = {tuple(view.flatten().tolist()) for view in shifted}
    assert seen == possible  # missing one of nine in 400 draws: 9·(8/9)^400 < 1e-19


def test_flips_are_flips_and_shifts():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    views, _ = room.parse("shift-flip:views=64,pixels=0")([x, torch.tensor([0])], Seeded(0).stream("augment", 0))
    kinds = {tuple(view.flatten().tolist()) for view in views}
    assert kinds == {tuple(x.flatten().tolist()), tuple(x.flip(3).flatten().tolist())}


def test_the_views_of_a_record_stand_together():
    x = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 4, 4)
    views, labels = room.parse("shift:views=2")([x, torch.arange(3)], Seeded(0).stream("augment", 0))
    assert views[:, 0, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("physical", [None, 8])
def test_a_step_clips_the_mean_gradient_of_each_record(network, pictures, physical):
    plan = Plan(records=60, batch_size=15, steps=3, noise_multiplier=0.0, delta=1e-3, clip=Flat(bound=0.3))
    views = room.parse("shift:views=4,pixels=1")
    plain = copy.deepcopy(network)  # the engine runs the other one its own way
    step = PrivateStep(network, plan, randomness=Seeded(4), augment=views, max_physical_batch=physical)
    expected = None
    for x, y in step.batches(pictures):
        assert len(x) == len(y)
        assert len(x) % 4 == 0
        assert physical is None or len(x) <= physical
        for record in range(0, len(x), 4):
            loss = F.cross_entropy(plain(x[record : record + 4]), y[record : record + 4])
            g = torch.cat([v.flatten() for v in torch.autograd.grad(loss, list(plain.parameters()))])
            clipped = g * min(1.0, 0.3 / float(g.norm()))
            expected = clipped if expected is None else expected + clipped
        if step.backward(F.cross_entropy(network(x), y, reduction="none")):
            got = torch.cat([p.grad.flatten() for p in network.parameters()])
            torch.testing.assert_close(got, expected / 15, rtol=1e-3, atol=1e-6)
            expected = None
    step.close()


def test_one_loss_a_view_is_asked_for(network, pictures):
    plan = Plan(records=60, batch_size=15, steps=1, noise_multiplier=1.0, delta=1e-3)
    step = PrivateStep(network, plan, randomness=Seeded(4), augment=room.parse("shift:views=2"))
    x, y = next(iter(step.batches(pictures)))
    with pytest.raises(ConfigError, match="views"):
        step.backward(F.cross_entropy(network(x), y, reduction="none").view(-1, 2).mean(1))


def test_epsilon_does_not_change_and_an_empty_batch_is_a_step(network, pictures):
    plan = Plan(records=60, batch_size=0.5, steps=6, noise_multiplier=1.0, delta=1e-6)
    spent = []
    for views in (None, room.parse("shift")):
        step = PrivateStep(network, plan, randomness=Seeded(1), augment=views)
        sizes = [len(plan.sampler.draw(i, Seeded(1))) for i in range(6)]
        assert 0 in sizes
        for x, y in step.batches(pictures):
            assert step.backward(F.cross_entropy(network(x), y, reduction="none"))
        spent.append(step.epsilon())
        step.close()
    assert spent[0] == spent[1] > 0


def test_a_seeded_run_repeats_itself_and_says_what_it_did(network, pictures):
    plan = Plan(records=60, batch_size=15, steps=8, noise_multiplier=1.0, delta=1e-3)
    training = Training(optimizer=Optimizer(lr=0.1), augment="shift:views=2,pixels=1", seed=3)
    start = {n: p.clone() for n, p in network.state_dict().items()}
    first = fit(network, pictures, plan=plan, training=training)
    weights = {n: p.clone() for n, p in network.state_dict().items()}
    network.load_state_dict(start)
    fit(network, pictures, plan=plan, training=training)
    assert all(torch.equal(p, weights[n]) for n, p in network.state_dict().items())
    assert "mean over random views of it (shift:views=2,pixels=1)" in first.statement


def test_refused_before_anything_is_written(network, records, pictures, tmp_path):
    plan = Plan(records=120, batch_size=20, steps=2, noise_multiplier=1.0, delta=1e-3)
    with pytest.raises(ConfigError, match="augment = 'shift' is not accepted: pictures"):
        fit(nn.Linear(4, 3), records, plan=plan, training=Training(augment="shift"), out=tmp_path / "run")
    shifts, of_pictures = Training(augment="shift:pixels=4"), replace(plan, records=60)
    with pytest.raises(ConfigError, match="a shift by 3 pixels at most, half the side of these pictures of 6×6"):
        fit(network, pictures, plan=of_pictures, training=shifts, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for text in ("turn", "shift:views=0", "shift:views=1001", "shift:pixels=-1", "shift:by=2"):
        with pytest.raises(ConfigError):
            Training(augment=text)


def test_tail_is_the_plain_mean_of_the_last_weights():
    model = nn.Linear(1, 1, bias=False)
    average = Average(tail(0.4, 10), model)
    for step in range(1, 11):
        with torch.no_grad():
            model.weight.fill_(float(step))
        average.update(step)
        expected = float(step) if step <= 7 else sum(range(7, step + 1)) / (step - 6)
        assert float(average.values["weight"]) == pytest.approx(expected)


def test_moving_average_begins_gently():
    share = moving(0.99)
    assert share(1) == pytest.approx(1 - 2 / 11)
    assert share(10_000) == pytest.approx(0.01)


def test_tail_and_ema_are_alternatives():
    for settings in ({"tail": 0.0}, {"tail": 1.5}, {"tail": 0.5, "ema": 0.9}):
        with pytest.raises(ConfigError, match="tail"):
            Training(**settings)
