"""Attacks find out who was in the training set of a model that memorises, and find nothing where there is nothing.

Under "members and non-members are alike" an AUC of m against n records has standard deviation √((m+n+1)/(12mn)). Both
tests draw the line at 5.5 of them, a false-alarm rate of 4e-8 each and below 1e-6 for all of them together.
"""

import functools
import math

import pytest
import torch
from torch import nn

from assay import Optimizer, Plan, Training, attacks, fit
from assay.attacks.setting import Setting, stacked

from .digits import Trainer, noisy_digits, split

WITHOUT_TRAINING = [name for name, attack in attacks.available().items() if "train" not in attack.needs]


def line(result):
    m, n = result.members, result.nonmembers
    return 5.5 * math.sqrt((m + n + 1) / (12 * m * n))


@pytest.fixture(scope="module")
def leaking():
    members, nonmembers, pool = split(noisy_digits(), 450, 450, 897)
    train = Trainer()
    target = train(stacked(members))
    return Setting(target=target, members=members, nonmembers=nonmembers, train=train, pool=pool, shadows=6)


@pytest.fixture(scope="module")
def found(leaking):
    """What each attack finds; LiRA trains many models, so each is run once."""
    return functools.cache(lambda name: attacks.run(name, leaking))


@pytest.fixture(scope="module")
def blameless():
    """The target has seen neither members nor non-members."""
    trained_on, members, nonmembers, pool = split(noisy_digits(), 350, 400, 400, 647)
    train = Trainer(seed=2)
    target = train(stacked(trained_on))
    return Setting(target=target, members=members, nonmembers=nonmembers, train=train, pool=pool, shadows=4)


@pytest.mark.parametrize("name", attacks.available())
def test_memorising_is_found_out(found, name):
    result = found(name)
    assert result.auc.value > 0.5 + line(result)
    assert result.balanced_accuracy.low > 0.5


@pytest.mark.parametrize("name", WITHOUT_TRAINING)
def test_memorising_is_found_out_by_one_who_knows_half(leaking, name):
    setting = Setting(target=leaking.target, members=leaking.members, nonmembers=leaking.nonmembers)
    result = attacks.run(name, setting)
    assert (result.members, result.nonmembers) == (225, 225)
    assert result.auc.value > 0.5 + line(result)
    assert result.balanced_accuracy.low > 0.5


@pytest.mark.parametrize("name", attacks.available())
def test_nothing_is_found_where_there_is_nothing(blameless, name):
    result = attacks.run(name, blameless)
    assert abs(result.auc.value - 0.5) < line(result)


@pytest.mark.parametrize("name", WITHOUT_TRAINING)
def test_nothing_is_found_where_there_is_nothing_by_one_who_knows_half(blameless, name):
    setting = Setting(target=blameless.target, members=blameless.members, nonmembers=blameless.nonmembers)
    result = attacks.run(name, setting)
    assert abs(result.auc.value - 0.5) < line(result)


def test_comparing_a_record_with_itself_pays_at_low_false_positive_rates(found):
    """What LiRA is for (Carlini et al., figure 1): the threshold attacks have next to nothing there."""
    assert found("lira-online").tpr_at_fpr[1].tpr.low > found("loss").tpr_at_fpr[1].tpr.high


def test_private_training_is_attacked_in_the_same_harness_and_keeps_its_promise():
    """(ε, δ)-differential privacy bounds TPR - FPR by (e^ε - 1 + 2δ)/(e^ε + 1), hence every balanced accuracy."""
    members, nonmembers, pool = split(noisy_digits(), 440, 440, 880)
    plan = Plan(records=440, batch_size=64, steps=60, noise_multiplier=3.0, delta=1e-3)

    def train(records):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 10))
        return fit(model, records, plan=plan, training=Training(seed=1, optimizer=Optimizer(lr=0.5))).model

    setting = Setting(target=train(stacked(members)), members=members, nonmembers=nonmembers, train=train, pool=pool)
    epsilon = plan.epsilon()
    bound = (1 + (math.exp(epsilon) - 1 + 2 * plan.delta) / (math.exp(epsilon) + 1)) / 2
    assert bound < 0.9
    for name in ("loss", "white-box"):
        assert attacks.run(name, setting, confidence=1 - 1e-6).balanced_accuracy.low < bound
