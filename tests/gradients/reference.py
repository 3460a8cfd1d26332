"""Per-record gradients by their definition, one `torch.func.grad` for each record: slow and obvious."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from assay.gradients.rules.fallback import everywhere


def per_record_gradients(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, *, batched: bool = True
) -> dict[str, Tensor]:
    """{parameter: [B, *shape]}; `loss(output, target)` gives one value per record. Unless `batched`, without vmap."""
    trainable = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    rest = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad} | dict(model.named_buffers())

    def one(params: dict[str, Tensor], x1: Tensor, y1: Tensor) -> Tensor:
        return loss(
            functional_call(model, everywhere(model, params | rest), (x1.unsqueeze(0),), tie_weights=False),
            y1.unsqueeze(0),
        ).sum()

    if batched:
        result: dict[str, Tensor] = vmap(grad(one), in_dims=(None, 0, 0))(trainable, x, y)
        return result
    rows = []
    for x1, y1 in zip(x, y, strict=True):
        params = {n: p.clone().requires_grad_() for n, p in trainable.items()}
        grads = torch.autograd.grad(one(params, x1, y1), list(params.values()), allow_unused=True)
        rows.append([torch.zeros_like(p) if g is None else g for p, g in zip(params.values(), grads, strict=True)])
    return {n: torch.stack(column) for n, column in zip(trainable, zip(*rows, strict=True), strict=True)}
