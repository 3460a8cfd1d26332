"""LeNet-5 as in GReDP, appendix B.1, with the usual 16 filters in the second convolution."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from assay.models.registry import ModelInfo
from assay.models.shapes import flat_size


def lenet5(input_shape: tuple[int, ...], classes: int, *, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """conv6 5×5, max-pool 2, conv16 5×5, max-pool 2, FC 120, 84, classes.

    The original takes 32×32; smaller images get a padding of 2 on the first convolution, so that 28×28 is
    seen as 32×32. Where even that leaves too little for the second convolution (sides below 12, such as the
    8×8 digits), it gets a padding of 2 as well. Tanh is the default because bounded activations lose less
    to clipping (Papernot et al., "Tempered Sigmoid Activations", 2021).
    """
    side = min(input_shape[1:])
    features = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(input_shape[0], 6, 5, padding=2 if side < 32 else 0),
            act1=activation(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5, padding=2 if side < 12 else 0),
            act2=activation(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
        )
    )
    head = nn.Sequential(
        OrderedDict(
            fc1=nn.Linear(flat_size(features, input_shape), 120),
            act1=activation(),
            fc2=nn.Linear(120, 84),
            act2=activation(),
            fc3=nn.Linear(84, classes),
        )
    )
    return nn.Sequential(OrderedDict(features=features, head=head))


MODELS = (
    ModelInfo(
        name="lenet5",
        summary="LeNet-5: 6 and 16 5×5 filters, FC 120, 84 (tanh)",
        make=lenet5,
        smallest_side=4,  # two halvings
    ),
)
