"""Running statistics of layers in eval mode: constants of the model, which nobody may compute from the records.

`update_bn` of torch, or a pass in training mode without gradients, fills BatchNorm's statistics from whatever goes
through. Between two steps neither the model's forward pass nor its gradients would show that, and the statistics leave
with the model.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from assay.errors import UnsupportedModelError


class Statistics:
    """The buffers of some layers, as they were at the first batch.

    Args:
        layers: Layers that are constant in eval mode.
    """

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        self._layers = list(layers)
        self._known: dict[tuple[int, str], tuple[Tensor, int, Tensor]] = {}

    def check(self) -> None:
        """Note the statistics, or refuse them if they are not what they were. A move to another device is fine.

        Raises:
            UnsupportedModelError: They were computed again.
        """
        for place, layer in enumerate(self._layers):
            for name, buffer in layer.named_buffers(recurse=False):
                version = -1 if buffer.is_inference() else buffer._version
                known = self._known.get((place, name))
                if known is not None and known[0] is buffer and known[1] == version:
                    continue
                if known is not None and not torch.equal(known[2], buffer.detach().to(known[2])):
                    raise UnsupportedModelError(
                        f"{name} of a {type(layer).__name__} was written since the first batch (update_bn, a pass in "
                        "training mode): running statistics of the records would leave with the model without noise. "
                        "Leave them as they are, or compute them from public data before training"
                    )
                self._known[place, name] = buffer, version, buffer.detach().clone()
