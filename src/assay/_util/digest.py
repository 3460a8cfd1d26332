"""A digest of named tensors, such as a model at some moment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def of_tensors(named: Iterable[tuple[str, Tensor]]) -> str:
    """A digest that changes with every name, shape, type and bit of a value, but not with the device.

    >>> of_tensors([("w", torch.zeros(2))]) == of_tensors([("w", torch.ones(2))])
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in named:
        plain = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
        digest.update(f"{name} {tuple(plain.shape)} {plain.dtype}\n".encode())
        digest.update(plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def of_model(model: nn.Module) -> str:
    """The digest of a model's parameters, of which of them are trainable, and of its buffers."""
    trained = "".join("01"[p.requires_grad] for p in model.parameters())
    return of_tensors([*model.named_parameters(), *model.named_buffers(), (trained, torch.empty(0))])
