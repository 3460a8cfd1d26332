"""Downloads that can be interrupted at any moment and continue where they stopped."""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from assay.data.origins import OriginFailed
from assay.errors import DataError

Progress = Callable[[str, int, int | None], None]
"""Called with what is downloaded, how many bytes are done, and how many there are (None if that is not known)."""

_TIMEOUT = 8.0  # seconds without an answer or a byte; short, so that a machine without the internet goes on
_CHUNK = 1 << 18


def download(url: str, part: Path, *, limit: int, progress: Progress) -> None:
    """Complete the file `part` from `url`, after the bytes that it already has. The bytes are not verified here.

    Args:
        url: where to download from.
        part: the unfinished file.
        limit: more bytes than this are refused.
        progress: is called as bytes arrive.

    Raises:
        OriginFailed: this is not possible now; what arrived stays in `part`.
        DataError: the file cannot be written.
    """
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "assay"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if have and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            if error.headers.get("Content-Range") == f"bytes */{have}":
                return  # it was already complete
            part.unlink()  # the server has another file
        raise OriginFailed(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise OriginFailed(_reason(error)) from error
    with answer:
        if answer.status != http.client.PARTIAL_CONTENT or _range_start(answer) != have:
            have = 0  # the server sends the whole file
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        have = _append(answer, part, have, lambda done: progress(url, done, total), limit)
    if have > limit:
        part.unlink()
        raise OriginFailed(f"sent more than the expected {limit:,} bytes")
    if total is not None and have < total:
        raise OriginFailed(f"the connection broke after {have:,} of {total:,} bytes, which are kept")


def _append(answer: http.client.HTTPResponse, part: Path, have: int, done: Callable[[int], None], limit: int) -> int:
    """Append what arrives to the `have` bytes of `part`, to the end or past `limit`, and return the new size."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab" if have else "wb") as file:
            done(have)
            for chunk in _chunks(answer):
                file.write(chunk)
                have += len(chunk)
                done(have)
                if have > limit:
                    break
    except OSError as error:
        raise DataError(f"{part} cannot be written: {error.strerror or error}") from error
    return have


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = answer.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise OriginFailed(f"{_reason(error)}; what arrived is kept") from error
        if not chunk:
            return
        yield chunk


def _range_start(answer: http.client.HTTPResponse) -> int:
    match = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(match[1]) if match else 0


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error) or type(error).__name__
