"""Linear, Embedding and the norms against the reference; in-place activations after every kind of layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.gradients.engine import Engine

from .oracle import agree, flat_norms, flat_sum


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lead", [(), (3,), (6, 2), (2, 3, 2)])
@pytest.mark.parametrize(("inputs", "outputs"), [(5, 4), (1, 1), (20, 30)], ids=["small", "one", "wide"])
def test_linear(lead: tuple[int, ...], bias: bool, inputs: int, outputs: int) -> None:
    # the wide one is larger than its factors and is never built; the small one is kept
    agree(
        nn.Sequential(nn.Linear(inputs, outputs, bias=bias), nn.Tanh(), nn.Linear(outputs, 3)),
        torch.randn(4, *lead, inputs),
    )


def test_the_model_itself_is_a_layer() -> None:
    agree(nn.Linear(5, 3), torch.randn(4, 5))


def test_linear_on_views_that_are_not_contiguous() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 5), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(self.first(x.transpose(1, 2)).transpose(1, 2))
            return out

    agree(Turned(), torch.randn(4, 6, 4))


def test_linear_whose_input_or_gradient_is_a_broadcast_view() -> None:
    class Broadcast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(5, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.inner(x.unsqueeze(1).expand(-1, 7, -1)).sum(1))
            return out

    agree(Broadcast(), torch.randn(4, 5), loss=lambda output, target: output.sum(1))


@pytest.mark.parametrize("padding_idx", [None, 0, -1])
@pytest.mark.parametrize("shape", [(4,), (4, 7), (4, 2, 3), (3, 200)], ids=str)
def test_embedding(shape: tuple[int, ...], padding_idx: int | None) -> None:
    # 11 rows, so that indices repeat within a record and across records, the padding among them
    x = torch.randint(0, 11, shape)
    x.view(len(x), -1)[0, 0], x.view(len(x), -1)[-1, -1] = 0, 10
    agree(nn.Sequential(nn.Embedding(11, 6, padding_idx=padding_idx), nn.Tanh(), nn.Linear(6, 2)), x)


def test_sparse_embedding_is_an_embedding() -> None:
    # the reference cannot take it: vmap has no rule for sparse gradients
    x, table = torch.randint(0, 11, (4, 7)), torch.randn(11, 6)
    sums = []
    for sparse in (False, True):
        model = nn.Sequential(nn.Embedding.from_pretrained(table.clone(), freeze=False, sparse=sparse))
        engine = Engine(model)
        for _ in range(2):
            grads = engine.collect(model(x).tanh().flatten(1).sum(1))
            sums.append(flat_sum(grads, 1 / flat_norms(grads))["0.weight"])
    assert all(torch.equal(total, sums[0]) for total in sums)


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=str)
def test_embedding_that_looks_at_the_whole_batch_is_refused(option: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Embedding(11, 6, **option))
    with pytest.raises(UnsupportedModelError, match=next(iter(option))):
        Engine(model).collect(model(torch.randint(0, 11, (4, 7))).flatten(1).sum(1))


def test_embedding_of_one_index_repeated() -> None:
    agree(nn.Sequential(nn.Embedding(3, 4), nn.Tanh()), torch.zeros(4, 9, dtype=torch.long))


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(6),
        nn.LayerNorm(6, bias=False),
        nn.LayerNorm((5, 6)),
        nn.LayerNorm((5, 6), bias=False, eps=0.1),
        nn.LayerNorm((4, 5, 6)),
        nn.RMSNorm(6),
        nn.RMSNorm((5, 6), eps=0.1),
        nn.GroupNorm(2, 4),
        nn.GroupNorm(4, 4),
        nn.GroupNorm(1, 4, eps=0.1),
        nn.InstanceNorm2d(4, affine=True),
        nn.InstanceNorm2d(4, affine=True, eps=0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_norms_on_maps(norm: nn.Module, first: bool) -> None:
    layers = (norm, nn.Tanh(), nn.Linear(6, 3)) if first else (nn.Linear(6, 6), norm, nn.Tanh(), nn.Linear(6, 3))
    agree(nn.Sequential(*layers), torch.randn(4, 4, 5, 6))


@pytest.mark.parametrize(
    ("norm", "record"),
    [
        (nn.GroupNorm(2, 6), (6,)),
        (nn.GroupNorm(3, 6), (6, 5)),
        (nn.GroupNorm(2, 6), (6, 2, 3, 2)),
        (nn.InstanceNorm1d(6, affine=True), (6, 5)),
        (nn.InstanceNorm3d(6, affine=True), (6, 2, 3, 2)),
        (nn.LayerNorm(6), (6,)),
        (nn.RMSNorm(6), (6,)),
    ],
    ids=str,
)
def test_norms_in_other_dimensions(norm: nn.Module, record: tuple[int, ...]) -> None:
    agree(nn.Sequential(norm, nn.Tanh()), torch.randn(4, *record))


def test_norms_after_a_layer_whose_bias_they_cancel() -> None:
    # the true gradient of the first bias is zero
    agree(nn.Sequential(nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.Tanh()), torch.randn(4, 2, 8))


@pytest.mark.parametrize("affine", ["weight", "bias"])
@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)], ids=str)
def test_half_frozen_norm(norm: nn.Module, affine: str) -> None:
    norm.get_parameter(affine).requires_grad_(False)
    agree(nn.Sequential(nn.Linear(6, 6), norm, nn.Tanh()), torch.randn(4, 4, 6))


class Add(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return x


class ZeroPart(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x[:, :1] *= 0.5
        return x


class Relu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(x)


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 6), (6,)),
    "linear without bias": (nn.Linear(6, 6, bias=False), (6,)),
    "linear on sequences": (nn.Linear(6, 6), (5, 6)),
    "linear on sequences without bias": (nn.Linear(6, 6, bias=False), (5, 6)),
    "wide linear on sequences": (nn.Linear(6, 30), (2, 6)),
    "linear on maps": (nn.Linear(6, 6), (2, 5, 6)),
    "conv1d": (nn.Conv1d(2, 3, 3), (2, 6)),
    "conv2d": (nn.Conv2d(2, 3, 3), (2, 5, 6)),
    "conv2d without bias": (nn.Conv2d(2, 3, 3, bias=False), (2, 5, 6)),
    "conv2d circular": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 5, 6)),
    "conv3d": (nn.Conv3d(2, 3, 2), (2, 3, 3, 6)),
    "layer norm": (nn.LayerNorm(6), (5, 6)),
    "rms norm": (nn.RMSNorm(6), (5, 6)),
    "group norm": (nn.GroupNorm(2, 4), (4, 6)),
    "instance norm": (nn.InstanceNorm1d(4, affine=True), (4, 6)),
    "prelu": (nn.PReLU(), (4, 6)),
    "transposed convolution": (nn.ConvTranspose1d(2, 3, 2), (2, 6)),
}


@pytest.mark.parametrize(
    "after", [nn.ReLU(inplace=True), nn.LeakyReLU(0.1, inplace=True), Relu(), Add(), ZeroPart()], ids=repr
)
@pytest.mark.parametrize("name", LAYERS)
def test_changed_in_place_right_after(name: str, after: nn.Module) -> None:
    layer, record = LAYERS[name]
    x = torch.randn(4, *record)
    agree(nn.Sequential(layer, after), x)  # the first layer: nothing before it requires grad
    agree(nn.Sequential(nn.Linear(6, 6), layer, after), x)


@pytest.mark.parametrize("after", [nn.ReLU(inplace=True), Add(), ZeroPart()], ids=repr)
def test_embedding_changed_in_place_right_after(after: nn.Module) -> None:
    agree(nn.Sequential(nn.Embedding(11, 6), after, nn.Linear(6, 2)), torch.randint(0, 11, (4, 7)))


class Bags(nn.Module):
    """Rows of indices as bags: a matrix, or a vector with offsets and bags of different sizes."""

    def __init__(self, form: str, *, weighted: bool = False, **option: Any) -> None:
        super().__init__()
        self.bag, self.form, self.weighted = nn.EmbeddingBag(9, 4, **option), form, weighted

    def forward(self, x: Tensor) -> Tensor:
        weights = (x.to(self.bag.weight.dtype) + 1).sqrt() if self.weighted else None
        if self.form == "matrix":
            return self.bag(x, per_sample_weights=weights).tanh()
        sizes = x[:, 0] % (x.shape[1] + 1)
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        inside = torch.arange(x.shape[1]) < sizes.unsqueeze(1)
        return self.bag(
            x[inside],
            offsets if self.bag.include_last_offset else offsets[:-1],
            None if weights is None else weights[inside],
        ).tanh()


@pytest.mark.parametrize("form", ["matrix", "vector"])
@pytest.mark.parametrize(
    "option",
    [
        {"mode": "sum"},
        {"mode": "mean"},
        {"mode": "max"},
        {"mode": "mean", "padding_idx": 2},
        {"mode": "max", "padding_idx": -1},
        {"mode": "sum", "weighted": True},
        {"mode": "sum", "include_last_offset": True},
    ],
    ids=str,
)
def test_bags_of_rows(form: str, option: dict[str, Any]) -> None:
    agree(Bags(form, **option), torch.randint(0, 9, (5, 6)), batched=False)


def test_bags_of_a_large_table_take_no_copy_for_each_record() -> None:
    """The fallback would take 4 GB here."""
    model = nn.Sequential(nn.EmbeddingBag(250_000, 64), nn.Linear(64, 2))
    x = torch.randint(0, 250_000, (64, 20))
    engine = Engine(model)
    assert not engine.expanded()
    assert flat_norms(engine.collect(model(x).square().sum(1))).isfinite().all()
