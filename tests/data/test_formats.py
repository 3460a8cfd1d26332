from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.data.formats.adult import FEATURE_NAMES, parse_adult
from assay.data.formats.cifar import build_cifar, parse_cifar
from assay.data.formats.idx import parse_idx
from assay.errors import DataError

from .tiny import build_idx

small_arrays = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, max_side=6))


@given(small_arrays)
def test_idx_round_trip(values: npt.NDArray[np.uint8]) -> None:
    assert np.array_equal(parse_idx(build_idx(values)), values)


@given(small_arrays, st.data())
def test_idx_of_another_length_than_its_header_says_is_refused(
    values: npt.NDArray[np.uint8], data: st.DataObject
) -> None:
    content = build_idx(values)
    with pytest.raises(DataError):
        parse_idx(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(DataError):
        parse_idx(content + b"\0")


def test_idx_of_another_type_is_refused() -> None:
    with pytest.raises(DataError, match="00000d01"):
        parse_idx(b"\0\0\x0d\x01\0\0\0\0")


def test_cifar_round_trip_and_order_of_planes() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8)
    labels = np.array([7, 0, 9], np.uint8)
    content = build_cifar(images, labels)
    assert content[0] == 7
    assert content[1:1025] == images[0, 0].tobytes()  # red first
    parsed_images, parsed_labels = parse_cifar(content, label_bytes=1)
    assert np.array_equal(parsed_images, images)
    assert np.array_equal(parsed_labels, labels)


def test_cifar100_gives_the_fine_label() -> None:
    coarse, fine = 3, 88
    images, labels = parse_cifar(bytes([coarse, fine]) + bytes(3072), label_bytes=2)
    assert images.shape == (1, 3, 32, 32)
    assert labels.tolist() == [fine]


@pytest.mark.parametrize("size", [0, 3072, 3074, 2 * 3073 - 1])
def test_cifar_that_breaks_off_within_a_record_is_refused(size: int) -> None:
    with pytest.raises(DataError):
        parse_cifar(bytes(size), label_bytes=1)


TRAIN_LINE = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, "
    "40, United-States, <=50K"
)
TEST_FILE = (
    "|1x3 Cross validator\n"
    "25, ?, 226802, 11th, 7, Never-married, ?, Own-child, Black, Female, 0, 0, 40, ?, >50K.\n"
    "200, Private, 9999999, Masters, 9, Divorced, Sales, Wife, Other, Male, 0, 90000, 99, Peru, <=50K.\n\n"
)


def features(row: npt.NDArray[np.float32]) -> dict[str, float]:
    return {name: float(value) for name, value in zip(FEATURE_NAMES, row, strict=True) if value}


def test_adult_record_by_the_schema() -> None:
    x, y = parse_adult(TRAIN_LINE.encode() + b"\n\n")
    assert x.shape == (1, 105)
    assert y.tolist() == [0]
    assert features(x[0]) == pytest.approx(
        {
            "age": 0.39,
            "workclass=State-gov": 1,
            "fnlwgt": 0.077516,
            "education=Bachelors": 1,
            "education-num": 12 / 15,
            "marital-status=Never-married": 1,
            "occupation=Adm-clerical": 1,
            "relationship=Not-in-family": 1,
            "race=White": 1,
            "sex=Male": 1,
            "capital-gain": 0.02174,
            "hours-per-week": 0.4,
            "native-country=United-States": 1,
        }
    )


def test_adult_test_file_has_a_remark_full_stops_and_missing_values() -> None:
    x, y = parse_adult(TEST_FILE.encode())
    assert y.tolist() == [1, 0]
    missing = features(x[0])
    assert not any(name.startswith(("workclass", "occupation", "native-country")) for name in missing)


def test_adult_numbers_are_clamped_to_their_public_range() -> None:
    x, _ = parse_adult(TEST_FILE.encode())
    found = features(x[1])
    assert (found["age"], found["fnlwgt"], found["capital-loss"]) == (1, 1, 1)


def test_adult_features_of_a_person_do_not_depend_on_the_others() -> None:
    alone, _ = parse_adult(TRAIN_LINE.encode())
    among, _ = parse_adult(TEST_FILE.replace(".\n", "\n").encode() + TRAIN_LINE.encode())
    assert np.array_equal(alone[0], among[-1])


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("State-gov", "Astronaut", "'Astronaut'"),
        ("39", "old", "'old'"),
        ("39", "nan", "'nan'"),
        ("<=50K", "50K", "'50K'"),
        ("White, ", "", "13 values"),
    ],
)
def test_adult_line_that_does_not_fit_is_named(old: str, new: str, named: str) -> None:
    content = f"{TRAIN_LINE}\n{TRAIN_LINE.replace(old, new, 1)}\n"
    with pytest.raises(DataError, match=f"line 2.*{named}"):
        parse_adult(content.encode())
