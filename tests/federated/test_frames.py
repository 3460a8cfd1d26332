"""Bytes from other machines: whatever they are, a frame is read whole or refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.federated.transport.frames import (
    FrameError,
    pack,
    pack_answers,
    pack_tasks,
    unpack,
    unpack_answers,
    unpack_tasks,
)

clients = st.integers(0, 2**40)


@given(st.dictionaries(clients, st.binary(max_size=40), max_size=8))
def test_tasks_come_back_as_they_were(tasks):
    header, blobs = unpack(pack_tasks(tasks, {"settings": {"a": 1}}))
    assert unpack_tasks(header, blobs) == tasks
    assert list(unpack_tasks(header, blobs)) == list(tasks)
    assert header["settings"] == {"a": 1}


@given(st.lists(st.tuples(clients, st.binary(max_size=40)), max_size=8))
def test_answers_come_back_as_they_were(answers):
    assert unpack_answers(pack_answers(answers)) == answers


def test_equal_tasks_are_sent_once():
    model = bytes(100_000)
    assert len(pack_tasks(dict.fromkeys(range(100), model))) < 1.1 * len(model)


@given(st.binary(max_size=200))
def test_rubbish_is_refused(rubbish):
    with pytest.raises(FrameError):
        unpack_answers(rubbish)


@given(st.data())
def test_a_frame_that_was_cut_or_grown_is_refused(data):
    frame = pack_answers([(1, b"answer"), (2, b"")])
    cut = data.draw(st.integers(0, len(frame) - 1))
    for bad in (frame[:cut], frame + b"x"):
        with pytest.raises(FrameError):
            unpack_answers(bad)


@pytest.mark.parametrize(
    "head",
    [
        [],
        {"header": [], "sizes": []},
        {"header": {}, "sizes": [-1]},
        {"header": {}, "sizes": [True]},
        {"header": {"answered": [0]}, "sizes": []},
        {"header": {"answered": [-1]}, "sizes": [0]},
        {"header": {"answered": [True]}, "sizes": [0]},
        {"header": {"answered": [0.5]}, "sizes": [0]},
        {"header": {"answered": None}, "sizes": [0]},
        {"header": {"answered": [0]}, "sizes": [2**80]},
    ],
)
def test_a_header_that_lies_is_refused(head):
    text = json.dumps(head).encode()
    with pytest.raises(FrameError):
        unpack_answers(len(text).to_bytes(8, "big") + text)


def test_a_task_that_points_nowhere_is_refused():
    with pytest.raises(FrameError):
        unpack_tasks(*unpack(pack({"tasks": [[0, 1]]}, [b"only one"])))
