"""Whatever has no rule of its own: attention, recurrence, bare parameters, own forwards, parametrised layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from assay.errors import UnsupportedModelError
from assay.gradients.engine import Engine

from .oracle import agree, trained


class Attention(nn.Module):
    """Takes records first; the attention inside may want them second."""

    def __init__(self, batch_first: bool, *, mask: str = "", need_weights: bool = True, **arguments: Any) -> None:
        super().__init__()
        self.batch_first, self.mask, self.need_weights = batch_first, mask, need_weights
        self.embed = nn.Linear(5, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first, **arguments)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        masks: dict[str, Tensor] = {}
        if self.mask == "padding":
            masks["key_padding_mask"] = torch.cat(
                [torch.zeros_like(x[:, :1, 0], dtype=torch.bool), x[:, 1:, 0] > 0.5], 1
            )
        if self.mask == "causal":
            masks["attn_mask"] = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        h = self.embed(x)
        h = h if self.batch_first else h.transpose(0, 1)
        h, given = self.attention(h, h, h, need_weights=self.need_weights, **masks)
        assert (given is not None) == self.need_weights
        h = h if self.batch_first else h.transpose(0, 1)
        out: Tensor = self.head(h).tanh().mean(1)
        return out if given is None else out + given.flatten(1).square().sum(1, keepdim=True)


@pytest.mark.parametrize("length", [6, 4], ids=["", "as long as the batch"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", ["", "padding", "causal"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention(batch_first: bool, mask: str, need_weights: bool, length: int) -> None:
    agree(Attention(batch_first, mask=mask, need_weights=need_weights), torch.randn(4, length, 5))


@pytest.mark.parametrize("option", [{"bias": False}, {"add_bias_kv": True}, {"kdim": 8, "vdim": 8}], ids=str)
def test_attention_with_options(option: dict[str, Any]) -> None:
    agree(Attention(True, **option), torch.randn(4, 6, 5))


def test_attention_mask_for_each_record_and_head_is_refused() -> None:
    attention = nn.MultiheadAttention(
        8, 2, batch_first=True, add_bias_kv=True
    )  # torch's own classes without it have a rule
    Engine(attention)
    x = torch.randn(4, 6, 8)
    with pytest.raises(UnsupportedModelError, match="attn_mask"):
        attention(x, x, x, attn_mask=torch.zeros(8, 6, 6))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_encoder_layer(norm_first: bool, activation: str) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation, batch_first=True, norm_first=norm_first)
    agree(nn.Sequential(layer, nn.Linear(8, 3)), torch.randn(4, 6, 8))


def test_transformer_encoder() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    agree(nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)), torch.randn(4, 6, 8))


class Scale(nn.Module):
    def __init__(self, shape: tuple[int, ...] = (6,)) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class VisionTransformer(nn.Module):
    """A class token and positions: bare parameters of a container with layers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.patches = nn.Conv2d(2, 8, 2, stride=2)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.positions
        out: Tensor = self.head(self.block(h)[:, 0])
        return out


class Interpolate(nn.Module):
    """Several tensors in, a dictionary with an absent entry out, options that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor, *, pair: tuple[Tensor, Tensor], power: int) -> dict[str, Any]:
        return {"mixed": self.a * pair[0] + (1 - self.a) * pair[1], "absent": None, "power": (x * self.a).pow(power)}


class UsesInterpolate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(6, 6), Interpolate()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out = self.inner(x, pair=(h, h.sin()), power=2)
        assert out["absent"] is None
        total: Tensor = out["mixed"] + out["power"]
        return total


class Doubled(nn.Linear):
    """Keeps the parameters of Linear and computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, 2 * self.weight, self.bias).tanh() + self.weight.sum()


class WithGate(nn.Linear):
    """Keeps the forward of Linear and adds a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.gate = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gate


class Plain(nn.Linear):
    """A subclass that computes what Linear does."""


class Standardised(nn.Conv1d):
    """Keeps the forward of the convolution and changes what it calls."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean((1, 2), keepdim=True), bias)


class OwnNorm(nn.InstanceNorm1d):
    """A subclass that computes what InstanceNorm does."""


class TwoCells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(6, 4), nn.GRUCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, c = self.lstm(x)
        out: Tensor = self.gru(h, self.lstm(x, (h, c))[0])
        return out


class Branches(nn.Module):
    """Control flow that depends on the record: nothing can batch it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1:
            return torch.cat([self(row.unsqueeze(0)) for row in x])
        return x * (self.up if x.sum() > 0 else self.down)


@pytest.mark.parametrize(
    ("layers", "record", "batched"),
    [
        ((nn.Linear(6, 6), Scale(), nn.Linear(6, 3)), (6,), True),
        ((Scale(()),), (5, 6), True),
        ((VisionTransformer(),), (2, 4, 4), True),
        ((UsesInterpolate(),), (6,), True),
        ((Doubled(6, 4), nn.Linear(4, 2)), (6,), True),
        ((Doubled(6, 4), nn.Linear(4, 2)), (5, 6), True),
        ((WithGate(), nn.Tanh()), (5, 6), True),
        ((Plain(6, 4), nn.Tanh(), Plain(4, 4)), (6,), True),
        ((Standardised(6, 4, 3), nn.Tanh()), (6, 5), True),
        ((OwnNorm(6, affine=True), nn.Tanh()), (6, 5), True),
        ((TwoCells(),), (6,), False),
        ((nn.Linear(6, 6), Branches()), (6,), False),
        ((nn.PReLU(6), nn.ConvTranspose1d(6, 3, 3, stride=2), nn.PReLU()), (6, 5), True),
        ((nn.ConvTranspose2d(2, 3, 3, padding=1), nn.Tanh()), (2, 4, 4), True),
        ((nn.ConvTranspose1d(2, 3, 3, padding=1, output_padding=1, dilation=2), nn.Tanh()), (2, 5), True),
    ],
    ids=lambda value: (
        "+".join(type(v).__name__ for v in value)
        if isinstance(value, tuple) and isinstance(value[0], nn.Module)
        else ""
    ),
)
def test_module_without_a_rule(layers: tuple[nn.Module, ...], record: tuple[int, ...], batched: bool) -> None:
    agree(nn.Sequential(*layers), torch.randn(4, *record), batched=batched)


def test_bilinear() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Bilinear(3, 3, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.both(x[:, :3], x[:, 3:]).tanh()
            return out

    agree(Pairs(), torch.randn(4, 6))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "layer",
    [lambda bias: nn.Linear(6, 4, bias=bias), lambda bias: nn.Conv1d(6, 4, 3, bias=bias)],
    ids=["linear", "convolution"],
)
def test_parametrised(layer: Any, bias: bool) -> None:
    record = (6,) if isinstance(layer(bias), nn.Linear) else (6, 5)
    agree(nn.Sequential(parametrizations.weight_norm(layer(bias)), nn.Tanh()), torch.randn(4, *record))


class Container(nn.Module):
    """A bare parameter, and below it one layer in two places and one parameter in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))
        layer, tied = nn.Linear(6, 6), nn.Linear(6, 6)
        tied.weight = layer.weight
        self.layers = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), tied)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x * self.scale)
        return out


def test_shared_layers_below_a_bare_parameter() -> None:
    agree(Container(), torch.randn(4, 6))
    model = Container()
    before = dict(model.named_parameters())
    Engine(model).collect(model(torch.randn(4, 6)).sum(1))
    assert all(p is before[name] for name, p in model.named_parameters())
    assert isinstance(model.layers[0].weight, nn.Parameter)


class Biased(nn.Module):
    """Adds a table that all records share, given as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return torch.softmax(x @ x.mT + self.strength * table, -1) @ x


class UsesTable(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.inner = Biased()
        self.register_buffer("table", torch.randn(length, length))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x, self.table)
        return out


def test_argument_that_all_records_share() -> None:
    agree(UsesTable(6), torch.randn(4, 6, 5))


def test_shared_argument_as_long_as_the_batch_is_right_or_refused() -> None:
    """A [T, T] table and T records look like one row a record; what must not happen is another function."""
    model, x = trained(UsesTable(4)), torch.randn(4, 4, 5).double()
    plain = model(x).detach()
    engine = Engine(model)
    try:
        output = model(x)
        engine.collect(output.flatten(1).sum(1))
    except UnsupportedModelError:
        return
    torch.testing.assert_close(output.detach(), plain)


def test_shared_argument_stays_shared_in_a_later_batch_of_as_many_records() -> None:
    """Taken for one row a record there, one record more or less would change the gradients of all others."""
    model, x = trained(UsesTable(6)), torch.randn(12, 6, 5).double()
    engine = Engine(model)

    def gradients(records: int) -> Tensor:
        return engine.collect(model(x[:records]).flatten(1).square().sum(1)).per_record()["inner.strength"]

    gradients(12)
    assert engine.proven
    torch.testing.assert_close(gradients(6)[:5], gradients(5))


def test_argument_that_was_one_row_a_record_and_is_not_any_more_is_proven_again() -> None:
    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Biased()

        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            out: Tensor = self.inner(x, table)
            return out

    model, plain = trained(TwoInputs()), trained(TwoInputs())
    plain.load_state_dict(model.state_dict())
    engine = Engine(model)
    x, shared = torch.randn(4, 3, 5).double(), torch.randn(3, 3).double()
    engine.collect(model(x, torch.randn(4, 3, 3).double()).flatten(1).square().sum(1))
    for records in (4, 3, 2):  # as many records as the table has rows among them
        found = engine.collect(model(x[:records], shared).flatten(1).square().sum(1)).per_record()
        for i in range(records):
            alone = plain(x[i : i + 1], shared).square().sum()
            for (name, _), g in zip(
                plain.named_parameters(), torch.autograd.grad(alone, list(plain.parameters())), strict=True
            ):
                torch.testing.assert_close(found[name][i], g)
