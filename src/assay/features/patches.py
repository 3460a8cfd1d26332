"""What a picture has in common with patches of generated pictures, and its scattering coefficients.

Coates, Lee and Ng: "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", AISTATS 2011. Thiry,
Arbel, Belilovsky and Oyallon: "The Unreasonable Effectiveness of Patches in Deep Convolutional Kernels Methods", ICLR
2021, arXiv:2101.07528. They take patches from the training records, which would have to be paid for. Here patches come
from leaves of random size, shape and colour that fall on each other, so no photograph takes part. Such pictures have
edges, corners and sizes of things roughly as in photographs: Lee, Mumford and Huang: "Occlusion Models for Natural
Images", IJCV 41, 2001, doi:10.1023/A:1011109015675; as public data for learning: Baradad, Wulff, Wang, Isola and
Torralba: "Learning to See by Looking at Noise", NeurIPS 2021, arXiv:2106.05963.

What is learned from the generated pictures is computed where it is needed, or once by `assay models patches`, which
writes it as a file with its recipe. Both are the same to the bit on one machine; on another, sums may round otherwise.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from assay.errors import ConfigError
from assay.features.opponent import Opponent
from assay.features.pictures import check_picture
from assay.features.scatter import Scatter
from assay.randomness.streams import Seeded

_MOST = 4096  # patches
_SMALLEST = 16  # side of a picture: scattering halves it twice
_SIDE = 6  # of a patch
_PLACES = 3  # rows and columns of places over which is averaged
_FLOOR = 1e-2  # added to the variance of each direction before whitening, times their mean
_LEAST = 0.25  # a smaller cosine does not count
_FLAT = 0.25  # the share of patches that are left out as too flat
_DRAWN = 40_000  # patches from which the covariance is computed
_PICTURES, _SCALED = 1500, 250  # generated for patches; those of them that decide the scales
_AT_ONCE = 2  # pictures whose maps fit into a core's cache

_PARTS = "scattering", "resemblance"

_LEAVES = 120  # on a picture
_WIDEST, _NARROWEST = 1 / 2, 1 / 32  # half a leaf's width, in sides of the picture
_LONGEST = 1.0  # the logarithm of a leaf's length over its width
_MARGIN = 1 / 4  # how far outside the picture a leaf's centre may be, in sides
_GREY, _COLOUR, _SHADE = 0.5, 0.12, 0.64  # spreads of brightness, of colour, and of brightness within a leaf


@dataclass(frozen=True, kw_only=True)
class Patches:
    """Scattering coefficients and resemblance to whitened patches, each averaged over 3 by 3 places of the picture.

    A place's resemblance to a patch is the cosine of the angle between both, less 1/4; the same to the patch's
    negative. Of its average the square root is taken. Both descriptions have the mean of those of generated pictures
    subtracted and are divided by their spread, so that they weigh about the same.

    Attributes:
        count: how many patches.
        weights: a file by `assay models patches`, in place of computing them.
        sha256: the SHA-256 of that file, which must be given with it.

    Raises:
        ConfigError: `count` is out of range, or the file is not there, not such a file, or another one.
    """

    name: ClassVar[str] = "patches"
    signed_pixels: ClassVar[bool] = True

    count: int = 256
    weights: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        _check_count(self.count)
        if self.weights or self.sha256:
            _check_kept(_kept(self.weights, self.sha256), self.count, None)

    def check(self, shape: tuple[int, ...]) -> None:
        check_picture(self, shape, least=_SMALLEST, channels=3)
        if self.weights:
            _check_kept(_kept(self.weights, self.sha256), self.count, shape)

    def made_with(self) -> str:
        return Scatter().made_with() + (f"; weights {self.sha256}" if self.weights else "")

    def extract(self, x: Tensor) -> Tensor:
        bank = _kept(self.weights, self.sha256)[0] if self.weights else _bank(self.count, x.shape[2], x.shape[3])
        parts = zip(_descriptions(bank.patches, x), bank.means, bank.spreads, strict=True)
        return torch.cat([(part - mean) / spread for part, mean, spread in parts], 1)

    def describe(self) -> str:
        return (
            f"scattering coefficients and resemblance to {self.count} patches of generated pictures (dead leaves), "
            f"averaged over {_PLACES}×{_PLACES} places ({self.made_with()})"
        )


def weights(count: int, shape: tuple[int, ...]) -> bytes:
    """A safetensors file of everything that is learned from generated pictures, with its recipe.

    Args:
        count: How many patches.
        shape: The shape of the pictures whose features will be computed.

    Returns:
        The file. The same again at every call on one machine.

    Raises:
        ConfigError: There are no such patches.

    >>> len(weights(4, (3, 16, 16))) == len(weights(4, (3, 16, 16)))
    True
    """
    _check_count(count)
    check_picture(Patches(count=count), shape, least=_SMALLEST, channels=3)
    bank = _bank(count, *shape[1:])
    tensors = {"matrix": bank.patches.matrix, "shift": bank.patches.shift}
    for name, mean, spread in zip(_PARTS, bank.means, bank.spreads, strict=True):
        tensors |= {f"{name}.mean": mean, f"{name}.spread": spread}
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return save(whole, {"recipe": json.dumps(_recipe(count, shape))})


def _recipe(count: int, shape: tuple[int, ...]) -> dict[str, object]:
    """What the weights follow from, with the pictures' own settings."""
    return {
        "what": "whitened patches of generated pictures, and means and spreads of what is said of such pictures",
        "made by": f"assay models patches --count {count} --shape {','.join(map(str, shape))}",
        "pictures": {
            "kind": "dead leaves",
            "seed": 0,
            "count": _PICTURES,
            "side": max(shape[1:]),
            "leaves": _LEAVES,
            "half width": [_NARROWEST, _WIDEST],
            "spreads of brightness, colour and shade": [_GREY, _COLOUR, _SHADE],
        },
        "patches": {"count": count, "side": _SIDE, "drawn": _DRAWN, "floor": _FLOOR, "left out as flat": _FLAT},
        "scales": {"pictures": _SCALED, "places": _PLACES, "least cosine": _LEAST},
        "shape": list(shape),
    }


def _check_count(count: int) -> None:
    if not 2 <= count <= _MOST:
        raise ConfigError("features patches count", count, f"a whole number from 2 to {_MOST}")


@dataclass(frozen=True)
class _Whitened:
    """Whitened patches and the whitening itself, as one matrix on a place's pixels."""

    matrix: Tensor
    shift: Tensor
    count: int

    def resemblance(self, x: Tensor) -> Tensor:
        """[B, 2 · count · 9] for pictures [B, 3, height, width]."""
        height, width = (side - _SIDE + 1 for side in x.shape[2:])
        outputs = self.matrix @ F.unfold(x, _SIDE) + self.shift
        lengths = outputs[:, self.count :].norm(dim=1, keepdim=True).clamp_min(1e-3)
        cosines = outputs[:, : self.count] / lengths
        both = torch.cat([(cosines - _LEAST).relu_(), (-cosines - _LEAST).relu_()], 1).unflatten(2, (height, width))
        return F.adaptive_avg_pool2d(both, _PLACES).flatten(1).sqrt()


@dataclass(frozen=True)
class _Bank:
    """All that follows from the generated pictures."""

    patches: _Whitened
    means: list[Tensor]
    spreads: list[Tensor]


@lru_cache(maxsize=2)
def _kept(path: str, sha256: str) -> tuple[_Bank, dict[str, object]]:
    """What a file holds, and its recipe. The file is read once."""
    field = "features patches weights"
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(field, path, f"a file that can be read: {error.strerror}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise ConfigError(field, path, f"its SHA-256 beside it, as sha256={digest} is that of this file")
    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        recipe = json.loads(header["__metadata__"]["recipe"])
        whitened = _Whitened(tensors["matrix"], tensors["shift"], recipe["patches"]["count"])
        means, spreads = ([tensors[f"{name}.{what}"] for name in _PARTS] for what in ("mean", "spread"))
    except (SafetensorError, KeyError, ValueError) as error:
        raise ConfigError(field, path, "a file by `assay models patches`") from error
    bank = _Bank(whitened, means, spreads)
    return bank, recipe


def _check_kept(kept: tuple[_Bank, dict[str, object]], count: int, shape: tuple[int, ...] | None) -> None:
    """Refuse weights for other patches or for pictures of another shape."""
    bank, recipe = kept
    if bank.patches.count != count:
        raise ConfigError("features patches count", count, f"count={bank.patches.count}, as in the file of weights")
    if shape is not None and recipe["shape"] != list(shape):
        raise ConfigError("features patches weights", f"for pictures of shape {recipe['shape']}", f"for {list(shape)}")


@lru_cache(maxsize=1)
def _bank(count: int, height: int, width: int) -> _Bank:
    pictures = dead_leaves(_PICTURES, max(height, width))[:, :, :height, :width].contiguous()
    with torch.no_grad():
        patches = _whitened(pictures, count)
        described = _descriptions(patches, pictures[:_SCALED])
    means = [some.mean(0) for some in described]
    size = sum(some.shape[1] for some in described)
    spreads = [
        (some - mean).square().sum(1).mean().sqrt() * (2 / size) ** 0.5
        for some, mean in zip(described, means, strict=True)
    ]
    return _Bank(patches, means, spreads)


def _descriptions(patches: _Whitened, x: Tensor) -> list[Tensor]:
    """The scattering coefficients of pictures, and their resemblance to patches."""
    maps = Opponent().around(Scatter().extract, x)
    windows = [(side // 2, side // 4) for side in maps.shape[2:]]
    sizes, steps = zip(*windows, strict=True)
    scattered = F.avg_pool2d(maps, sizes, steps)[:, :, :_PLACES, :_PLACES].flatten(1)
    parts = (x,) if torch.compiler.is_exporting() else x.split(_AT_ONCE)
    return [scattered, torch.cat([patches.resemblance(part) for part in parts])]


def _whitened(pictures: Tensor, count: int) -> _Whitened:
    """`count` patches of public pictures that are not flat, and the whitening by the covariance of patches."""
    drawn = _cut(pictures, _DRAWN)
    mean = drawn.mean(0)
    covariance = (drawn - mean).T @ (drawn - mean) / len(drawn)
    variances, axes = torch.linalg.eigh(covariance)
    whitening = (axes * (variances + _FLOOR * variances.mean()).rsqrt()) @ axes.T
    some = drawn[: 4 * count]
    contrast = some.std(1)
    kept = F.normalize((some[contrast > contrast.quantile(_FLAT)][:count] - mean) @ whitening)
    matrix = torch.cat([kept @ whitening, whitening])
    return _Whitened(matrix.float(), -(matrix @ mean).float()[:, None], len(kept))


def _cut(pictures: Tensor, count: int) -> Tensor:
    """Patches at random places of random pictures, in float64: [count, 3 · side²]."""
    stream = Seeded(0).stream("patches", count)
    which = stream.integers(len(pictures), count)
    row, column = (stream.integers(side - _SIDE + 1, count) for side in pictures.shape[2:])
    windows = pictures.unfold(2, _SIDE, 1).unfold(3, _SIDE, 1)
    return windows[which, :, row, column].flatten(1).double()


def dead_leaves(count: int, side: int) -> Tensor:
    """The first `count` generated pictures: [count, 3, side, side] in float32, pixels from -1 to 1.

    They are the same at every call. The frequency of leaves falls with the third power of their width.
    """
    stream = Seeded(0).stream("dead leaves", side)
    places = (torch.arange(side) + 0.5) / side
    return torch.stack(
        [_picture(stream.uniform(12 * _LEAVES).float().view(12, -1, 1, 1), places) for _ in range(count)]
    )


def _picture(drawn: Tensor, places: Tensor) -> Tensor:
    """One picture from twelve numbers between 0 and 1 for each leaf, the uppermost leaf first."""
    width = (_NARROWEST**-2 + drawn[0] * (_WIDEST**-2 - _NARROWEST**-2)) ** -0.5
    middle = drawn[1:3] * (1 + 2 * _MARGIN) - _MARGIN
    across, down = places - middle[0], places[:, None] - middle[1]
    angle, length = drawn[3] * torch.pi, width * (drawn[4] * _LONGEST).exp()
    along = (angle.cos() * across + angle.sin() * down) / length
    aside = (angle.cos() * down - angle.sin() * across) / width
    oval, square = along**2 + aside**2 <= 1, (along.abs() <= 1) & (aside.abs() <= 1)
    inside = torch.where(drawn[5] < 0.5, oval, square)
    inside[-1] = True  # the last leaf is the ground
    seen = inside.int().argmax(0)
    normal = torch.special.ndtri(drawn[6:].clamp(1e-6, 1 - 1e-6))
    colour = ((_GREY * normal[0]).clamp(-1, 1) + _COLOUR * normal[1:4]).clamp(-1, 1).flatten(1)
    shade = _SHADE * (normal[4] * across + normal[5] * down)
    pixels: Tensor = colour[:, seen] + shade.gather(0, seen[None])
    return pixels.clamp(-1, 1)
