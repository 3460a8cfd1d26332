"""Tasks and answers as bytes: a JSON header and the blobs that it describes.

Bytes from another machine are untrusted: malformed ones raise `FrameError`, and nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_LENGTH = 8


class FrameError(ValueError):
    """The bytes are not a frame."""


def pack(header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """One byte string of a JSON-able header and any number of blobs."""
    head = json.dumps({"header": dict(header), "sizes": [len(blob) for blob in blobs]}).encode()
    return b"".join((len(head).to_bytes(_LENGTH, "big"), head, *blobs))


def unpack(frame: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Header and blobs of `pack`. Raises `FrameError` for anything else."""
    start = _LENGTH + int.from_bytes(frame[:_LENGTH], "big")
    try:
        head = json.loads(frame[_LENGTH:start])
        header, sizes = head["header"], head["sizes"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FrameError("no header") from error
    if not isinstance(header, dict) or not isinstance(sizes, list):
        raise FrameError("no header")
    blobs = []
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(frame) - start:
            raise FrameError("a blob is cut short")
        blobs.append(frame[start : start + size])
        start += size
    if start != len(frame):
        raise FrameError("bytes after the last blob")
    return header, blobs


def pack_tasks(tasks: Mapping[int, bytes], header: Mapping[str, Any] | None = None) -> bytes:
    """A frame of clients and their tasks. Equal tasks share one blob, because most rounds send one model to all."""
    blobs = list(dict.fromkeys(tasks.values()))
    place = {blob: index for index, blob in enumerate(blobs)}
    return pack({**(header or {}), "tasks": [[client, place[task]] for client, task in tasks.items()]}, blobs)


def unpack_tasks(header: Mapping[str, Any], blobs: Sequence[bytes]) -> dict[int, bytes]:
    """The tasks of a frame of `pack_tasks`."""
    try:
        return {whole(client): blobs[whole(index)] for client, index in header["tasks"]}
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise FrameError("no tasks") from error


def pack_answers(answers: Sequence[tuple[int, bytes]]) -> bytes:
    """A frame of clients and their answers."""
    return pack({"answered": [client for client, _ in answers]}, [blob for _, blob in answers])


def unpack_answers(frame: bytes) -> list[tuple[int, bytes]]:
    """The answers of a frame of `pack_answers`."""
    header, blobs = unpack(frame)
    try:
        return list(zip(map(whole, header["answered"]), blobs, strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise FrameError("no answers") from error


def whole(value: object) -> int:
    """A client's number: a whole number from 0 on, not a boolean."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise FrameError(f"{value!r} is not the number of a client")
    return value
