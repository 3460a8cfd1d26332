"""Digests that files carry of their own content, so that damage is seen when they are read.

A digest tells damage from what was written. It is no signature: who can write a file can write its digest too. That a file has
one is not left to the file: `run.json` says which version a run was written with, and the files of a run name its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._util.lazy import torch
from assay.errors import AssayError

if TYPE_CHECKING:
    from torch import Tensor, nn

FIELD = "digest"
_BYTES = 16
_MARK = b', "digest": "'
_TAIL = len(_MARK) + 2 * _BYTES + len(b'"}')


def of_text(*parts: str) -> str:
    """The digest of several texts, in order."""
    digest = hashlib.blake2b(digest_size=_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def of_json(data: Mapping[str, Any]) -> str:
    """The digest of all fields but the digest itself, however they are ordered and spaced."""
    content = {key: value for key, value in data.items() if key != FIELD}
    return of_text(json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False))


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data as JSON gives them back, with the digest of their content."""
    plain: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    return {**plain, FIELD: of_json(plain)}


def check(path: Path, data: Mapping[str, Any]) -> None:
    """`AssayError` where the content is not what the digest was made of, or where there is none."""
    if FIELD not in data:
        raise AssayError(f"{path} is damaged: its field {FIELD} is missing")
    if data[FIELD] != of_json(data):
        raise AssayError(f"{path} is damaged: its content is not what its field {FIELD} was made of")


def of_file(path: Path) -> str:
    """The SHA-256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chained(line: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    """A line of a file of JSON lines that ends with a digest of itself and of all lines before it; and that digest.

    Args:
        line: What the line says.
        before: The digest of the line before it; "" for the first one.
    """
    body = json.dumps(line).encode()[:-1]
    digest = _chain(body, before)
    return body + _MARK + digest.encode() + b'"}', digest


def unchained(line: bytes, before: str) -> tuple[bytes, str] | None:
    """The JSON of a chained line without its digest, and the digest; None where the line is not what was written."""
    body = line[:-_TAIL]
    digest = _chain(body, before)
    return (body + b"}", digest) if line[-_TAIL:] == _MARK + digest.encode() + b'"}' else None


def begins_with_line(data: bytes, before: str) -> bool:
    """Whether a whole chained line, and more, is what these bytes begin with."""
    end = data.find(b'"}', data.find(_MARK) + len(_MARK)) + 2
    return end < len(data) and unchained(data[:end], before) is not None


def _chain(body: bytes, before: str) -> str:
    return hashlib.blake2b(before.encode() + body, digest_size=_BYTES).hexdigest()


def of_tensors(named: Iterable[tuple[str, Tensor]]) -> str:
    """A digest of named numbers: another one if a name, a shape, a type or a single bit of a value is another; where the tensors are does not matter."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in named:
        plain = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
        digest.update(f"{name} {tuple(plain.shape)} {plain.dtype}\n".encode())
        digest.update(plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def of_model(model: nn.Module) -> str:
    """Of all its parameters, which of them are trained, and its buffers."""
    trained = "".join("01"[p.requires_grad] for p in model.parameters())
    return of_tensors([*model.named_parameters(), *model.named_buffers(), (trained, torch.empty(0))])
