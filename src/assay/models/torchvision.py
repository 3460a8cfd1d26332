"""torchvision's ResNet-18 checkpoint as `resnet18`: the same layers under other names, with frozen BatchNorm.

With stored statistics BatchNorm is a fixed affine map of each channel. So the result is exactly torchvision's network
in eval mode. The scales and shifts of BatchNorm stay constant too, because they belong to those statistics.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from assay.errors import ConfigError
from assay.models.norm import FrozenBatchNorm
from assay.models.resnet import imagenet_stem, resnet18

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels in [0, 1], per channel
_NAMES = {
    "downsample.0": "shortcut.conv",
    "downsample.1": "shortcut.norm",
    "layer": "stages.stage",
    "bn": "norm",
}


def is_torchvision(tensors: Mapping[str, Tensor]) -> bool:
    """Whether this state dict comes from one of torchvision's ResNets."""
    return {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight"} <= tensors.keys()


def adopt(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn `model`, in place, into torchvision's network, and rename the checkpoint's tensors to fit it.

    The stem becomes ImageNet's (7×7, stride 2, max-pool), whatever the size of the images, and rescales pixels from
    [-1, 1] as torchvision rescales them from [0, 1]. Every GroupNorm becomes a `FrozenBatchNorm` that is not trained.
    The last layer stays as it is.

    Returns:
        The checkpoint's tensors under the model's names.

    Raises:
        ConfigError: the model is not `resnet18` on images of three channels.
    """
    with torch.device("meta"):
        like = resnet18((3, 224, 224), 2)
    last = {"fc.weight", "fc.bias"}
    if model.state_dict().keys() - last != like.state_dict().keys() - last:
        raise ConfigError("init", "a checkpoint of torchvision's ResNet-18", "model resnet18 with this checkpoint")
    if model.get_parameter("stem.conv.weight").shape[1] != 3:
        raise ConfigError(
            "init", "a checkpoint of torchvision's ResNet-18", "images of three channels with this checkpoint"
        )
    pixels = _pixels()
    model.set_submodule(
        "stem", nn.Sequential(OrderedDict(pixels=pixels, **dict(imagenet_stem(3, 64).named_children())))
    )
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.GroupNorm):
            frozen = FrozenBatchNorm(nn.BatchNorm2d(module.num_channels))
            model.set_submodule(name, frozen.requires_grad_(False))
    ours = {_renamed(name): t for name, t in tensors.items() if not name.endswith("num_batches_tracked")}
    return ours | {f"stem.pixels.{name}": t for name, t in pixels.state_dict().items()}


def is_adopted(model: nn.Module) -> bool:
    """Whether `adopt` has turned this model into torchvision's network, which rescales pixels from [-1, 1]."""
    return any(name == "stem.pixels" for name, _ in model.named_modules())


def _renamed(name: str) -> str:
    if name.startswith(("conv1.", "bn1.")):  # the stem
        return "stem." + name.replace("conv1", "conv").replace("bn1", "norm")
    for theirs, ours in _NAMES.items():
        name = name.replace(theirs, ours)
    return name


def _pixels() -> FrozenBatchNorm:
    """Maps pixels from [-1, 1] to what torchvision's weights expect: (p - mean)/std for p in [0, 1]."""
    scaled = nn.BatchNorm2d(3, eps=0.0, affine=False)
    scaled.running_mean = 2 * torch.tensor(_MEAN) - 1
    scaled.running_var = (2 * torch.tensor(_STD)).square()
    return FrozenBatchNorm(scaled)
