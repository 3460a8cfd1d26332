from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.integrity import read_verified, verified_content, write_atomically
from assay.errors import DataError

from .tiny import known_file

CONTENT = bytes(range(256)) * 8
KNOWN = known_file("file", CONTENT, gz=True)
WRAPPED = gzip.compress(CONTENT, mtime=0)


def check(data: bytes, *, gzipped: bool) -> bytes:
    return verified_content(data, KNOWN, gzipped=gzipped, where="it")


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_no_changed_byte_passes(position: int, change: int) -> None:
    data = bytearray(CONTENT)
    data[position] ^= change
    with pytest.raises(DataError, match="corrupt"):
        check(bytes(data), gzipped=False)


@given(st.integers(0, len(WRAPPED) - 1), st.integers(1, 255))
def test_nothing_but_the_known_content_comes_out_of_a_changed_gzip_file(position: int, change: int) -> None:
    data = bytearray(WRAPPED)
    data[position] ^= change
    try:
        assert check(bytes(data), gzipped=True) == CONTENT
    except DataError:
        return
    assert position < 10  # of the wrapper, only the time and system in its header can change without effect


@given(st.integers(0, len(WRAPPED) - 1))
def test_truncation_is_told(size: int) -> None:
    with pytest.raises(DataError, match="truncated"):
        check(CONTENT[:size], gzipped=False)
    with pytest.raises(DataError, match="truncated"):
        check(WRAPPED[:size], gzipped=True)


def test_a_repacked_gzip_file_passes_by_its_content() -> None:
    assert check(gzip.compress(CONTENT, compresslevel=1, mtime=12345), gzipped=True) == CONTENT


def test_a_gzip_file_with_more_in_it_is_refused() -> None:
    for more in (gzip.compress(CONTENT + b"x"), WRAPPED + WRAPPED, WRAPPED + b"garbage"):
        with pytest.raises(DataError):
            check(more, gzipped=True)


def test_the_error_names_file_sums_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DataError) as caught:
        read_verified(path, KNOWN, "mnist")
    message = str(caught.value)
    assert str(path) in message
    assert KNOWN.content.sha256 in message
    assert hashlib.sha256(CONTENT[:-1]).hexdigest() in message
    assert "2,048 bytes" in message
    assert "2,047" in message
    assert "assay data get mnist" in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="file cannot be read"):
        read_verified(tmp_path / "file", KNOWN, "mnist")


def test_writing_makes_folders_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new" / "file", CONTENT)
    assert (tmp_path / "new" / "file").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


def test_a_write_that_fails_leaves_nothing_under_the_final_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="file cannot be written: No space left"):
        write_atomically(tmp_path / "file", CONTENT)
    assert list(tmp_path.iterdir()) == []
