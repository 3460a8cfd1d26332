"""Layer-wise relevance propagation by the book: every layer as an explicit matrix, Eq. 4-7 of AFRRS in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def relevance(layers: list[nn.Module], x: Tensor, beta: float) -> Tensor:
    """The map of one record x (no batch dimension) to the score of the class decided for."""
    activations = [x.double()]
    for layer in layers:
        activations.append(layer(activations[-1][None])[0].detach())
    scores = activations[-1]
    back = torch.zeros_like(scores)
    back[scores.argmax()] = scores.max()
    for layer, a in zip(reversed(layers), reversed(activations[:-1]), strict=True):
        back = _back(layer, a, back, beta)
    return back


def _back(layer: nn.Module, a: Tensor, relevance: Tensor, beta: float) -> Tensor:
    matrix = _matrix(layer, a)
    if matrix is None:
        return relevance.reshape(a.shape)
    z = layer(a[None])[0].detach().flatten()
    stabiliser = beta if isinstance(layer, nn.Linear | nn.Conv2d) else 1e-9
    shares = relevance.flatten() / torch.where(z >= 0, z + stabiliser, z - stabiliser)
    found = torch.zeros(a.numel(), dtype=torch.float64)
    for q in range(a.numel()):
        found[q] = (a.flatten()[q] * matrix[:, q] * shares).sum()
    return found.view(a.shape)


def _matrix(layer: nn.Module, a: Tensor) -> Tensor | None:
    """ω_qp as [outputs, inputs]; None where values are handed on one by one."""
    if isinstance(layer, nn.Linear):
        return layer.weight.detach()
    if isinstance(layer, nn.MaxPool2d):
        _, winners = nn.functional.max_pool2d(a[None], layer.kernel_size, layer.stride, return_indices=True)
        plane = a.shape[1] * a.shape[2]
        offsets = (torch.arange(a.shape[0]) * plane).view(-1, 1, 1)
        matrix = torch.zeros(winners.numel(), a.numel(), dtype=torch.float64)
        matrix[torch.arange(winners.numel()), (winners[0] + offsets).flatten()] = 1
        return matrix
    if isinstance(layer, nn.Conv2d | nn.AvgPool2d):
        basis = torch.eye(a.numel(), dtype=torch.float64).view(-1, *a.shape)
        return (layer(basis) - layer(torch.zeros_like(basis[:1]))).detach().flatten(1).T
    return None
