"""Messages come back as they were sent; whatever is not exactly what was expected is refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.federated.wire import MAGIC, Schema, WireError, decode, encode

finite = st.floats(-(2.0**100), 2.0**100, width=32)
arrays = st.one_of(
    hnp.arrays(np.float32, st.integers(0, 20), elements=finite),
    hnp.arrays(np.uint8, st.integers(0, 20)),
    hnp.arrays(np.uint16, st.integers(0, 20)),
    hnp.arrays(np.uint32, st.integers(0, 20)),
)


@given(st.dictionaries(st.sampled_from("abc"), arrays), st.integers(0, 10**9), st.floats(-1e9, 1e9))
def test_round_trip(sent, count, number):
    fields = {"round": count, "loss": number}
    schema = Schema({n: (a.dtype.name, len(a)) for n, a in sent.items()}, {"round": int, "loss": float})
    got = decode(encode("answer", fields, sent), "answer", schema)
    assert got.fields == fields
    for name, array in sent.items():
        assert got.arrays[name].dtype == array.dtype
        assert np.array_equal(got.arrays[name], array)


SENT = {"u": np.array([1.0, -2.0, 0.5], dtype=np.float32)}
SCHEMA = Schema({"u": ("float32", 3)}, {"round": int})
GOOD = encode("answer", {"round": 7}, SENT)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_only_its_value(position, change):
    damaged = bytearray(GOOD)
    damaged[position] = (damaged[position] + change) % 256
    try:
        got = decode(bytes(damaged), "answer", SCHEMA)
    except WireError:
        return
    assert got.arrays["u"].shape == (3,)
    assert np.isfinite(got.arrays["u"]).all()
    assert type(got.fields["round"]) is int


@given(st.binary(max_size=200))
def test_rubbish_is_refused(data):
    with pytest.raises(WireError):
        decode(data, "answer", SCHEMA)
    with pytest.raises(WireError):
        decode(MAGIC + data, "answer", SCHEMA)


@pytest.mark.parametrize(
    "data",
    [
        GOOD[:-1],
        GOOD + b"\0",
        encode("task", {"round": 7}, SENT),
        encode("answer", {}, SENT),
        encode("answer", {"round": 7, "norm": 0.1}, SENT),
        encode("answer", {"round": 7.5}, SENT),
        encode("answer", {"round": True}, SENT),
        encode("answer", {"round": "7"}, SENT),
        encode("answer", {"round": 7}, {"u": np.zeros(4, np.float32)}),
        encode("answer", {"round": 7}, {"u": np.zeros(3, np.uint32)}),
        encode("answer", {"round": 7}, {"v": SENT["u"]}),
        encode("answer", {"round": 7}, {**SENT, "v": SENT["u"]}),
        encode("answer", {"round": 7}, {}),
        encode("answer", {"round": 7}, {"u": np.array([1, np.nan, 1], np.float32)}),
        encode("answer", {"round": 7}, {"u": np.array([1, -np.inf, 1], np.float32)}),
    ],
)
def test_refusals(data):
    with pytest.raises(WireError):
        decode(data, "answer", SCHEMA)


def test_numbers_in_the_header_must_be_finite():
    schema = Schema({}, {"loss": float})
    for value in ("NaN", "Infinity", "1e999", "1" + "0" * 400):
        header = f'{{"arrays": [], "kind": "answer", "loss": {value}}}'.encode()
        with pytest.raises(WireError):
            decode(MAGIC + len(header).to_bytes(4, "little") + header, "answer", schema)


def test_a_deep_or_huge_header_is_refused():
    for header in (b"[" * 4000, json.dumps({"kind": "answer", "x": "y" * 5000}).encode()):
        with pytest.raises(WireError):
            decode(MAGIC + len(header).to_bytes(4, "little") + header, "answer", SCHEMA)


def test_only_flat_arrays_of_known_kinds_are_sent():
    for array in (np.zeros((2, 2), np.float32), np.zeros(2, np.float64), np.array(["x"])):
        with pytest.raises(WireError):
            encode("answer", {}, {"u": array})
