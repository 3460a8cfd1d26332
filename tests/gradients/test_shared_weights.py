"""One parameter used in several places: its gradients add up before anything is clipped."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.gradients.engine import Engine

from .oracle import agree, flat_norms, squared_error, trained, whole_norms
from .reference import per_record_gradients


class TiedLanguageModel(nn.Module):
    """Embedding and output layer share one table."""

    def __init__(self, words: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.inner = nn.Linear(width, width)
        self.head = nn.Linear(width, words, bias=bias)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(self.table(x)).tanh())
        return out


def next_word(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.transpose(1, 2), target, reduction="none").mean(1)


@pytest.mark.parametrize(("words", "width", "length"), [(11, 6, 7), (60, 6, 2), (11, 6, 40)])
@pytest.mark.parametrize("bias", [True, False])
def test_embedding_and_head(words: int, width: int, length: int, bias: bool) -> None:
    # few positions keep the factors, many build the product
    x, y = torch.randint(0, words, (2, 4, length))
    agree(TiedLanguageModel(words, width, bias=bias), x, y, next_word)


def test_embedding_and_head_of_one_position() -> None:
    class Cloze(TiedLanguageModel):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.table(x).mean(1))
            return out

    agree(Cloze(30, 5, bias=True), torch.randint(0, 30, (4, 6)))


def test_tied_embedding_with_padding() -> None:
    # the padding row gets no gradient as an input and its full gradient as an output
    model = TiedLanguageModel(11, 6, bias=True)
    model.table.padding_idx = 0
    x, y = torch.randint(0, 3, (2, 4, 7))
    agree(model, x, y, next_word)


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("record", [(6,), (5, 6), (2, 6), (30, 6)], ids=str)
def test_same_linear_several_times(record: tuple[int, ...], times: int) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(times):
                x = F.relu(self.cell(x), inplace=True) + 0.1
            return x

    agree(Loop(), torch.randn(4, *record))


def test_linear_on_vectors_and_on_sequences() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(12, 12)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.cell(self.cell(x).tanh().mean(1)).tanh() + self.cell(x).sum(1)
            return out

    agree(Both(), torch.randn(4, 3, 12))


@pytest.mark.parametrize(("channels", "side"), [(2, 8), (40, 3)], ids=["kept", "factors"])
def test_same_convolution_twice_on_different_sizes(channels: int, side: int) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Conv2d(channels, channels, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.cell(x), inplace=True)
            out: Tensor = self.cell(h[..., 1:])
            return out

    agree(Loop(), torch.randn(4, channels, side, side))


@pytest.mark.parametrize("norm", [nn.LayerNorm((4, 6)), nn.GroupNorm(2, 4)], ids=str)
def test_same_norm_twice(norm: nn.Module) -> None:
    agree(nn.Sequential(norm, nn.Tanh(), nn.Linear(6, 6), norm, nn.Tanh()), torch.randn(4, 4, 6))


def test_same_module_in_two_places() -> None:
    shared = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    agree(nn.Sequential(shared, nn.Linear(6, 6), shared), torch.randn(4, 6))


def test_one_parameter_in_two_convolutions() -> None:
    first, second = nn.Conv1d(4, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1)
    second.weight = first.weight
    agree(nn.Sequential(first, nn.Tanh(), second), torch.randn(4, 4, 9))


class Siamese(nn.Module):
    """Two halves of a record through one tower."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.unbind(1)
        out: Tensor = (self.tower(left) - self.tower(right)).square()
        return out


@pytest.mark.parametrize(
    ("tower", "record"),
    [
        (nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), (2, 6)),
        (
            nn.Sequential(
                nn.Conv1d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 3)
            ),
            (2, 3, 6),
        ),
        (nn.Sequential(nn.Linear(6, 8), nn.PReLU(), nn.LayerNorm(8)), (2, 5, 6)),
    ],
    ids=["linear", "convolution", "norm"],
)
def test_siamese(tower: nn.Module, record: tuple[int, ...]) -> None:
    agree(Siamese(tower), torch.randn(4, *record))


def test_model_called_twice_in_one_loss() -> None:
    """Two calls of the attached model itself (consistency losses): as if one model held both."""
    tower = trained(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    x = torch.randn(4, 2, 6).double()
    y = torch.randn(4, 3).double()
    whole = per_record_gradients(Siamese(tower), squared_error, x, y)
    engine = Engine(tower)
    for _ in range(2):
        grads = engine.collect(squared_error((tower(x[:, 0]) - tower(x[:, 1])).square(), y))
        torch.testing.assert_close(flat_norms(grads), whole_norms(whole), rtol=1e-10, atol=0.0)
        for name, values in grads.per_record().items():
            torch.testing.assert_close(values, whole[f"tower.{name}"], rtol=1e-10, atol=1e-12)
