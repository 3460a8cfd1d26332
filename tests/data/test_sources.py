from __future__ import annotations

import dataclasses
import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from assay.data import available, load
from assay.data.catalog import describe
from assay.data.formats.cifar import build_cifar
from assay.data.locate import find, places

from .tiny import build_idx, known_file


def test_digits_is_always_there_scaled_by_constants() -> None:
    data = load("digits")
    assert (len(data.train), len(data.test)) == (1_437, 360)
    assert data.input_shape == (1, 8, 8)
    assert data.classes == 10
    assert data.source == "scikit-learn"
    both = torch.cat([data.train_x, data.test_x]).reshape(-1, 64)
    original = torch.from_numpy(load_digits().data).float() / 16  # exact in float32
    assert sorted(both.tolist()) == sorted(original.tolist())


def test_digits_split_is_the_same_everywhere() -> None:
    """The sum pins the split: results of different machines and versions are comparable."""
    labels = load("digits").test_y.numpy().astype(np.uint8).tobytes()
    assert hashlib.sha256(labels).hexdigest() == ("26999714bcfb53d0b91d6e18703e2df1961911911e69927de4510a565a802933")


def test_idx_files_become_centred_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_other_places: Path
) -> None:
    images = np.array([0, 51, 255], np.uint8)[:, None, None] * np.ones((1, 28, 28), np.uint8)
    labels = np.array([3, 0, 9], np.uint8)
    contents = {
        "train-images": build_idx(images),
        "train-labels": build_idx(labels),
        "test-images": build_idx(images[:1]),
        "test-labels": build_idx(labels[:1]),
    }
    files = tuple(known_file(name, content, gz=True) for name, content in contents.items())
    info = dataclasses.replace(describe("mnist"), files=files)
    monkeypatch.setattr("assay.data.sources.DATASETS", {"mnist": info})
    (tmp_path / "mnist").mkdir()
    for name, content in contents.items():
        (tmp_path / "mnist" / f"{name}.gz").write_bytes(gzip.compress(content))
    data = load("mnist", tmp_path)
    assert data.train_x.shape == (3, 1, 28, 28)
    assert data.train_x[:, 0, 5, 5].tolist() == pytest.approx([0, 0.2, 1])
    assert data.train_y.tolist() == [3, 0, 9]
    assert data.test_x.shape == (1, 1, 28, 28)
    assert data.source == "--data-dir"
    assert str(tmp_path) not in repr(data)


@pytest.mark.parametrize(("name", "label_bytes"), [("cifar10", 1), ("cifar100", 2)])
def test_cifar_batches_are_joined_in_order(
    name: str,
    label_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_other_places: Path,
) -> None:
    def batch(*labels: int) -> bytes:
        images = np.repeat(np.array(labels, np.uint8), 3072).reshape(-1, 3, 32, 32)
        rows = [build_cifar(images[[i]], np.array([label], np.uint8)) for i, label in enumerate(labels)]
        return b"".join(bytes(label_bytes - 1) + row for row in rows)

    contents = {"one": batch(1, 2), "two": batch(3), "test": batch(4)}
    files = tuple(known_file(known, content) for known, content in contents.items())
    info = dataclasses.replace(describe(name), files=files, train_records=3, test_records=1)
    monkeypatch.setattr("assay.data.sources.DATASETS", {name: info})
    (tmp_path / info.folders[0]).mkdir()
    for known, content in contents.items():
        (tmp_path / info.folders[0] / known).write_bytes(content)
    data = load(name, tmp_path)
    assert data.train_y.tolist() == [1, 2, 3]
    assert data.test_y.tolist() == [4]
    expected = torch.tensor([1, 2, 3]) / 127.5 - 1
    assert torch.allclose(data.train_x, expected[:, None, None, None].expand(3, 3, 32, 32), atol=1e-6)


@pytest.mark.parametrize("name", [info.name for info in available() if info.files])
def test_real_data_is_what_the_catalogue_says(name: str) -> None:
    info = describe(name)
    if find(info, places(None)) is None:
        pytest.skip(f"{name} is not on this machine; `assay data get {name}` fetches it")
    data = load(name)
    assert (len(data.train), len(data.test)) == (info.train_records, info.test_records)
    assert data.input_shape == info.shape
    assert data.classes == info.classes == 1 + int(data.train_y.max())
    assert data.unit == info.unit
    low = -1 if name.startswith("cifar") else 0
    for x in (data.train_x, data.test_x):
        assert (float(x.min()), float(x.max())) == (low, 1)
    if name == "adult":
        assert data.train_y.bincount().tolist() == [24_720, 7_841]
    elif name != "mnist":  # the others have as many images of every class
        assert len({*data.train_y.bincount().tolist()}) == 1
