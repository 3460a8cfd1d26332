"""A data set in which several records belong to one person: parts are split by person, never by record."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from assay.data.bundle import DataBundle
from assay.data.split import drawn_units, unit_keys
from assay.data.task import Task
from assay.errors import ConfigError


def bundle(persons: int = 40, rows: int = 3) -> DataBundle:
    units = torch.arange(persons).repeat_interleave(rows)
    x = torch.arange(persons * rows, dtype=torch.float32)[:, None]
    return DataBundle(
        name="own",
        train_x=x,
        train_y=units % 2,
        test_x=x[:2],
        test_y=units[:2],
        classes=2,
        unit="one patient",
        notes="",
        source="own",
        train_units=units,
        test_units=torch.zeros(2, dtype=torch.int64),
        train_keys=torch.from_numpy(unit_keys([str(i) for i in range(persons)])),
        unit_column="patient",
    )


def test_a_persons_records_are_drawn_together_and_renumbered_without_a_gap() -> None:
    whole = bundle()
    aside = whole.drawn("validation", 0.3)
    per_person = aside.reshape(-1, 3)
    assert torch.equal(per_person.all(1), per_person.any(1))
    assert 0 < int(aside.sum()) < len(aside)
    parts = whole.with_test(aside)
    assert parts.train_units is not None
    assert parts.test_units is not None
    assert parts.persons == int((~per_person[:, 0]).sum())
    assert torch.equal(parts.train_units, torch.arange(parts.persons).repeat_interleave(3))
    assert len(parts.train_x) + len(parts.test_x) == len(whole.train_x)


def test_whether_a_person_is_drawn_depends_on_their_id_alone() -> None:
    ids = [f"patient {i}" for i in range(500)]
    everyone = dict(zip(ids, drawn_units(unit_keys(ids), "test", 0.2), strict=True))
    fewer = ids[::-1][:-100]
    assert all(
        everyone[one] == there for one, there in zip(fewer, drawn_units(unit_keys(fewer), "test", 0.2), strict=True)
    )
    assert 60 <= sum(everyone.values()) <= 140


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_units": None},
        {"test_units": None},
        {"unit_column": None},
        {"train_keys": None},
        {"train_units": torch.arange(120) * 2},
        {"train_units": torch.zeros(3, dtype=torch.int64)},
        {"train_units": torch.zeros(120)},
    ],
)
def test_units_that_do_not_fit_the_records_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(bundle(), **wrong)


def test_targets_must_be_those_of_the_task() -> None:
    whole = bundle()
    y, test_y = whole.train_y.float(), whole.test_y.float()
    number = Task(kind="regression", low=0, high=9)
    assert replace(whole, train_y=y, test_y=test_y, task=number, classes=1).what.outputs == 1
    with pytest.raises(ConfigError, match="float32"):
        replace(whole, task=number, classes=1)
    with pytest.raises(ConfigError, match="from -1 to 1"):
        replace(whole, train_y=y * 7, test_y=test_y, task=number, classes=1)
    with pytest.raises(ConfigError, match="outputs"):
        replace(whole, task=number)
    with pytest.raises(ConfigError, match="two finite numbers"):
        Task(kind="regression", low=9, high=0)
