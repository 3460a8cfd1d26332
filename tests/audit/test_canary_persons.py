"""Canary persons: audits of runs whose unit is a person with all of their rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import ConfigError, Optimizer, Plan, Settings, Training, attacks, audit, train
from assay.audit.plans import audit_plan
from assay.audit.training import black_box, blank, white_box
from assay.audit.worlds import trained_in_two_worlds
from assay.data.persons import rows_kept
from assay.data.samplers.full import FullBatch
from assay.data.units import Sampled, Unit
from assay.randomness.streams import Seeded

COUNTS = torch.tensor([1 + i % 4 for i in range(60)])
IDS = torch.arange(60).repeat_interleave(COUNTS)
WHOLE = Unit(name="patient_id", persons=60, rows=3)
ROWS = replace(WHOLE, sampled=Sampled.ROWS)
TRAINING = Training(seed=1, optimizer=Optimizer(lr=0.5, momentum=0.0, schedule="constant"))


def data() -> TensorDataset:
    x = torch.randn(len(IDS), 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(8, 3)


def plan(unit: Unit, noise: float = 1.0, **more: object) -> Plan:
    records = unit.persons if unit.whole else rows_kept(IDS, unit.rows)
    made = {"records": records, "batch_size": records / 4, "steps": 30, "noise_multiplier": noise, "delta": 1e-5}
    return Plan(**{**made, "unit": unit, **more})  # type: ignore[arg-type]


def test_gradient_canaries_are_persons() -> None:
    """Fixed seeds. A tenth of the noise that was charged shows; what was charged does not."""
    right = plan(WHOLE)
    settings = {"canaries": 20, "training": TRAINING, "units": IDS, "seed": 3}
    assert white_box(network(), data(), right, **settings).plain.epsilon <= right.epsilon()  # type: ignore[arg-type]
    loud = white_box(network(), data(), plan(WHOLE, noise=0.05), **settings)  # type: ignore[arg-type]
    assert float(loud.included.min()) > float(loud.excluded.max())
    with pytest.raises(ConfigError, match="unit_sampling"):
        white_box(network(), data(), plan(ROWS), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", [WHOLE, ROWS], ids=["persons", "rows"])
def test_input_canaries_are_persons(unit: Unit) -> None:
    made = plan(unit)
    canaries = blank(data(), 20, 3)
    found = black_box(network(), data(), made, canaries, training=TRAINING, units=IDS)
    assert len(found.included) + len(found.excluded) == 20
    assert found.plain.epsilon <= made.epsilon()
    with pytest.raises(ConfigError, match="units"):
        black_box(network(), data(), made, canaries, training=TRAINING)


@pytest.mark.parametrize("unit", [WHOLE, ROWS], ids=["persons", "rows"])
def test_two_worlds_differ_in_one_person(unit: Unit) -> None:
    """Without noise the person shows; one without a gradient leaves no trace."""
    records = unit.persons if unit.whole else rows_kept(IDS, unit.rows)
    made = plan(unit, noise=0.0, sampling=FullBatch, batch_size=records, steps=2)
    canary = (torch.full((8,), 3.0), torch.tensor(2))
    seen = trained_in_two_worlds(network(), data(), made, canary, runs=4, training=TRAINING, units=IDS)
    assert float(seen.included.min()) > float(seen.excluded.max())

    def quiet(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target, reduction="none") * (target < 2)

    same = trained_in_two_worlds(network(), data(), made, canary, runs=4, training=TRAINING, units=IDS, loss=quiet)
    np.testing.assert_allclose(same.included, same.excluded)


def test_one_step_of_sampled_rows_is_composed_for_all_of_a_persons_rows() -> None:
    """The audit of a step shows a row; a person shows three of them, and no more than was charged."""
    rows = plan(ROWS, steps=5)
    alone = replace(rows, unit=None)
    of_person, of_row = (audit_plan(one, randomness=Seeded(1), releases=4000) for one in (rows, alone))
    assert 0.7 * rows.epsilon() < of_person.audit.epsilon <= rows.epsilon()
    assert of_person.audit.epsilon > 2 * of_row.audit.epsilon


def test_a_run_by_name(tmp_path) -> None:
    x, y = data().tensors
    np.savez(tmp_path / "visits.npz", x=x.numpy(), y=y.numpy(), patient_id=IDS.numpy())
    settings = Settings(
        data=str(tmp_path / "visits.npz"),
        unit="patient_id",
        unit_rows=3,
        model="linear-head",
        epsilon=3,
        delta=1e-3,
        epochs=3,
        seed=1,
    )
    train(settings, out=tmp_path / "run")
    step = audit.of_run(tmp_path / "run", releases=1000, seed=1)
    assert step.epsilon <= 3
    assert audit.of_run(tmp_path / "run", canaries=10, seed=1).epsilon <= 3
    assert audit.of_run(tmp_path / "run", canaries=5, black_box=True, seed=1).epsilon <= 3
    with pytest.raises(ConfigError, match="protects one patient_id"):
        attacks.of_run(tmp_path / "run")
