"""Digests inside files, which reveal damage when a file is read.

A digest is not a signature: whoever can write a file can write its digest too. Whether a file must have one does not
depend on the file itself: `run.json` says which version wrote the run, and the files of a run name its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import AssayError

if TYPE_CHECKING:
    from torch import Tensor, nn

FIELD = "digest"
_BYTES = 16
_MARK = b', "digest": "'
_TAIL = len(_MARK) + 2 * _BYTES + len(b'"}')


def of_text(*texts: str) -> str:
    """The digest of several texts, in order."""
    digest = hashlib.blake2b(digest_size=_BYTES)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def of_json(data: Mapping[str, Any]) -> str:
    """The digest of all fields but the digest itself, whatever their order.

    >>> of_json({"a": 1, "b": 2}) == of_json({"b": 2, "a": 1, "digest": "..."})
    True
    """
    content = {key: value for key, value in data.items() if key != FIELD}
    return of_text(json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False))


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data as JSON returns them, with the digest of their content."""
    plain: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    return {**plain, FIELD: of_json(plain)}


def check(path: Path, data: Mapping[str, Any]) -> None:
    """Refuse content that does not match its digest.

    Raises:
        AssayError: the digest is missing or belongs to other content.
    """
    if FIELD not in data:
        raise AssayError(f"{path} is damaged: its field {FIELD} is missing")
    if data[FIELD] != of_json(data):
        raise AssayError(f"{path} is damaged: its content is not what its field {FIELD} was made of")


def of_file(path: Path) -> str:
    """The SHA-256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chained(line: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    """A JSON line that ends with a digest of itself and all lines before it, and that digest.

    Args:
        line: the content of the line.
        before: the digest of the line before it; "" for the first one.
    """
    body = json.dumps(line).encode()[:-1]
    digest = _chain(body, before)
    return body + _MARK + digest.encode() + b'"}', digest


def unchained(line: bytes, before: str) -> tuple[bytes, str] | None:
    """The JSON of a chained line without its digest, and the digest; None if the line is damaged."""
    body = line[:-_TAIL]
    digest = _chain(body, before)
    return (body + b"}", digest) if line[-_TAIL:] == _MARK + digest.encode() + b'"}' else None


def begins_with_line(data: bytes, before: str) -> bool:
    """Whether these bytes begin with a whole chained line, and continue after it."""
    end = data.find(b'"}', data.find(_MARK) + len(_MARK)) + 2
    return end < len(data) and unchained(data[:end], before) is not None


def _chain(body: bytes, before: str) -> str:
    return hashlib.blake2b(before.encode() + body, digest_size=_BYTES).hexdigest()


def of_tensors(named: Iterable[tuple[str, Tensor]]) -> str:
    """A digest that changes with every name, shape, type and bit of a value, but not with the device.

    >>> import torch
    >>> of_tensors([("w", torch.zeros(2))]) == of_tensors([("w", torch.ones(2))])
    False
    """
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in named:
        plain = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
        digest.update(f"{name} {tuple(plain.shape)} {plain.dtype}\n".encode())
        digest.update(plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def of_model(model: nn.Module) -> str:
    """The digest of a model's parameters, of which of them are trainable, and of its buffers."""
    import torch

    trained = "".join("01"[p.requires_grad] for p in model.parameters())
    return of_tensors([*model.named_parameters(), *model.named_buffers(), (trained, torch.empty(0))])
