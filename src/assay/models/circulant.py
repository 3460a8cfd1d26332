"""Linear layers whose weight matrix consists of circulant blocks (GReDP, arXiv:2409.11663, Eq. 17-20).

One vector of d numbers defines each d×d block, so a layer has d times fewer weights than a dense one. Its product with
an input is a circular correlation, which the Fourier transform computes in O(n log d).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import ConfigError


def circulant_linear(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    """x Wᵀ + b over any leading dimensions, where W is the block-circulant matrix of `weight` [P, Q, d].

    Block row p of the output has the spectrum Σ_q conj(ŵ_pq) x̂_q. It takes the conjugate because Eq. 18 makes w the
    first *row* of its block; the formula printed below it holds for the first column.
    """
    rows, columns, d = weight.shape
    if x.numel() == 0:  # the transform refuses empty tensors
        return F.linear(x, dense_matrix(weight, out_features, x.shape[-1]), bias)
    dtype = x.dtype
    if dtype in (torch.float16, torch.bfloat16):  # the transform does not know these
        x = x.float()
    blocks = F.pad(x, (0, columns * d - x.shape[-1])).reshape(-1, columns, d)
    spectrum = torch.fft.rfft(blocks).permute(2, 0, 1)
    kernel = torch.fft.rfft(weight.to(x.dtype)).conj().permute(2, 1, 0)
    out: Tensor = torch.fft.irfft(torch.bmm(spectrum, kernel).permute(1, 2, 0), n=d)
    out = out.reshape(*x.shape[:-1], rows * d).to(dtype)
    if out_features < rows * d:
        out = out[..., :out_features].clone()  # in-place activations must not write to a view
    return out if bias is None else out + bias.to(dtype)


def dense_matrix(weight: Tensor, out_features: int, in_features: int) -> Tensor:
    """The matrix [out, in] of `weight` [P, Q, d]: entry (r, c) of block (p, q) is weight[p, q, (c - r) mod d]."""
    rows, columns, d = weight.shape
    step = torch.arange(d, device=weight.device)
    blocks = weight[:, :, (step - step.unsqueeze(1)) % d]  # [P, Q, r, c]
    return blocks.transpose(1, 2).reshape(rows * d, columns * d)[:out_features, :in_features]


class BlockCirculantLinear(nn.Module):
    """y = W x + b, where W [out, in] consists of d×d circulant blocks: exactly the product with `dense()`, by FFT.

    `weight` is [⌈out/d⌉, ⌈in/d⌉, d]. `weight[p, q]` is the first row of block (p, q), and each row is the one above it
    shifted right by one (Eq. 18). Where d does not divide a size, inputs are padded with zeros and outputs cropped.
    So d may exceed one of the sizes, but not both. Weights start with the same variance as in a dense layer.

    Args:
        in_features: the size of an input.
        out_features: the size of an output.
        block_size: d.
        bias: whether there is a bias b.

    Raises:
        ConfigError: a size is not a whole number of at least 1, or the blocks are larger than both sizes.

    >>> BlockCirculantLinear(8, 4, block_size=4).weight.shape
    torch.Size([1, 2, 4])
    """

    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, block_size: int, bias: bool = True) -> None:
        super().__init__()
        for field, value in (("in_features", in_features), ("out_features", out_features), ("block_size", block_size)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(field, value, "a whole number, 1 or above")
        if block_size > max(in_features, out_features):
            raise ConfigError("block_size", block_size, _largest(in_features, out_features))
        self.in_features, self.out_features, self.block_size = in_features, out_features, block_size
        rows, columns = math.ceil(out_features / block_size), math.ceil(in_features / block_size)
        self.weight = nn.Parameter(torch.empty(rows, columns, block_size))
        self.register_parameter("bias", nn.Parameter(torch.empty(out_features)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform on ±1/√in, as `nn.Linear` does: the same variance for every entry of the dense matrix."""
        bound = 1 / math.sqrt(self.in_features)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b over any leading dimensions."""
        if x.shape[-1:] != (self.in_features,):
            raise ConfigError("x", f"tensor of shape {tuple(x.shape)}", f"last dimension {self.in_features}")
        return circulant_linear(x, self.weight, self.bias, self.out_features)

    def dense(self) -> Tensor:
        """The matrix W [out, in]."""
        return dense_matrix(self.weight, self.out_features, self.in_features)

    def extra_repr(self) -> str:
        """The sizes, for `repr`."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, block_size={self.block_size}, "
            f"bias={self.bias is not None}"
        )


def replace_linear(model: nn.Module, block_size: int) -> list[str]:
    """Replace every trainable `nn.Linear` of `model`, in place, by a freshly initialised `BlockCirculantLinear`.

    Three kinds are left alone: subclasses and parametrised layers, which compute something else, and frozen layers,
    whose weights are worth keeping. A layer used in two places stays one layer. The parameters are new, so build the
    optimizer afterwards.

    Args:
        model: a module that contains linear layers.
        block_size: the size d of the blocks.

    Returns:
        One line for each layer that was changed.

    Raises:
        ConfigError: a layer cannot be replaced; the error names it, and the model is unchanged.

    >>> replace_linear(nn.Sequential(nn.Linear(8, 4)), block_size=4)
    ['0: Linear(8, 4) -> BlockCirculantLinear(8, 4, block 4): 32 -> 8 weights']
    """
    if type(model) is nn.Linear:
        raise ConfigError(
            "model", repr(model), "a module that contains linear layers; use BlockCirculantLinear in place of this one"
        )
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    made: dict[int, BlockCirculantLinear] = {}
    places: list[tuple[str, nn.Linear]] = []
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is not nn.Linear or not module.weight.requires_grad:
            continue
        if id(module) not in made:
            if any(owners[id(parameter)] > 1 for parameter in module.parameters()):
                raise ConfigError("model", name, "linear layers that share no parameter with another module")
            made[id(module)] = _replacement(model, name, module, block_size)
        places.append((name, module))
    for name, old in places:
        model.set_submodule(name, made[id(old)])
    return [_change(name, old, made[id(old)]) for name, old in places]


def _replacement(model: nn.Module, name: str, old: nn.Linear, block_size: int) -> BlockCirculantLinear:
    parent = model.get_submodule(name.rpartition(".")[0])
    if isinstance(parent, nn.TransformerEncoderLayer):
        raise ConfigError(
            "model", name, "linear layers that are called; TransformerEncoderLayer reads their weights itself"
        )
    if isinstance(block_size, int) and block_size > max(old.in_features, old.out_features):
        raise ConfigError("block_size", block_size, f"{_largest(old.in_features, old.out_features)}, for {name}: {old}")
    new = BlockCirculantLinear(old.in_features, old.out_features, block_size, bias=old.bias is not None)
    return new.to(old.weight).train(old.training)


def _largest(in_features: int, out_features: int) -> str:
    return f"at most {max(in_features, out_features)}, the larger of {in_features} inputs and {out_features} outputs"


def _change(name: str, old: nn.Linear, new: BlockCirculantLinear) -> str:
    sizes = f"{old.in_features}, {old.out_features}"
    return (
        f"{name}: Linear({sizes}) -> BlockCirculantLinear({sizes}, block {new.block_size}): "
        f"{old.weight.numel()} -> {new.weight.numel()} weights"
    )
