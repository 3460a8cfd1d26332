"""DPSUR: what a test can show of a record, what it does to a run, and what is refused."""

import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from assay import Adjacency, Optimizer, Plan, PrivateStep, Training, methods
from assay.data.sampling import FullBatch
from assay.data.units import Unit
from assay.errors import ConfigError
from assay.training.loop import train_again

LOSSES = st.one_of(st.floats(-1e3, 1e3), st.sampled_from([math.inf, -math.inf, math.nan, 0.0]))


def plan(options=None, **changes) -> Plan:
    base = {"records": 90, "batch_size": 30, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3}
    return Plan(**base | {"method": methods.get("dpsur", **(options or {}))} | changes)


@pytest.mark.parametrize("kind", ["sum", "mean"])
@settings(max_examples=60)
@given(rows=st.lists(st.tuples(LOSSES, LOSSES), min_size=1, max_size=5))
def test_one_record_moves_a_test_by_at_most_its_bound(kind, rows):
    test = plan({"test": kind, "c_v": 0.3}).selection
    before, after = torch.tensor(rows, dtype=torch.float64).unbind(1)
    whole, without = test.measure(before, after), test.measure(before[1:], after[1:])
    assert test.l2 == (0.3 if kind == "sum" else 0.6)
    assert abs(float(whole.total[""] - without.total[""])) <= test.l2 * (1 + 1e-12)
    assert whole.l2 == without.l2 == test.l2


def test_the_cost_is_that_of_both_releases_of_every_step():
    one, alone = plan({"sigma_v": 2.0}), plan(method="dpsgd")
    assert one.epsilon() > alone.epsilon()
    assert plan({"sigma_v": 1e6}).epsilon() == pytest.approx(alone.epsilon(), rel=2e-3)


def trained(chosen: Plan, steps=None) -> list[torch.Tensor]:
    """The parameters after these steps of the plan; after none, those before."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    if steps != 0:
        x = torch.randn(90, 4, generator=torch.Generator().manual_seed(3))
        training = Training(optimizer=Optimizer(lr=0.5, momentum=0.5), seed=7)
        train_again(model, TensorDataset(x, (x[:, 0] > 0).long()), plan=chosen, training=training, steps=steps)
    return [p.detach() for p in model.parameters()]


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_where_every_step_is_kept_it_is_dp_sgd_to_the_bit_and_where_none_is_nothing_moves():
    plain = plan(method="dpsgd")
    assert same(trained(plan({"beta": 1e9})), trained(plain))
    assert same(trained(plan({"beta": -1e9})), trained(plain, 0))


def test_a_published_run_accepts_no_more_updates_than_it_claims_for():
    options = {"variant": "published", "beta": 1e9, "updates": 2}
    assert same(trained(plan(options)), trained(plan(method="dpsgd"), 2))
    assert plan(options).claimed() == plan(options, steps=12).claimed() < plan(options).epsilon()
    assert plan(options).epsilon() == pytest.approx(plan({"variant": "published"}).epsilon())


@pytest.mark.parametrize(
    ("options", "changes", "field"),
    [
        ({"test": "median"}, {}, "test"),
        ({"test": "sum", "variant": "published"}, {}, "test"),
        ({"validation": 91}, {}, "validation"),
        ({"sigma_v": 0}, {}, "sigma_v"),
        ({"c_v": -1}, {}, "c_v"),
        ({"beta": math.nan}, {}, "beta"),
        ({"updates": 3}, {}, "updates"),
        ({}, {"sampling": FullBatch, "batch_size": 90}, "sampling"),
        ({}, {"adjacency": Adjacency.REPLACE_ONE}, "adjacency"),
        ({}, {"unit": Unit(name="patient", persons=90, rows=2)}, "unit"),
        ({}, {"exact": True}, "exact"),
    ],
)
def test_what_is_not_proven_is_refused(options, changes, field):
    with pytest.raises(ConfigError, match=rf"^{field} "):
        plan(options, **changes)


def test_a_loop_that_makes_no_tests_is_refused():
    with pytest.raises(ConfigError, match=r"assay\.fit"):
        PrivateStep(nn.Linear(4, 3), plan())


def rows():
    """What `experiments/dpsur/README.md` says of the authors' settings: σ_t, σ_v, T and three ε."""
    page = (Path(__file__).parents[2] / "experiments/dpsur/README.md").read_text(encoding="utf-8")
    found = re.findall(
        r"^\| [\w-]+ \| ([\d.]+) \| ([\d.]+) \| [^|]+ \| (\d+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \| ([\d.]+) \|$",
        page,
        re.MULTILINE,
    )
    return [tuple(map(float, row)) for row in found]


SIZES = [(60_000, 1024), (60_000, 1024), (60_000, 2048), (60_000, 2048), (50_000, 8192), (50_000, 8192)]


def test_at_the_authors_settings_the_claim_is_too_small_and_all_trials_cover_it():
    assert len(rows()) == 6
    for (records, batch), (sigma, sigma_v, updates, claimed, least, trials, most) in zip(SIZES, rows(), strict=True):
        method = methods.get("dpsur", variant="published", validation=256, sigma_v=sigma_v, updates=int(updates))
        made = Plan(
            records=records,
            batch_size=batch,
            steps=int(trials),
            noise_multiplier=sigma,
            delta=1e-5,
            method=method,
        )
        assert made.claimed() == pytest.approx(claimed, rel=4e-3), "orders between whole ones count, too"
        assert made.claimed() < least < most
        if records == 60_000 and batch == 1024:
            assert made.epsilon(0.9e-5) == pytest.approx(most, rel=2e-3)
