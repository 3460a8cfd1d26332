"""Bugs that show only where one person has several rows."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from assay import Plan, PrivateStep, Settings, data
from assay.accounting.accountants.mixture import Mixture
from assay.accounting.epsilon import delta_for
from assay.audit import from_scores
from assay.data.bundle import DataBundle
from assay.data.persons import UnitRecords, numbered
from assay.data.records import Records, seeded
from assay.data.samplers.full import FullBatch
from assay.data.units import Sampled, Unit
from assay.errors import ConfigError, DataError
from assay.randomness.streams import Seeded
from assay.training.from_names import prepare

from . import mutants

OTHERS, ROWS, RELEASES, SIGMA, DELTA = 5, 8, 400, 4.0, 1e-5
UNIT = Unit(name="patient_id", persons=OTHERS + 1, rows=ROWS)


def planned(unit: Unit | None, records: int) -> Plan:
    return Plan(
        records=records,
        batch_size=records,
        steps=1,
        noise_multiplier=SIGMA,
        delta=DELTA,
        sampling=FullBatch,
        unit=unit,
    )


def shown(plan: Plan, prepare=lambda step: None) -> float:
    """ε that releases of one step show of a person with eight equal rows, at 99.9999 % confidence.

    The model stays as it is.
    """
    x = torch.zeros(OTHERS + ROWS, 2)
    x[:OTHERS, 1], x[OTHERS:, 0] = 1.0, 1.0
    ids = torch.tensor([*range(OTHERS), *[OTHERS] * ROWS])
    scores = []
    for world in (1.0, 0.0):  # in the second world the person's rows are there and count for nothing
        model = nn.Linear(2, 1, bias=False)
        step = PrivateStep(model, replace(plan, steps=RELEASES), randomness=Seeded(int(world)))
        prepare(step)
        factor = torch.ones(OTHERS + ROWS)
        factor[OTHERS:] = world
        seen = []
        for rows, counts in step.batches(TensorDataset(x, factor), units=None if plan.unit is None else ids):
            step.backward(1000 * model(rows)[:, 0] * counts)
            seen.append(float(model.weight.grad[0, 0]))
        step.close()
        scores.append(np.array(seen))
    found = from_scores(*scores, delta=DELTA, confidence=1 - 1e-6, independent=True, assume="gaussian")
    return found.epsilon


def test_a_person_is_clipped_as_one():
    right = planned(UNIT, OTHERS + 1)
    assert shown(right) <= right.epsilon()


def test_rows_clipped_one_by_one_and_charged_as_persons_are_caught():
    wrong = planned(UNIT, OTHERS + 1)
    assert shown(wrong, mutants.clip_row_by_row) > 1.5 * wrong.epsilon()


def test_rows_of_a_person_charged_as_if_they_were_one_are_caught():
    rows = OTHERS + ROWS
    wrong, right = planned(None, rows), planned(replace(UNIT, sampled=Sampled.ROWS), rows)
    found = shown(right)
    assert 1.5 * wrong.epsilon() < found <= right.epsilon()
    assert shown(wrong) == found


@pytest.mark.parametrize("bug", [True, False], ids=["in both parts", "in one part"])
def test_a_person_in_both_parts_is_refused(tmp_path, bug):
    ids = np.arange(40) // 4
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2
    path = tmp_path / "visits.npz"
    test = ids[36:] - 1 if bug else ids[36:]
    arrays = {"x": x[:36], "y": y[:36], "patient_id": ids[:36], "x_test": x[36:], "y_test": y[36:]}
    np.savez(path, **arrays, patient_id_test=test)
    if bug:
        with pytest.raises(DataError, match="1 persons are in both"):
            data.load(path, unit="patient_id")
        assert len(data.load(path).test_x) == 4  # without a unit nobody can tell
    else:
        assert data.load(path, unit="patient_id").persons == 9


SPELLINGS = {
    "case": "P7",
    "blanks at the end": "p7 ",
    "a blank without width": "p7\u200b",
    "full-width digits": "p\uff17",
    "leading zeros": "p07",
}


@pytest.mark.parametrize("other", SPELLINGS.values(), ids=SPELLINGS)
def test_one_person_under_two_ids_is_refused(tmp_path, other):
    """The bug: a person's rows under two spellings of one id are two persons to the plan. The twin: one spelling."""
    ids = [f"p{i // 4}" for i in range(40)]
    assert numbered(ids).max() == 9
    with pytest.raises(ConfigError, match="one person would count as two"):
        numbered([*ids[:31], other, *ids[32:]])
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2
    path = tmp_path / "visits.npz"

    def load(tested):
        parts = {"patient_id": ids[:32], "patient_id_test": tested}
        np.savez(path, x=x[:32], y=y[:32], x_test=x[32:], y_test=y[32:], **parts)
        return data.load(path, unit="patient_id")

    assert load(ids[32:]).persons == 8
    with pytest.raises(DataError, match="one person would count as two"):
        load([other, *ids[33:]])


@pytest.mark.parametrize("bad", [["7", 7.0, 7], ["7", ""], ["7", "None"], [7, -1], ["7.0", "7"]], ids=str)
def test_an_id_that_is_missing_or_of_another_type_is_refused(bad):
    """Before, numpy made texts of a mixed list, and so two persons of one; a mark of a missing id was a person."""
    with pytest.raises(ConfigError, match="units"):
        numbered(bad)
    assert numbered(["7", "8"]).tolist() == numbered([7, 8]).tolist() == [0, 1]


@pytest.mark.parametrize("bug", [True, False])
def test_ranks_that_disagree_on_whose_two_rows_are(bug):
    """A person would have rows on both ranks, each clipped by itself. Ranks compare digests before the first batch."""
    records = Records(TensorDataset(torch.arange(400.0).reshape(200, 2)))
    ids = torch.arange(200) // 2
    other = ids.clone()
    if bug:
        other[[3, 5]] = ids[[5, 3]]
    mine, theirs = (UnitRecords(records, one, Unit(name="id", persons=100)).digest() for one in (ids, other))
    assert (mine != theirs) is bug


class Views(Dataset):
    """Rows with noise at every look. By default torch draws the same numbers in every process."""

    def __init__(self, x, generator=None):
        self.x, self.generator = x, generator

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + torch.randn(3, generator=self.generator), 0


def rows_of(dataset, ids, most):
    unit = Unit(name="id", persons=len(set(ids)), rows=most, sampled=Sampled.ROWS)
    records = UnitRecords(Records(dataset), ids, unit)
    return records.places_of(torch.arange(len(records))).tolist()


@pytest.mark.parametrize("choose", [mutants.least_rows_as_they_come, rows_of])
def test_which_rows_of_others_are_kept_without_one_person(choose):
    x, ids = torch.arange(300.0).view(100, 3), np.repeat(np.arange(20), 5)
    kept = []
    for others in (np.full(100, True), ids != 3):
        with seeded(0):
            rows = choose(Views(x[others]), ids[others].tolist(), 2)
        kept.append({int(row) for row in np.flatnonzero(others)[rows] if ids[row] != 3})
    assert len(kept[0]) == 38
    assert (len(kept[0] - kept[1]) > 10) == (choose is not rows_of)


def test_rows_that_draw_from_a_generator_of_their_own_are_refused_where_some_are_kept():
    data = Views(torch.zeros(6, 3), torch.Generator())
    with pytest.raises(ConfigError, match="another one when it is fetched again"):
        rows_of(data, [0] * 6, 2)
    assert len(rows_of(data, [0] * 6, 6)) == 6


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
def test_a_factory_whose_records_change_at_every_look(bug):
    """They are read once, one after the other: one record less changes what all behind it draw, and their parts."""
    x = torch.arange(300.0).view(100, 3)
    with pytest.raises(ConfigError, match="change at every look") if bug else contextlib.nullcontext():
        data.of_datasets(Views(x) if bug else TensorDataset(x, torch.arange(100) % 2))


@pytest.mark.parametrize("counted", [mutants.counts_rows, DataBundle.counted], ids=["bug", "twin"])
def test_how_many_rows_persons_have_is_not_told(counted, tmp_path, monkeypatch):
    """Some persons have one row more. What is noted of the run, and its plan, are the same."""
    monkeypatch.setattr(DataBundle, "counted", counted)
    said = []
    for more in (0, 9):
        ids = np.concatenate([np.repeat(np.arange(200), 3), np.arange(more)])
        x = np.random.default_rng(0).normal(size=(len(ids), 3)).astype("float32")
        (tmp_path / str(more)).mkdir()
        np.savez(path := tmp_path / str(more) / "visits.npz", x=x, y=np.arange(len(ids)) % 2, patient_id=ids)
        asked = Settings(data=str(path), model="logistic", unit="patient_id", records=120, validation=True)
        made = prepare(replace(asked, epsilon=3.0, epochs=2, delta=1e-3))
        said.append((made.plan, {**made.names, "data": None}))
    assert (said[0] == said[1]) == (counted is not mutants.counts_rows)


def test_a_split_by_rows_would_put_persons_into_both_parts(tmp_path):
    """The bug: each row's own content decides. The twin: the person's id does, so all of their rows are in one part."""
    ids = np.repeat(np.arange(60), 5)
    x, y = np.random.default_rng(1).normal(size=(300, 3)).astype("float32"), np.arange(300) % 2
    path = tmp_path / "visits.npz"
    np.savez(path, x=x, y=y, patient_id=ids)
    owner = {row.tobytes(): int(i) for row, i in zip(x, ids, strict=True)}

    def both(bundle) -> set[int]:
        parts = [{owner[row.tobytes()] for row in part.numpy()} for part in (bundle.train_x, bundle.test_x)]
        return parts[0] & parts[1]

    assert len(both(data.load(path))) > 20
    assert not both(data.load(path, unit="patient_id"))


@pytest.mark.parametrize("bug", [True, False])
def test_rows_that_were_loaded_with_a_unit_are_not_counted_as_persons(bug):
    """A plan of single rows, which does not ask whose they are, stated the ε of a row."""
    rows = [{"id": f"p{i // 3}", "age": i % 90, "ill": "yes" if i % 2 else "no"} for i in range(120)]
    schema = {"age": {"type": "number", "low": 0, "high": 99}, "ill": {"type": "flag"}}
    train = data.table(rows, target="ill", schema=schema, unit="id").train
    persons = len(train.units.unique())
    unit = None if bug else Unit(name="id", persons=persons)
    plan = Plan(
        records=len(train) if bug else persons, batch_size=9, steps=1, noise_multiplier=1, delta=DELTA, unit=unit
    )
    step = PrivateStep(nn.Linear(2, 2), plan)
    if bug:
        with pytest.raises(ConfigError, match="this one protects single records"):
            next(iter(step.batches(train)))
    else:
        next(iter(step.batches(train)))


def test_delta_at_an_epsilon_that_is_a_whole_number():
    """Whole numbers in, whole numbers out: the δ of a person's rows was cut to 0."""
    plan = Plan(
        records=100, batch_size=10, steps=1, noise_multiplier=1.0, delta=1e-5, unit=replace(UNIT, sampled=Sampled.ROWS)
    )
    event = plan.event()
    one = event.event
    bug = Mixture(one.standard_deviation, one.sensitivities, one.sampling_probs).forward(np.array([2]))
    assert bug[0] == 0 < 1e-5 < delta_for(event, 2, plan.adjacency) == delta_for(event, 2.0, plan.adjacency)
