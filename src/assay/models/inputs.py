"""Models that subtract a mean from their inputs, scale them or shorten them along some axes.

All are saved and loaded with the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import ConfigError


def scale_inputs(model: nn.Module, scale: Tensor) -> None:
    """Let the model multiply its inputs by `scale` from now on. A new scale replaces an old one."""
    _adapt(model, "input_scale", scale)


def shift_inputs(model: nn.Module, shift: Tensor) -> None:
    """Let the model subtract `shift` from its inputs from now on. A new shift replaces an old one."""
    _adapt(model, "input_shift", shift)


def damp_inputs(model: nn.Module, axes: Tensor) -> None:
    """Let the model take x - (x A)Aᵀ for its inputs x as vectors from now on: after it has subtracted a mean.

    Args:
        model: The model.
        axes: A, [numbers of an input, axes]. Lengths of at most 1 of orthogonal axes shorten what lies along them.
    """
    _adapt(model, "input_damping", axes)


def adapt_as(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Let the model treat its inputs as the model that was saved as `tensors` did."""
    for name in _ADAPTATIONS:
        if name in tensors:
            _adapt(model, name, tensors[name])


def check_inputs(model: nn.Module, name: str) -> None:
    """Refuse to add `name` to a model that does something else to its inputs: the order of the two is not saved.

    Raises:
        ConfigError: the model has another adaptation than `name`.
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
    is_new = name not in dict(model.named_buffers(recurse=False))
    model.register_buffer(name, value.to(device=device, dtype=torch.float32))
    if is_new:
        model.register_forward_pre_hook(_ADAPTATIONS[name])


def _scaled(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0] * model.input_scale, *inputs[1:])


def _shifted(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0] - model.input_shift, *inputs[1:])


def _damped(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    flat = inputs[0].flatten(1)
    return ((flat - (flat @ model.input_damping) @ model.input_damping.T).view(inputs[0].shape), *inputs[1:])


_ADAPTATIONS: Mapping[str, Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]] = {
    "input_scale": _scaled,
    "input_shift": _shifted,
    "input_damping": _damped,  # after the shift
}
