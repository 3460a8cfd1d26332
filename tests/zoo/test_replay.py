"""Bugs that a replayed step shows: facts, not statistics."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import Plan, PrivateStep
from assay.audit.observe import turned_into
from assay.audit.replay import Replay, replay
from assay.errors import UnsupportedModelError
from assay.runs.result import cross_entropy

from . import mutants

PLAN = Plan(records=5, batch_size=2, steps=3, noise_multiplier=1.0, delta=1e-3)


def with_chain(change):
    """A step whose chain was changed."""

    def make(model, plan, randomness):
        step = PrivateStep(model, plan, randomness=randomness)
        step.chain = change(step.chain)
        return step

    return make


def without_proof(model, plan, randomness):
    """A step whose engine does not look whether records mix."""
    step = PrivateStep(model, plan, randomness=randomness)
    step.engine._inspector.proof = None
    step._looks_at_loops = False
    return step


def network(*between: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *between, nn.Linear(8, 3))


def run(others: int, make_step=None, model: nn.Module | None = None) -> Replay:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(others + 1, 6, generator=generator), torch.arange(others + 1) % 3
    return replay(
        model or network(),
        PLAN,
        TensorDataset(x[:-1], y[:-1]),
        (5 * x[-1], y[-1]),
        loss=cross_entropy,
        make_step=make_step,
    )


BUGS = {
    "denominator from the private N": (
        1,
        with_chain(lambda c: turned_into(mutants.PrivateDenominator, c, drawn=[])),
        None,
        "output",
    ),
    "empty batch skipped": (0, mutants.SkipsEmptyBatches, None, "control flow"),
    "BatchNorm coupling records": (8, without_proof, network(mutants.Coupled()), "sensitivity"),
    "ghost clip ignoring C": (
        3,
        with_chain(lambda c: replace(c, clip=mutants.IgnoresC(bound=0.1))),
        None,
        "sensitivity",
    ),
    "un-noised gradient also accumulated": (
        3,
        with_chain(lambda c: replace(c, noise=mutants.RawToo(multiplier=1.0))),
        None,
        "output",
    ),
    "each augmentation clipped separately": (
        3,
        with_chain(lambda c: turned_into(mutants.Augmented, c, wrong=True)),
        None,
        "sensitivity",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_bug_is_caught_and_its_twin_left_alone(bug):
    others, make_step, model, fault = BUGS[bug]
    caught = run(others, _accepting(make_step), model)
    assert any(found.startswith(fault) for found in caught.faults)
    assert run(others).faults == ()


def _accepting(make_step):
    if isinstance(make_step, type):
        return lambda model, plan, randomness: make_step(model, plan, randomness=randomness)
    return make_step


def test_the_engine_refuses_coupled_records_by_itself():
    with pytest.raises(UnsupportedModelError):
        run(8, None, network(mutants.Coupled()))
