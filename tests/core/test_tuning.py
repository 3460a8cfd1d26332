"""Choosing among settings: what it costs, and that only the best leaves."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dp_accounting import dp_event, rdp
from scipy import stats
from torch import nn

from assay import Adjacency, ConfigError, Plan, Settings, choose
from assay.accounting import events
from assay.accounting.epsilon import UnaccountableError, epsilon
from assay.randomness.streams import Seeded
from assay.training import selection as tuning

ADD = Adjacency.ADD_OR_REMOVE_ONE


def test_the_cost_is_that_of_dp_accounting_and_survives_the_ledger():
    run = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.13, dp_event.GaussianDpEvent(8.0)), 180)
    trial = dp_event.ComposedDpEvent([run, dp_event.GaussianDpEvent(30.0)])
    event = dp_event.RepeatAndSelectDpEvent(trial, 10, math.inf)
    accountant = rdp.RdpAccountant()
    accountant.compose(event)
    assert epsilon(event, 1e-5, ADD) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)
    assert epsilon(event, 1e-5, ADD) > epsilon(trial, 1e-5, ADD)
    assert events.from_json(events.to_json(event)) == event
    # together with something else, divergences add up
    accountant.compose(dp_event.GaussianDpEvent(20.0))
    both = dp_event.ComposedDpEvent([event, dp_event.GaussianDpEvent(20.0)])
    assert epsilon(both, 1e-5, ADD) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)


def test_what_is_not_accounted_for_is_refused():
    event = dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(5.0), 10, math.inf)
    with pytest.raises(UnaccountableError, match="add-or-remove-one"):
        epsilon(event, 1e-5, Adjacency.REPLACE_ONE)
    with pytest.raises(ConfigError, match="shape"):
        events.check(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(5.0), 10, 1))
    with pytest.raises(ConfigError, match="mean"):
        events.check(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(5.0), 0.5, math.inf))
    nothing = dp_event.RepeatAndSelectDpEvent(dp_event.NonPrivateDpEvent(), 10, math.inf)
    assert epsilon(nothing, 1e-5, ADD) == math.inf


def test_more_trials_cost_more_and_the_noise_is_found():
    plan = Plan(records=900, batch_size=300, steps=30, noise_multiplier=1.0, delta=1e-5)
    few, many = (tuning.calibrated(plan, 3.0, 20.0, mean) for mean in (5, 50))
    assert few.noise_multiplier < many.noise_multiplier
    assert 0.999 * 3 <= epsilon(tuning.selection(few, 20.0, 5), 1e-5, ADD) <= 3
    assert few.epsilon() < 2.5  # a single run is cheaper than the best of several


def test_the_number_of_trials_is_poisson():
    counts = torch.tensor([tuning.drawn_trials(4.0, Seeded(i).stream("trials", 0)) for i in range(4000)]).double()
    # mean 4 ± 0.032, variance 4 ± 0.095: six standard deviations, false alarms below 1e-8
    assert float(counts.mean()) == pytest.approx(4, abs=0.2)
    assert float(counts.var()) == pytest.approx(4, abs=0.6)
    assert float((counts == 0).double().mean()) == pytest.approx(math.exp(-4), abs=0.013)


def test_every_record_has_its_part_by_a_coin_of_its_own():
    """A chi-square test of pairs of neighbours, which would be alike or unlike too often if coins were not independent.

    False alarm 1e-6.
    """
    bundle = SimpleNamespace(train_x=torch.arange(100_000.0), train_y=torch.zeros(100_000), train_units=None)
    split = tuning.Split.of(bundle, Seeded(0).stream("split", 0))
    again = tuning.Split.of(bundle, Seeded(0).stream("split", 0))
    assert torch.equal(split.validation.tensors[0], again.validation.tensors[0])
    both = torch.cat([split.train.tensors[0], split.validation.tensors[0]]).sort().values
    assert torch.equal(both, bundle.train_x)
    aside = torch.zeros(100_000, dtype=torch.bool)
    aside[split.validation.tensors[0].long()] = True
    pairs = (2 * aside[::2].long() + aside[1::2].long()).bincount(minlength=4).double().numpy()
    expected = 50_000 * np.array([0.81, 0.09, 0.09, 0.01])
    assert stats.chisquare(pairs, expected).pvalue > 1e-6
    one = SimpleNamespace(train_x=torch.zeros(1), train_y=torch.zeros(1), train_units=None)
    with pytest.raises(ConfigError, match="validation"):
        tuning.Split.of(one, Seeded(0).stream("split", 0))


def test_public_data_are_apart_from_the_private_records():
    x = torch.arange(12.0).reshape(6, 2)
    private = SimpleNamespace(train_x=x[:3], input_shape=(2,))
    tuning.check_apart(SimpleNamespace(train_x=x[3:5], test_x=x[5:], input_shape=(2,)), private, "other")
    tuning.check_apart(SimpleNamespace(train_x=x[:3, :1], test_x=x[:3, :1], input_shape=(1,)), private, "other")
    for public in (
        SimpleNamespace(train_x=x[2:5], test_x=x[5:], input_shape=(2,)),
        SimpleNamespace(train_x=x[3:5], test_x=x[:1] * torch.tensor([-1.0, 1.0]), input_shape=(2,)),  # -0
    ):
        with pytest.raises(ConfigError, match="at least one of them is there"):
            tuning.check_apart(public, private, "copy")


class Always(nn.Module):
    def __init__(self, label: int) -> None:
        super().__init__()
        self.label = label

    def forward(self, x):
        return nn.functional.one_hot(torch.full((len(x),), self.label), 10).float()


def test_the_best_by_score_is_taken_and_nothing_where_there_was_no_trial():
    x = torch.zeros(8000, 1)
    y = (torch.arange(8000) % 4 == 0).long()
    splits = [
        tuning.Split.of(SimpleNamespace(train_x=x, train_y=y, train_units=None), Seeded(1).stream("split", 0))
    ] * 2
    tried = []

    def run(which, trial):
        tried.append(which)
        return SimpleNamespace(model=Always(which))

    # about 600 of 800 right against 200: the noise has standard deviation 20
    best, result = tuning.best_of(splits, 30, Seeded(0), run)
    assert (best, result.model.label) == (0, 0)
    assert set(tried) == {0, 1}
    none = next(i for i in range(10_000) if tuning.drawn_trials(3, Seeded(i).stream("trials", 0)) == 0)
    with pytest.raises(tuning.NoTrialError, match="budget is spent"):
        tuning.best_of(splits, 3, Seeded(none), run)


def test_a_choice_on_public_data_protects_whole_persons(tmp_path):
    (tmp_path / "schema.toml").write_text(
        '[columns.age]\ntype = "number"\nlow = 0\nhigh = 200\n[columns.ill]\ntype = "flag"\n'
    )
    for name, first in (("private", 0), ("public", 100)):
        rows = [f"p{i // 2},{first + i % 60 + i / 300},{'yes' if i % 60 > 30 else 'no'}" for i in range(120)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["patient,age,ill", *rows, ""]))
    settings = Settings(
        data=str(tmp_path / "private.csv"),
        schema=tmp_path / "schema.toml",
        target="ill",
        unit="patient",
        model="logistic",
        epochs=1,
        delta=1e-3,
    )
    chosen = choose(
        settings, {"lr": [0.5, 1]}, out=tmp_path / "run", epsilon=3, public=str(tmp_path / "public.csv"), seed=0
    )
    assert chosen.record["persons"]["name"] == "patient"
    assert chosen.record["unit"] == "one patient with all of their rows"
