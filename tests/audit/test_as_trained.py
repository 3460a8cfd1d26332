"""An audit trains the run that it audits: without canaries, every bit of the parameters is the run's own."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import ConfigError, Optimizer, Plan, Training, fit, methods
from assay.audit.training import black_box, blank, fair_coins, white_box, with_more
from assay.audit.worlds import trained_in_two_worlds
from assay.data.sampling import FullBatch
from assay.methods.perturb.mean import Mean
from assay.runs.result import cross_entropy
from assay.training.loop import train_again

N, CLASSES = 60, 3
SGD = Optimizer(lr=0.5, momentum=0.8)
SETTINGS = {
    "plain": (Training(optimizer=SGD, seed=3), {}),
    "scale_from": (Training(optimizer=SGD, seed=3, ema=0.9, scale_from=5), {}),
    "bf16": (Training(optimizer=SGD, seed=3, precision="bf16"), {}),
    "ema": (Training(optimizer=SGD, seed=3, ema=0.8), {}),
    "tail": (Training(optimizer=SGD, seed=3, tail=0.5), {}),
    "views": (Training(optimizer=SGD, seed=3, augment="shift:views=2,pixels=1"), {}),
    "parts": (Training(optimizer=SGD, seed=3, max_physical_batch=7), {}),
    "center": (Training(optimizer=SGD, seed=3), {"center": Mean(noise=10)}),
    "center, views": (
        Training(optimizer=SGD, seed=3, augment="shift:views=2,pixels=1", tail=0.5),
        {"center": Mean(noise=10)},
    ),
    "relevance": (
        Training(optimizer=SGD, seed=3),
        {"method": methods.get("afrrs"), "epsilon_limit": 8.0},
    ),
}
WHITE = [name for name in SETTINGS if name != "relevance"]


def data(n: int = N) -> TensorDataset:
    x = torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.flatten(1)[:, :CLASSES].argmax(1))


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, CLASSES))


def plan(**more) -> Plan:
    return Plan(**({"records": N, "batch_size": 20, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3} | more))


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: nn.Module, b: nn.Module) -> bool:
    first, second = state(a), state(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@functools.cache
def ended(name: str) -> nn.Module:
    """The run itself."""
    training, more = SETTINGS[name]
    return fit(network(), data(), plan=plan(**more), training=training).model


OUT = next(seed for seed in range(100) if not fair_coins(1, seed).any())
"""A seed whose coin leaves the one canary out: there is a run, and nothing to say about it."""


@pytest.mark.parametrize("name", SETTINGS)
def test_trained_again_it_is_the_run(name):
    training, more = SETTINGS[name]
    again = train_again(network(), data(), plan=plan(**more), training=training)
    assert same(again, ended(name))
    assert not again.training


@pytest.mark.parametrize("name", WHITE)
def test_without_canaries_a_white_box_is_the_run(name):
    training, more = SETTINGS[name]
    model = network()
    with pytest.raises(ConfigError, match="included"):
        white_box(model, data(), plan(**more), canaries=1, seed=OUT, training=training)
    assert same(model, ended(name))


@pytest.mark.parametrize("name", SETTINGS)
def test_without_canaries_a_black_box_is_the_run(name):
    training, more = SETTINGS[name]
    model = network()
    with pytest.raises(ConfigError, match="included"):
        black_box(model, data(), plan(**more), blank(data(), 1, CLASSES), seed=OUT, training=training)
    assert same(model, ended(name))


@pytest.mark.parametrize("name", ["scale_from", "bf16", "center, views"])
def test_a_world_with_the_canary_is_the_run_on_its_records_too(name):
    """The score is a loss of the model that comes out: equal to the last bit."""
    training, more = SETTINGS[name]
    x, y = data(N + 1).tensors
    found = trained_in_two_worlds(network(), data(), plan(**more), (x[-1], y[-1]), runs=4, training=training)
    both = TensorDataset(*(torch.cat([t, last[-1:]]) for t, last in zip(data().tensors, (x, y), strict=True)))
    own = replace(training.at_batch(plan().batch_size), seed=training.seed + 1)
    model = fit(network(), both, plan=with_more(plan(**more), N + 1), training=own).model
    with torch.no_grad():
        assert found.included[0] == -float(cross_entropy(model(x[-1:]), y[-1:]))
    assert found.included[0] != found.excluded[0]


@pytest.mark.parametrize("name", WHITE)
def test_canaries_are_seen_under_every_setting(name):
    """Fixed seeds. With little noise included canaries stand out, whatever their run does besides."""
    training, more = SETTINGS[name]
    quiet = plan(**more, noise_multiplier=0.3)
    found = white_box(network(), data(), quiet, canaries=40, seed=1, training=training)
    assert found.included.mean() > 10 > 0 > found.excluded.mean()


def test_scaled_settings_are_those_of_the_run_with_more_records_too():
    """With canaries batches are larger, and the learning rate stays."""
    training = SETTINGS["scale_from"][0]
    canaries = blank(data(), 40, CLASSES)
    models = [network(), network()]
    for model, asked in zip(models, (training, training.at_batch(plan().batch_size)), strict=True):
        black_box(model, data(), plan(), canaries, training=asked)
    assert same(*models)


def test_a_stage_sees_the_canary_in_its_own_world_only():
    """Training has no noise and the canary no gradient: worlds differ by the mean that is released first."""

    def loss(output, target):
        return torch.where(target > 0, output.square().sum(1), (output.detach() + 0 * output).sum(1))

    x, y = data().tensors
    labels = TensorDataset(x, y + 1)
    canary = (torch.full((1, 8, 8), 3.0), torch.tensor(0))
    settings = {"runs": 4, "loss": loss, "training": Training(optimizer=SGD, seed=3)}
    for center, differ in ((None, False), (Mean(noise=1e-6), True)):
        quiet = plan(noise_multiplier=0.0, sampling=FullBatch, batch_size=N, center=center)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
        before = state(model)
        found = trained_in_two_worlds(model, labels, quiet, canary, **settings)
        assert bool((found.included != found.excluded).all()) == differ
        assert before.keys() == state(model).keys(), "the model is given back without the stage's mark"


def test_a_stage_that_trains_on_a_number_of_records_takes_input_canaries_only():
    training, more = SETTINGS["relevance"]
    x, y = data().tensors
    with pytest.raises(ConfigError, match="--black-box"):
        trained_in_two_worlds(network(), data(), plan(**more), (x[0], y[0]), runs=4, training=training)
