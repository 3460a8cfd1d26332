"""Folders of pictures, data sets of Hugging Face, and data that the user's own code makes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from assay import data
from assay.errors import AssayError, ConfigError, DataError


def write_pictures(root: Path, count: int = 20, side: int = 10, seed: int = 0) -> Path:
    """Dark and bright pictures, in a folder for each class."""
    rng = np.random.RandomState(seed)
    for name, level in (("bright", 200), ("dark", 40)):
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.clip(rng.normal(level, 20, (side, side + i % 3, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.{'png' if i % 2 else 'jpg'}")
    return root


def test_a_folder_becomes_pictures_of_the_declared_size_and_classes_of_its_folders(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "scans")
    bundle = data.load(root, schema={"pictures": {"size": 8, "channels": 1}})
    assert bundle.input_shape == (1, 8, 8)
    assert bundle.what.names == ("bright", "dark")
    assert len(bundle.train_x) + len(bundle.test_x) == 40
    assert float(bundle.train_x.abs().max()) <= 1
    assert bool((bundle.train_x.mean((1, 2, 3)) < 0).eq(bundle.train_y == 1).all())
    assert bundle.schema == {"pictures": {"classes": ["bright", "dark"], "size": 8, "channels": 1}}
    again = data.load(root, schema=bundle.schema)
    assert again.train_x.equal(bundle.train_x)


def test_another_picture_moves_no_picture_from_one_part_to_the_other(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "scans")
    train, _ = data.pictures(root, size=8)
    (root / "bright" / "0.jpg").unlink()
    fewer, _ = data.pictures(root, size=8)
    assert set(fewer.files) == set(train.files) - {root / "bright" / "0.jpg"}


def test_folders_train_and_test_are_the_parts(tmp_path: Path) -> None:
    write_pictures(tmp_path / "scans" / "train")
    write_pictures(tmp_path / "scans" / "test", count=3, seed=1)
    bundle = data.folder(tmp_path / "scans", size=8)
    assert (len(bundle.train_x), len(bundle.test_x)) == (40, 6)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda root: [f.unlink() for f in (root / "dark").iterdir()], ("dark", "no pictures", ".png")),
        (lambda root: (root / "dark" / "x.png").write_bytes(b"no picture"), ("x.png", "cannot be read as a picture")),
        (lambda root: (root / "dark").rename(root.parent / "elsewhere"), ("1 folders", "at least two")),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_by_name(tmp_path: Path, spoil: Any, said: tuple[str, ...]) -> None:
    root = write_pictures(tmp_path / "scans", count=4)
    spoil(root)
    with pytest.raises(DataError) as caught:
        data.folder(root)
    for words in said:
        assert words in str(caught.value)


def test_a_size_that_is_none_is_refused(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "scans", count=2)
    for how in ({"size": 0}, {"channels": 2}, {"length": 3}):
        with pytest.raises(ConfigError):
            data.load(root, schema={"pictures": how})


def test_a_data_set_of_hugging_face_is_read_from_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"age": [float(i) for i in range(50)], "ill": [i % 2 for i in range(50)]}
    found = datasets.Dataset.from_dict(rows)
    found.save_to_disk(str(tmp_path / "table"))
    schema = {"age": {"type": "number", "low": 0, "high": 50}, "ill": {"type": "flag"}}
    bundle = data.load(f"hf:{tmp_path / 'table'}", target="ill", schema=schema)
    assert bundle.input_shape == (2,)
    assert data.of_dataset(found, target="ill", schema=schema).train_x.equal(bundle.train_x)
    with pytest.raises(ConfigError, match="type = "):
        data.of_dataset(found, target="ill")


def test_pictures_of_hugging_face_have_the_classes_that_are_declared(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features({"scan": datasets.Image(), "kind": datasets.ClassLabel(names=["well", "ill", "other"])})
    images = [Image.fromarray(np.full((6, 6), 5 * i, np.uint8)) for i in range(30)]
    found = datasets.Dataset.from_dict({"scan": images, "kind": [i % 2 for i in range(30)]}, features=kinds)
    found.save_to_disk(str(tmp_path / "scans"))
    bundle = data.load(f"hf:{tmp_path / 'scans'}", schema={"pictures": {"size": 4, "channels": 1}})
    assert bundle.what.names == ("well", "ill", "other")
    assert bundle.input_shape == (1, 4, 4)


def test_a_factory_of_ones_own_makes_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_records.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        "def made(more=0):\n    return TensorDataset(torch.arange(60.).view(30, 2) + more, torch.arange(30) % 3)\n"
        "def two():\n    return made(), made(60)\n"
        "def nothing():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_records", raising=False)
    bundle = data.load("own_records:made")
    assert bundle.classes == 3
    assert len(bundle.train_x) + len(bundle.test_x) == 30
    assert len(data.load("own_records:two").test_x) == 30
    for wrong in ("own_records:nothing", "own_records:missing", "no_such_module:made", "hf:no/such/data/set@x"):
        with pytest.raises(AssayError):
            data.load(wrong)


def test_a_data_set_in_memory_keeps_its_records() -> None:
    x = torch.randn(40, 3)
    bundle = data.of_datasets(torch.utils.data.TensorDataset(x, torch.arange(40) % 2))
    assert len(bundle.train_x) + len(bundle.test_x) == 40
