"""LeNet-5 as in appendix B.1 of GReDP (Wang et al. 2024, arXiv:2409.11663).

`lenet5` has the usual 16 second filters, `lenet5-6` the 6 of that paper's Table 4.
"""

from __future__ import annotations

import functools
from collections import OrderedDict

from torch import nn

from assay.models.registry import ModelInfo
from assay.models.shapes import with_head


def lenet5(
    input_shape: tuple[int, ...], classes: int, *, activation: type[nn.Module] = nn.Tanh, second: int = 16
) -> nn.Sequential:
    """conv6 5×5, max-pool 2, conv16 (`second`) 5×5, max-pool 2, FC 120, 84, classes.

    The original takes 32×32. For smaller images the first convolution pads by 2, so that 28×28 becomes 32×32.
    For sides below 12, such as the 8×8 digits, the second convolution pads by 2 as well. Tanh is the default
    because bounded activations lose less to clipping (Papernot, Thakurta, Song, Chien and Erlingsson, "Tempered
    Sigmoid Activations for Deep Learning with Differential Privacy", AAAI 2021, arXiv:2007.14191).
    """
    side = min(input_shape[1:])
    features = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(input_shape[0], 6, 5, padding=2 if side < 32 else 0),
            act1=activation(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, second, 5, padding=2 if side < 12 else 0),
            act2=activation(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
        )
    )
    return with_head(features, input_shape, (120, 84), classes, activation=activation)


MODELS = (
    ModelInfo(
        name="lenet5",
        summary="LeNet-5: 6 and 16 5×5 filters, FC 120, 84 (tanh)",
        make=lenet5,
        smallest_side=4,  # two halvings
    ),
    ModelInfo(
        name="lenet5-6",
        summary="LeNet-5 with 6 second filters, as in GReDP's Table 4",
        make=functools.partial(lenet5, second=6),
        smallest_side=4,
    ),
)
