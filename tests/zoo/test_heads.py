"""Bugs in what heads on features release: what one record moves shows each, and does not show its correct twin."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import Plan, features, methods
from assay.accounting.epsilon import epsilon, gaussian_epsilon
from assay.data.records import Records
from assay.features import Finished
from assay.methods import moments
from assay.methods.perturb.class_mean import ByClass, ClassMean
from assay.randomness.streams import Seeded

from . import mutants

DELTA = 1e-5
FAR = torch.tensor([[30.0, 0.0, 0.0]])
OTHERS = 0.1 * torch.eye(3)


def told_apart(released, z: float) -> float:
    """The ε that a Gaussian release with noise z really has: the noise is the same with one record more and without."""
    distance = float((released(torch.cat([OTHERS, FAR])) - released(OTHERS)).norm())
    return gaussian_epsilon(z / distance, DELTA)


def answer(stage, x):
    records = Records(TensorDataset(x, torch.zeros(len(x), dtype=torch.long)))
    return stage.release(nn.Linear(3, 2), records, Seeded(0), torch.device("cpu"), None)


@pytest.mark.parametrize("mutant", [True, False])
def test_second_moments_that_one_record_moves_too_far(mutant, monkeypatch):
    if mutant:
        monkeypatch.setattr(moments, "blocks", mutants.uncut_blocks)
    # divided by 10⁹ records, the mean is nothing but noise of 1e-7, the same in both worlds
    plan = Plan(records=10**9, batch_size=10, steps=1, noise_multiplier=5.0, delta=DELTA, method=methods.get("newton"))
    real = told_apart(lambda x: moments.packed(answer(plan.stage, x)["second"]), plan.stage.noise)
    charged = epsilon(plan.stage.parts()[1].event, DELTA, plan.adjacency)
    assert (real > 1.1 * charged) == mutant
    assert real <= 1.001 * charged or mutant


@pytest.mark.parametrize("mutant", [True, False])
def test_class_means_that_one_record_moves_too_far(mutant, monkeypatch):
    seen = []

    def look(self, grads, stream):
        seen.append(torch.cat([value.flatten() for value in grads.total.values()]))
        return plain(self, grads, stream)

    kind = mutants.Gaussian
    plain = kind.release
    monkeypatch.setattr(kind, "release", look)
    stage = (mutants.FullShares if mutant else ByClass)(ClassMean(noise=5.0, classes=2), 100)

    def total(x):
        answer(stage, x)
        return seen[-1]

    real, charged = told_apart(total, 5.0), gaussian_epsilon(5.0, DELTA)
    assert (real > 1.1 * charged) == mutant
    assert real <= 1.001 * charged or mutant


@pytest.mark.parametrize("mutant", [True, False])
def test_a_preconditioner_that_sees_the_records(mutant, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = features.parse("precondition:count=250+scatter:J=1,L=2")
    assert isinstance(found, Finished)
    kind = mutants.FittedToRecords(found.last, found.then) if mutant else found
    x = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    there, without = kind.extract(x)[:5], kind.extract(x[:5])
    assert torch.allclose(there, without, atol=1e-4) != mutant
