"""Tasks and answers as bytes: a JSON header and raw arrays, nothing that could run.

    b"assay-fl/1"  header length (4 bytes, little-endian)  header (JSON, UTF-8)  array  array  ...

The header is an object: `kind` ("task", "answer" or "refusal"), further fields that are numbers or texts, and `arrays`,
a list of [name, dtype, length] in the order of the bytes. Arrays are one-dimensional, little-endian, without padding.

`decode` takes only what the receiver expects: the same kind, exactly the fields and arrays of its `Schema`, and no
number that is NaN or infinite. Everything else is a `WireError`, before any of it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

MAGIC = b"assay-fl/1"
DTYPES = {"float32": "<f4", "uint8": "|u1", "uint16": "<u2", "uint32": "<u4"}
_MOST_HEADER = 4096
_PREFIX = len(MAGIC) + 4

Array = NDArray[Any]


class WireError(AssayError):
    """Bytes that are not what was expected."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What a message must hold: the type of each field, and the dtype and length of each array."""

    arrays: Mapping[str, tuple[str, int]]
    fields: Mapping[str, type] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """What a message held."""

    arrays: Mapping[str, Array]
    fields: Mapping[str, Any]


def encode(kind: str, fields: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """The bytes of a message.

    Raises:
        WireError: An array is not flat or has another type, or the header is too long.
    """
    listed, chunks = [], []
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.name not in DTYPES:
            raise WireError(
                f"array {name} is {array.dtype} of {array.ndim} dimensions; it must be flat, of {[*DTYPES]}"
            )
        listed.append([name, array.dtype.name, len(array)])
        chunks.append(np.ascontiguousarray(array, dtype=DTYPES[array.dtype.name]).tobytes())
    header = json.dumps({**fields, "kind": kind, "arrays": listed}, sort_keys=True, allow_nan=False).encode()
    if len(header) > _MOST_HEADER:
        raise WireError(f"the header has {len(header)} bytes; at most {_MOST_HEADER} are allowed")
    return b"".join([MAGIC, len(header).to_bytes(4, "little"), header, *chunks])


def decode(data: bytes, kind: str, schema: Schema) -> Message:
    """The message in `data`.

    Args:
        data: The bytes.
        kind: The kind that is expected.
        schema: The fields and arrays that are expected.

    Returns:
        The fields and arrays.

    Raises:
        WireError: The bytes are not exactly a message of this kind and schema.
    """
    header = _header(data)
    if header.get("kind") != kind:
        raise WireError(f"a message of kind {header.get('kind')!r}, expected {kind!r}")
    if header.keys() != {"kind", "arrays", *schema.fields}:
        raise WireError(f"fields {sorted(header)}, expected kind, arrays and {sorted(schema.fields)}")
    fields = {name: _value(name, header[name], wanted) for name, wanted in schema.fields.items()}
    expected = [[name, dtype, length] for name, (dtype, length) in schema.arrays.items()]
    if header["arrays"] != expected:
        raise WireError(f"arrays {str(header['arrays'])[:200]}, expected {expected}")
    start = _PREFIX + int.from_bytes(data[len(MAGIC) : _PREFIX], "little")
    arrays: dict[str, Array] = {}
    for name, (dtype, length) in schema.arrays.items():
        end = start + length * np.dtype(DTYPES[dtype]).itemsize
        if end > len(data):
            raise WireError(f"the bytes end within array {name}")
        array = np.frombuffer(data[start:end], dtype=DTYPES[dtype])
        if dtype == "float32" and not np.isfinite(array).all():
            raise WireError(f"array {name} holds a number that is not finite")
        arrays[name], start = array, end
    if start != len(data):
        raise WireError(f"{len(data) - start} bytes too many")
    return Message(arrays, fields)


def _header(data: bytes) -> dict[str, Any]:
    if len(data) < _PREFIX or data[: len(MAGIC)] != MAGIC:
        raise WireError(f"not a message of {MAGIC.decode()}")
    length = int.from_bytes(data[len(MAGIC) : _PREFIX], "little")
    if length > _MOST_HEADER or _PREFIX + length > len(data):
        raise WireError(f"a header of {length} bytes in a message of {len(data)}")
    try:
        header = json.loads(data[_PREFIX : _PREFIX + length])
    except (ValueError, RecursionError) as error:
        raise WireError(f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise WireError("the header is not an object")
    return header


def _value(name: str, value: Any, wanted: type) -> Any:
    if wanted is float and type(value) is int:
        value = float(value) if abs(value) < 2**53 else math.inf
    if type(value) is not wanted or (isinstance(value, float) and not math.isfinite(value)):
        raise WireError(f"field {name} is {str(value)[:50]!r}, expected a finite {wanted.__name__}")
    return value
