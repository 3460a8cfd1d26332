from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.data import load
from assay.errors import ConfigError, DataError

X = np.arange(60, dtype=np.float64).reshape(20, 3)
Y = np.arange(20) % 4


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "own.npz"
    np.savez(path, **arrays)
    return path


def test_takes_features_as_they_are_and_the_given_test_part(tmp_path: Path) -> None:
    data = load(saved(tmp_path, x=X, y=Y, x_test=X[:2] + 1, y_test=np.array([0, 5], np.uint8)))
    assert torch.equal(data.train_x, torch.from_numpy(X).float())
    assert data.train_y.tolist() == Y.tolist()
    assert torch.equal(data.test_x, torch.from_numpy(X[:2] + 1).float())
    assert data.classes == 6
    assert data.name == "own.npz"
    assert str(tmp_path) not in f"{data.source}{data.notes}"
    assert "as they are" in data.notes
    assert "test part" not in data.notes


def test_accepts_images_of_bytes_and_a_path_as_text(tmp_path: Path) -> None:
    x, y = np.full((5, 1, 4, 4), 255, np.uint8), np.arange(5) % 2
    data = load(str(saved(tmp_path, x=x, y=y, x_test=x - 1, y_test=y)))
    assert data.input_shape == (1, 4, 4)
    assert data.train_x.max() == 255


def test_without_a_test_part_a_fifth_is_split_off_and_said(tmp_path: Path) -> None:
    data = load(saved(tmp_path, x=X, y=Y))
    assert (len(data.train), len(data.test)) == (14, 6)
    both = torch.cat([data.train_x, data.test_x])
    assert sorted(both[:, 0].tolist()) == X[:, 0].tolist()
    assert "no test part" in data.notes
    assert data.unit == "one training record of the file"


def test_equal_records_leave_a_part_empty_and_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="x_test and y_test"):
        load(saved(tmp_path, x=np.ones((9, 2)), y=np.zeros(9, int)))


def test_the_split_of_earlier_versions_depends_on_positions_alone(tmp_path: Path) -> None:
    before = load(saved(tmp_path, x=X, y=Y), split="position")
    assert (len(before.train), len(before.test)) == (16, 4)
    changed = X.copy()
    changed[before.train_x[3, 0].int() // 3] = 1e6
    replaced = load(saved(tmp_path, x=changed, y=Y), split="position")
    assert (replaced.train_x != before.train_x).any(dim=1).sum() == 1
    assert torch.equal(replaced.test_x, before.test_x)
    fewer = load(saved(tmp_path, x=X[:-1], y=Y[:-1]), split="position")
    kept = {*fewer.train_x[:, 0].tolist()}
    assert kept <= {*before.train_x[:, 0].tolist()}


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"x": X}, "no array y"),
        ({"features": X, "labels": Y}, "no array x or y"),
        ({"x": X, "y": Y, "x_test": X}, "only one of x_test and y_test"),
        ({"x": X, "y": Y[:-1]}, r"y has shape \(19,\)"),
        ({"x": X, "y": Y[:, None]}, r"y has shape \(20, 1\)"),
        ({"x": X[:, 0], "y": Y}, r"x has shape \(20,\)"),
        ({"x": X[:0], "y": Y[:0]}, r"x has shape \(0, 3\)"),
        ({"x": X[:4], "y": Y[:4]}, "at least 5"),
        ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, "records of x_test"),
        ({"x": X, "y": Y.astype(float)}, "y is of type float64"),
        ({"x": X, "y": Y == 1}, "y is of type bool"),
        ({"x": X, "y": Y - 1}, "label -1"),
        ({"x": X.astype(complex), "y": Y}, "x is of type complex"),
        ({"x": X.astype(str), "y": Y}, "x is of type <U"),
        ({"x": np.where(X == 7, np.nan, X), "y": Y}, "not finite in float32 in 1 of 20"),
        ({"x": np.where(X == 7, 1e300, X), "y": Y}, "not finite in float32 in 1 of 20"),
        ({"x": X, "y": Y, "x_test": X + np.inf, "y_test": Y}, "x_test is not finite"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, arrays: dict[str, Any], named: str) -> None:
    path = saved(tmp_path, **arrays)
    with pytest.raises(DataError, match=named) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_arrays_of_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    path = saved(tmp_path, x=np.array([Trap()] * 5, dtype=object), y=Y[:5])
    with pytest.raises(DataError, match="x holds Python objects"):
        load(path)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match=r"own\.npz"):
        load(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("kept", [0, 10, 300])
def test_truncated_file_is_named(tmp_path: Path, kept: int) -> None:
    path = saved(tmp_path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"own\.npz"):
        load(path)


def test_a_single_array_is_not_an_archive(tmp_path: Path) -> None:
    with (tmp_path / "own.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match="single array"):
        load(tmp_path / "own.npz")


def test_a_file_that_does_not_exist_is_bad_usage(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="existing") as caught:
        load(tmp_path / "none.npz")
    assert (caught.value.field, caught.value.value) == ("data", str(tmp_path / "none.npz"))


def test_labels_that_are_identifiers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="y has a label 1000000000, labels from 0 to 99999 are required"):
        load(saved(tmp_path, x=X, y=np.where(Y == 3, 10**9, Y)))


def test_arrays_of_other_names_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no array x or y; it has features, labels,"):
        load(saved(tmp_path, features=X, labels=Y))


def test_an_archive_that_is_made_to_fill_the_memory_is_not_inflated(tmp_path: Path) -> None:
    """Megabytes of zeros: refused by what the archive says of itself, before anything is read."""
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, shape in (("x", (100, 40_000)), ("y", (100,))):
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                header = {"descr": "<f8" if key == "x" else "<i8", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, header)  # type: ignore[no-untyped-call]
                for _ in range(shape[0]):
                    member.write(bytes(8 * (shape[1] if key == "x" else 1)))
    with pytest.raises(DataError, match=r"x takes .* inflated to 32,000,"):
        load(path)


def test_no_advice_of_numpy_is_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match="not an archive of arrays") as caught:
        load(path)
    assert "allow_pickle" not in str(caught.value)


def test_a_label_beyond_int64_is_reported_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="y has a label 9223372036854775808"):
        load(saved(tmp_path, x=X, y=np.where(Y == 3, 2**63, Y).astype(np.uint64)))


def test_a_single_class_is_reported_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"own\.npz: every label is 0"):
        load(saved(tmp_path, x=X, y=np.zeros(20, int)))
