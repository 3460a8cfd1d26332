"""Persons with several rows: what a step, a run and a plan of theirs promise."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from assay import ConfigError, Plan, PrivateStep, Training, fit, methods, resume
from assay.accounting.epsilon import Adjacency, epsilon
from assay.accounting.schedules import Decay
from assay.data.persons import UnitRecords, numbered, rows_kept
from assay.data.records import Records, RowsOfPersons
from assay.data.samplers.full import FullBatch
from assay.data.samplers.shuffled import Shuffled
from assay.data.samplers.without_replacement import WithoutReplacement
from assay.data.units import Sampled, Unit
from assay.gradients.clip_rules.adaptive import AdaptiveQuantile
from assay.methods.ways import compare
from assay.randomness.streams import Seeded
from assay.runs.callbacks import OnStep
from assay.runs.result import InterruptedRunError
from assay.training.augment import parse

PERSONS, MOST = 30, 3
COUNTS = [1 + i % 5 for i in range(PERSONS)]
IDS = torch.arange(PERSONS).repeat_interleave(torch.tensor(COUNTS))[
    torch.randperm(90, generator=torch.Generator().manual_seed(1))
]
WHOLE = Unit(name="patient_id", persons=PERSONS, rows=MOST)
ROWS = Unit(name="patient_id", persons=PERSONS, rows=MOST, sampled=Sampled.ROWS)
KEPT = rows_kept(IDS, MOST)


def data(dtype: torch.dtype = torch.float64) -> TensorDataset:
    made = torch.Generator().manual_seed(2)
    return TensorDataset(torch.randn(len(IDS), 4, generator=made, dtype=dtype), torch.arange(len(IDS)) % 3)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def plan(unit: Unit = WHOLE, **changes: Any) -> Plan:
    records = PERSONS if unit.whole else KEPT
    base = {"records": records, "batch_size": records / 3, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3}
    return Plan(**{**base, "unit": unit, **changes})


def gradients(made: Plan, **settings: Any) -> list[dict[str, Tensor]]:
    """The released gradients of every step of a seeded run."""
    model = network()
    step = PrivateStep(model, made, randomness=Seeded(5), **settings)
    found = []
    for x, y in step.batches(data(), units=IDS):
        if step.backward(F.cross_entropy(model(x), y, reduction="none")):
            found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p -= 0.1 * p.grad
    step.close()
    return found


def test_a_persons_rows_count_once() -> None:
    """The definition: the mean gradient of each drawn person's kept rows, clipped, summed, divided by a constant."""
    made = plan(noise_multiplier=0.0, sampling=FullBatch, batch_size=PERSONS, steps=1)
    (released,) = gradients(made)
    model, total = network(), {name: torch.zeros_like(p) for name, p in network().named_parameters()}
    persons = UnitRecords(Records(data()), IDS, WHOLE)
    for i in range(PERSONS):
        x, y = persons.gather(torch.tensor([i]))
        assert len(x) == min(COUNTS[i], MOST)
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
        for name, p in model.named_parameters():
            assert p.grad is not None
            total[name] += p.grad * min(1.0, made.clip.l2 / norm)
    for name, value in total.items():
        torch.testing.assert_close(released[name], value / PERSONS, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("unit", [WHOLE, ROWS], ids=["persons", "rows"])
@pytest.mark.parametrize("most", [1, 7])
def test_parts_of_a_batch_are_the_batch(unit: Unit, most: int) -> None:
    for whole, parts in zip(gradients(plan(unit)), gradients(plan(unit), max_physical_batch=most), strict=True):
        for name, value in whole.items():
            torch.testing.assert_close(parts[name], value, rtol=1e-9, atol=1e-12)


def test_no_part_has_more_rows_than_fit_unless_one_person_has() -> None:
    model, sizes = network(), []
    step = PrivateStep(model, plan(), randomness=Seeded(5), max_physical_batch=4)
    for x, y in step.batches(data(), units=IDS):
        sizes.append(len(x))
        step.backward(F.cross_entropy(model(x), y, reduction="none"))
    step.close()
    assert max(sizes) <= 4
    assert len(sizes) > 6


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_which_rows_are_kept_of_a_person_follows_from_that_person_alone(draw: st.DataObject) -> None:
    counts = draw.draw(st.lists(st.integers(1, 8), min_size=2, max_size=5))
    order = draw.draw(st.permutations(range(sum(counts))))
    x = torch.randn(sum(counts), 3, generator=torch.Generator().manual_seed(sum(counts)))
    ids = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    unit = Unit(name="id", persons=len(counts), rows=2)

    def kept(rows: list[int], person: int) -> set[tuple[float, ...]]:
        there = Records(TensorDataset(x[rows]))
        records = UnitRecords(there, [f"p{int(i)}" for i in ids[rows]], replace(unit, persons=len(ids[rows].unique())))
        place = sorted({f"p{int(i)}" for i in ids[rows]}).index(f"p{person}")
        return {tuple(row.tolist()) for row in records.gather(torch.tensor([place]))[0]}

    everybody = list(range(sum(counts)))
    without_last = [i for i in everybody if int(ids[i]) != len(counts) - 1]
    for person in range(len(counts) - 1):
        assert kept(everybody, person) == kept(without_last, person) == kept(list(order), person)
        assert len(kept(everybody, person)) == min(2, counts[person])


def test_epsilon_of_persons_is_that_of_records() -> None:
    alone = replace(plan(), unit=None)
    assert plan().epsilon() == alone.epsilon()
    assert plan().protected == PERSONS


def test_epsilon_of_sampled_rows_counts_them_together() -> None:
    """As dp_accounting's event has it, and far below the recipe of group privacy."""
    made, alone = plan(ROWS), replace(plan(ROWS), unit=None)
    q = made.sampler.rate
    masses = tuple(math.comb(MOST, i) * q**i * (1 - q) ** (MOST - i) for i in range(MOST + 1))
    event = dp_event.MixtureOfGaussiansDpEvent(made.noise_multiplier, tuple(map(float, range(MOST + 1))), masses)
    known = epsilon(dp_event.SelfComposedDpEvent(event, made.steps), made.delta, made.adjacency)
    assert made.epsilon() == pytest.approx(known, rel=1e-6)
    assert made.epsilon() > alone.epsilon()
    assert made.claimed() == made.epsilon()
    assert alone.groups(alone.event())[2] < made.epsilon() < alone.groups(alone.event())[4]
    full = plan(ROWS, sampling=FullBatch, batch_size=KEPT, noise_multiplier=9.0, steps=1)
    assert full.event() == dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(9.0 / MOST), 1)
    falls = plan(ROWS, noise_schedule=Decay(levels=2))
    assert falls.epsilon() > made.epsilon()


def test_a_ledger_that_charges_a_row_does_not_fit_a_plan_of_persons() -> None:
    """Nor does one that charges all steps of falling noise as the first."""
    made, falls = plan(ROWS), plan(noise_schedule=Decay(levels=2))
    alone, even = replace(made, unit=None), replace(falls, noise_schedule=plan().noise_schedule)
    for right, wrong in ((made, alone), (falls, even)):
        assert wrong.epsilon() < right.epsilon()
        assert right.fits(6, 0, right.event(), False)
        assert not right.fits(6, 0, wrong.event(), False)
    shuffled = replace(alone, sampling=Shuffled)
    earlier = dp_event.SelfComposedDpEvent(shuffled.step_event, 2)
    assert shuffled.fits(6, 0, earlier, False)


def test_a_plan_of_persons_is_read_as_it_was_written() -> None:
    for made in (plan(), plan(ROWS), plan(Unit(name="id", persons=PERSONS))):
        assert Plan.from_json(json.loads(json.dumps(made.to_json()))) == made
    with pytest.raises(ConfigError, match="unit"):
        Plan.from_json({**plan().to_json(), "unit": {"name": "id"}})
    with pytest.raises(ConfigError, match="neighbours"):
        Plan.from_json({**plan().to_json(), "unit": {"name": "id", "persons": 3, "neighbours": 1}})


def test_calibrated() -> None:
    made = Plan.calibrated(epsilon=3, delta=1e-3, records=KEPT, batch_size=20, steps=10, unit=ROWS)
    assert 2.97 <= made.epsilon() <= 3
    assert made.unit == ROWS


REFUSED: dict[str, tuple[str, Any]] = {
    "micro-batches": ("micro_batch", lambda: plan(micro_batch=2)),
    "rows in micro-batches": ("micro_batch", lambda: plan(ROWS, micro_batch=2)),
    "another number of persons": ("records", lambda: plan(records=PERSONS + 1)),
    "exact noise": ("exact", lambda: plan(exact=True)),
    "a published variant": ("variant", lambda: plan(method=methods.get("gredp", variant="published", groups=2))),
    "a method that releases something first": ("method", lambda: plan(method=methods.get("afrrs"))),
    "rows that are replaced": ("adjacency", lambda: plan(ROWS, adjacency=Adjacency.REPLACE_ONE)),
    "rows of a batch of fixed size": (
        "unit_sampling|adjacency",
        lambda: plan(ROWS, sampling=WithoutReplacement, batch_size=20, adjacency=Adjacency.REPLACE_ONE),
    ),
    "rows without a limit": ("unit_rows", lambda: replace(ROWS, rows=None)),
    "no rows": ("unit_rows", lambda: replace(WHOLE, rows=0)),
    "a text": ("unit", lambda: replace(plan(), unit="patient_id")),
    "no ids": ("units", lambda: fit(network(), data(), plan=plan())),
    "ids without a unit": ("units", lambda: fit(network(), data(), plan=replace(plan(), unit=None), units=IDS)),
    "fewer ids than rows": ("units", lambda: fit(network(), data(), plan=plan(), units=IDS[1:])),
    "other persons": ("units", lambda: fit(network(), data(), plan=plan(), units=IDS.clamp(max=5))),
    "more rows than planned": ("units", lambda: fit(network(), data(), plan=plan(ROWS, records=KEPT + 1), units=IDS)),
    "ids that are numbers with a point": ("units", lambda: numbered(torch.rand(4))),
    "views": ("augment", lambda: PrivateStep(network(), plan(), augment=parse("shift:views=2,pixels=1"))),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_proven_is_refused(what: str) -> None:
    field, make = REFUSED[what]
    with pytest.raises(ConfigError, match=field):
        make()


@pytest.mark.parametrize("unit", [WHOLE, ROWS], ids=["persons", "rows"])
def test_a_resumed_run_ends_with_the_same_bits(unit: Unit, tmp_path: Any) -> None:
    def stop(now: Any) -> None:
        if now.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    made, training = plan(unit), Training(seed=4)
    whole, stopped = network(torch.float32), network(torch.float32)
    rows = data(torch.float32)
    first = fit(whole, rows, plan=made, training=training, units=IDS, out=tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        fit(stopped, rows, plan=made, training=training, units=IDS, out=tmp_path / "cut", callbacks=[OnStep(stop)])
    with pytest.raises(ConfigError, match="units"):
        resume(network(torch.float32), rows, tmp_path / "cut")
    second = resume(stopped, rows, tmp_path / "cut", units=IDS)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), stopped.parameters(), strict=True))
    assert first.epsilon == second.epsilon == pytest.approx(made.epsilon(), rel=1e-9)
    record = second.record
    assert record["unit"] == "one patient_id with all of their rows"
    assert record["persons"] == unit.to_json()
    assert [row["size"] for row in record["epsilon"]["groups"]] == [1, 2, 4, 8]
    assert f"one of {PERSONS} persons" in second.statement
    assert "| persons of one family | 1 | 2 | 4 | 8 |" in second.statement


def test_a_statement_of_records_has_the_groups() -> None:
    made = Plan(records=len(IDS), batch_size=30, steps=3, noise_multiplier=1.0, delta=1e-3)
    result = fit(network(torch.float32), data(torch.float32), plan=made, training=Training(seed=1))
    groups = {row["size"]: row["epsilon"] for row in result.record["epsilon"]["groups"]}
    assert groups == {size: pytest.approx(eps) for size, eps in made.groups(made.event()).items()}
    assert "| records of one person or family | 1 | 2 | 4 | 8 |" in result.statement
    assert result.record["persons"] is None


class Listed(Dataset[tuple[Tensor, int]]):
    """Rows that are made when they are asked for."""

    def __len__(self) -> int:
        return len(IDS)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        x, y = data()[i]
        return x, int(y)


def test_any_data_set_and_ids_of_any_kind() -> None:
    ids = [f"patient {int(i):02d}" for i in IDS]
    found = []
    for rows, whose in ((data(), IDS), (Listed(), ids)):
        model = network()
        step = PrivateStep(model, plan(steps=2), randomness=Seeded(5))
        for x, y in step.batches(rows, units=whose):
            with pytest.raises(ConfigError, match="rows of the batch"):
                step.backward(F.cross_entropy(model(x), y, reduction="none")[:-1])
            step.backward(F.cross_entropy(model(x), y, reduction="none"))
        step.close()
        found.append(model[0].weight.grad)
    assert found[0] is not None
    assert found[1] is not None


@pytest.mark.parametrize("unit", [WHOLE, ROWS], ids=["persons", "rows"])
def test_workers_fetch_the_same_rows(unit: Unit) -> None:
    found = []
    for workers in (0, 1):
        model = network()
        step = PrivateStep(model, plan(unit, steps=3), randomness=Seeded(5), max_physical_batch=12)
        seen = []
        for x, y in step.batches(Listed(), units=IDS, num_workers=workers):
            seen.append(x)
            step.backward(F.cross_entropy(model(x), y, reduction="none"))
        step.close()
        found.append(seen)
    assert len(found[0]) > 3
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_rows_that_know_whose_they_are_need_no_ids() -> None:
    """A part of them does, too: `fit` makes a plan of persons, and the step counts these."""
    rows = RowsOfPersons(*data(torch.float32).tensors, units=IDS, unit_column="patient_id")
    result = fit(network(torch.float32), rows, epsilon=3, delta=1e-3, epochs=1)
    assert result.record["unit"] == "one patient_id with all of their rows"
    assert result.record["records"] == PERSONS
    assert "for one patient_id with all of their rows" in repr(result)
    some = Subset(rows, (IDS < 10).nonzero().flatten().tolist())
    ten = plan(replace(WHOLE, persons=10), records=10, batch_size=5)
    step = PrivateStep(model := network(torch.float32), ten, randomness=Seeded(5))
    for x, y in step.batches(some):
        step.backward(F.cross_entropy(model(x), y, reduction="none"))
    assert step.taken == ten.steps
    step.close()


def test_an_empty_batch_is_a_step() -> None:
    model = network()
    step = PrivateStep(model, plan(batch_size=1e-9, steps=2, noise_multiplier=1.0), randomness=Seeded(5))
    for x, y in step.batches(data(), units=IDS):
        assert len(x) == 1
        assert step.backward(F.cross_entropy(model(x), y, reduction="none"))
    assert step.taken == 2
    step.close()


@pytest.mark.parametrize("sampling", [Shuffled, WithoutReplacement])
def test_other_samplers_draw_persons(sampling: Any) -> None:
    adjacency = Adjacency.REPLACE_ONE if sampling.replaces else Adjacency.ADD_OR_REMOVE_ONE
    made = plan(sampling=sampling, adjacency=adjacency, batch_size=10)
    assert len(gradients(made)) == 6
    assert made.epsilon() == replace(made, unit=None).epsilon()


def test_adaptive_clipping_counts_persons() -> None:
    assert len(gradients(plan(clip=AdaptiveQuantile(1.0)))) == 6


def test_the_better_way_for_a_table() -> None:
    """Equal work: as many rows a step. With one row each the two ways are the same."""
    start = Plan(records=1200, batch_size=120, steps=50, noise_multiplier=1.0, delta=1e-4)
    one = compare(replace(start, records=400, batch_size=40), unit="id", persons=400, most=1, epsilon=3)
    assert one[0].noise == pytest.approx(one[1].noise, rel=0.02)
    best, other = compare(start, unit="id", persons=400, most=3, epsilon=3)
    assert best.noise <= other.noise
    assert {best.sampled, other.sampled} == {Sampled.PERSONS, Sampled.ROWS}
    assert all(2.97 <= way.plan.epsilon() <= 3 for way in (best, other))
    with pytest.raises(ConfigError, match="records"):
        compare(start, unit="id", persons=100, most=3, epsilon=3)
