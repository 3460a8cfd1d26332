"""Records are recognised by what they are, not by where they stand or how they were prepared."""

import torch
from torch.utils.data import Dataset, TensorDataset

from assay.data import contents, table
from assay.data.identity import of_bundle, of_table

AGE = {"type": "number", "low": 0, "high": 100}
ILL = {"type": "category", "levels": ["yes", "no"]}


def test_a_row_is_the_same_under_every_schema_and_a_person_under_every_row(tmp_path):
    path = tmp_path / "visits.csv"
    rows = [f"p{i // 3},{i},{'yes' if i % 2 else 'no'}" for i in range(120)]
    path.write_text("\n".join(["patient_id,age,ill", *rows]) + "\n")
    wide = {"patient_id": {"type": "skip"}, "age": AGE, "ill": ILL}
    narrow = {**wide, "age": {**AGE, "high": 50}}
    known = set(of_table(path))
    for schema in (wide, narrow):
        assert set(of_bundle(table(path, target="ill", schema=schema))) == known
    persons = set(of_table(path, "patient_id"))
    bundle = table(path, target="ill", schema={"age": AGE, "ill": ILL}, unit="patient_id")
    assert set(of_bundle(bundle)) == persons
    assert len(persons) == bundle.persons
    part = bundle.only(bundle.drawn("records", 0.5))
    assert set(of_bundle(part)) < persons
    rows_kept = table(path, target="ill", schema=wide)
    assert set(of_bundle(rows_kept.only(torch.arange(len(rows_kept.train_x)) < 10))) < known


def test_numbers_are_the_same_whatever_type_they_come_in():
    class Items(Dataset):
        def __init__(self, items):
            self.items = items

        def __len__(self):
            return len(self.items)

        def __getitem__(self, i):
            return self.items[i]

    x, y = torch.tensor([[0.5, 1.5], [2.0, -1.0]]), torch.tensor([1, 0])
    known = list(contents(TensorDataset(x, y)))
    assert len(set(known)) == 2
    assert list(contents(TensorDataset(x.double(), y.to(torch.int32)))) == known
    assert list(contents(Items([([0.5, 1.5], 1), ([2.0, -1.0], 0)]))) == known
    assert list(contents(Items([{"x": x[0], "y": y[0]}, {"x": x[1], "y": y[1]}]))) == known
