"""What a model does with its inputs first: subtract a mean, multiply by a scale. Both are saved and loaded with its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import ConfigError


def scale_inputs(model: nn.Module, scale: Tensor) -> None:
    """From now on the model multiplies its inputs by `scale`, which is saved and loaded with its parameters.

    A model that was trained so before takes the new scale in place of the old one.
    """
    _adapt(model, "input_scale", scale)


def shift_inputs(model: nn.Module, shift: Tensor) -> None:
    """From now on the model subtracts `shift` from its inputs; saved, loaded and replaced as a scale is."""
    _adapt(model, "input_shift", shift)


def adapt_as(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """What a stage had done to the inputs of the model that was saved as `tensors`."""
    for name in _ADAPTATIONS:
        if name in tensors:
            _adapt(model, name, tensors[name])


def check_inputs(model: nn.Module, name: str) -> None:
    """Refuse a model that does something else to its inputs than `name`, which would be added: which of the two comes first is not saved
    with it. The same is replaced.
    """
    for other in _ADAPTATIONS:
        if other != name and other in dict(model.named_buffers(recurse=False)):
            raise ConfigError(
                "model",
                f"{type(model).__name__} with {other}",
                f"a model that takes its inputs as they are: it cannot have {name} as well",
            )


def _adapt(model: nn.Module, name: str, value: Tensor) -> None:
    device = next(model.parameters()).device
    again = name in dict(model.named_buffers(recurse=False))
    model.register_buffer(name, value.to(device=device, dtype=torch.float32))
    if not again:
        model.register_forward_pre_hook(_ADAPTATIONS[name])


def _scaled(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0] * model.input_scale, *inputs[1:])


def _shifted(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0] - model.input_shift, *inputs[1:])


_ADAPTATIONS: Mapping[str, Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]] = {
    "input_scale": _scaled,
    "input_shift": _shifted,
}
