"""The Adult census extract as features, by its published schema alone.

Categories are those of `adult.names`, in its order. A missing value ('?') is all zeros. Numbers are scaled to [0, 1] by
fixed ranges and clamped: the schooling scale of the schema, and otherwise from zero to a suitable power of ten. No
statistic of the records sets a range, so the features of a person depend on nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from assay.errors import DataError

# The columns in the order of the files: the range of a number, or the categories in the order of `adult.names`.
_SCHEMA: dict[str, tuple[float, float] | str] = {
    "age": (0.0, 100.0),
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "fnlwgt": (0.0, 1_000_000.0),
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
    "Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    "education-num": (1.0, 16.0),
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
    "Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv "
    "Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "capital-gain": (0.0, 100_000.0),
    "capital-loss": (0.0, 10_000.0),
    "hours-per-week": (0.0, 100.0),
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) "
    "India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico "
    "Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala "
    "Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
}
_LABELS = {"<=50K": 0, ">50K": 1}


def _feature_names() -> Iterator[str]:
    for column, values in _SCHEMA.items():
        if isinstance(values, str):
            yield from (f"{column}={value}" for value in values.split())
        else:
            yield column


FEATURE_NAMES = tuple(_feature_names())
"""What each feature is, in order: a column, or `column=category`."""

_POSITION = {name: position for position, name in enumerate(FEATURE_NAMES)}


def parse_adult(content: bytes) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Features (records, 105) and labels (1 for over $50K) of `adult.data` or `adult.test`.

    Blank lines and the test file's remark ('|1x3 Cross validator') are skipped. Labels of the test file end with a full
    stop.

    Raises:
        DataError: a line does not follow the schema; the error names the line.
    """
    lines = content.decode("ascii", errors="replace").splitlines()
    records = [(at, line) for at, line in enumerate(lines, 1) if line.strip() and not line.startswith("|")]
    x = np.zeros((len(records), len(FEATURE_NAMES)), np.float32)
    y = np.empty(len(records), np.int64)
    for row, (at, line) in enumerate(records):
        *values, label = (value.strip() for value in line.split(","))
        if len(values) != len(_SCHEMA) or label.removesuffix(".") not in _LABELS:
            expected = f"{len(_SCHEMA)} values and a label, <=50K or >50K"
            raise DataError(f"Adult line {at}: {len(values)} values and label {label!r}; expected {expected}")
        y[row] = _LABELS[label.removesuffix(".")]
        for (column, kind), value in zip(_SCHEMA.items(), values, strict=True):
            if not isinstance(kind, str):
                x[row, _POSITION[column]] = _scaled(value, *kind, f"Adult line {at}: {column}")
            elif f"{column}={value}" in _POSITION:
                x[row, _POSITION[f"{column}={value}"]] = 1.0
            elif value != "?":
                raise DataError(f"Adult line {at}: {column} {value!r} is not in the published schema")
    return x, y


def _scaled(value: str, low: float, high: float, where: str) -> float:
    if not value.isdecimal():
        raise DataError(f"{where} {value!r} is not a whole number")
    return min(max((int(value) - low) / (high - low), 0.0), 1.0)
