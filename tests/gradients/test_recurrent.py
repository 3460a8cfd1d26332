"""Recurrent layers by their own rule: every option of torch's classes against one record at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from assay.errors import UnsupportedModelError
from assay.gradients.engine import Engine

from .oracle import agree

RECURRENT: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
DEEP = {"num_layers": 2, "bidirectional": True}


class Sequences(nn.Module):
    """Takes records first and gives outputs and last states; with lengths in the first column, packed."""

    def __init__(self, cell: nn.RNNBase, *, start: bool = False, packed: str = "") -> None:
        super().__init__()
        self.cell, self.start, self.packed = cell, start, packed

    def forward(self, x: Tensor) -> Tensor:
        records = x.shape[0]
        lengths = x[:, 0, 0].detach().abs().mul(7).long() % x.shape[1] + 1
        if self.packed == "sorted":
            lengths = torch.full((records,), x.shape[1] - 1)
        given: Any = x if self.cell.batch_first else x.transpose(0, 1)
        if self.packed:
            given = pack_padded_sequence(
                given, lengths, batch_first=self.cell.batch_first, enforce_sorted=self.packed == "sorted"
            )
        out, last = self.cell(given, self._state(x) if self.start else None)
        if self.packed:
            out, _ = pad_packed_sequence(out, self.cell.batch_first, total_length=x.shape[1])
        out = out if self.cell.batch_first else out.transpose(0, 1)
        ends = last if isinstance(last, tuple) else (last,)
        return torch.cat([out.flatten(1), *(end.transpose(0, 1).flatten(1) for end in ends)], 1)

    def _state(self, x: Tensor) -> Any:
        layers = self.cell.num_layers * (2 if self.cell.bidirectional else 1)
        state = torch.full((layers, len(x), self.cell.proj_size or self.cell.hidden_size), 0.3, dtype=x.dtype)
        cell = torch.full((layers, len(x), self.cell.hidden_size), 0.6, dtype=x.dtype)
        return (state, cell) if isinstance(self.cell, nn.LSTM) else state


@pytest.mark.parametrize("option", [{}, DEEP, {"bias": False}], ids=["one", "deep", "no bias"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent(kind: str, batch_first: bool, option: dict[str, Any]) -> None:
    cell = RECURRENT[kind](3, 4, batch_first=batch_first, **option)
    agree(Sequences(cell), torch.randn(4, 5, 3), batched=False)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_from_a_given_state(kind: str, batch_first: bool) -> None:
    # as many steps as records: only the layout tells them apart
    agree(Sequences(RECURRENT[kind](3, 4, batch_first=batch_first), start=True), torch.randn(4, 4, 3), batched=False)


@pytest.mark.parametrize("option", [{}, DEEP, {"bias": False}], ids=["one", "deep", "no bias"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_an_lstm_without_a_seed(batch_first: bool, option: dict[str, Any]) -> None:
    """Its way back computes the slopes of all positions at once."""
    for positions in (1, 4):
        cell = nn.LSTM(3, 4, batch_first=batch_first, **option)
        agree(Sequences(cell, start=True), torch.randn(4, positions, 3), batched=False, measured=True)


@pytest.mark.parametrize("packed", ["sorted", "unsorted"])
@pytest.mark.parametrize("kind", RECURRENT)
def test_packed_sequences(kind: str, packed: str) -> None:
    cell = RECURRENT[kind](3, 4, batch_first=packed == "sorted", **DEEP)
    agree(Sequences(cell, packed=packed, start=True), torch.randn(4, 5, 3), batched=False)


@pytest.mark.parametrize("option", [{}, DEEP], ids=["one", "deep"])
def test_lstm_with_a_projection(option: dict[str, Any]) -> None:
    agree(Sequences(nn.LSTM(3, 4, proj_size=2, **option), start=True), torch.randn(4, 5, 3), batched=False)


def test_rnn_with_relu() -> None:
    agree(Sequences(nn.RNN(3, 4, nonlinearity="relu")), torch.randn(4, 5, 3), batched=False)


class Overwritten(nn.Module):
    """Writes into the outputs of its recurrent layer."""

    def __init__(self, cell: nn.RNNBase) -> None:
        super().__init__()
        self.first, self.cell = nn.Linear(3, 3), cell

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.cell(self.first(x))
        return out.mul_(2).relu_().flatten(1)


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_outputs_that_the_model_overwrites(kind: str) -> None:
    for measured in (False, True):
        cell = RECURRENT[kind](3, 4, batch_first=True)
        agree(Overwritten(cell), torch.randn(4, 5, 3), batched=False, measured=measured)


@pytest.mark.parametrize("frozen", ["weight_ih_l0", "weight_hh_l0", "_l0", "_l1", "bias"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_layer_that_is_frozen_in_part(kind: str, frozen: str) -> None:
    model = Sequences(RECURRENT[kind](3, 4, num_layers=2))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    agree(model, torch.randn(4, 5, 3), batched=False)


def test_dropout_between_layers_draws_what_torch_draws() -> None:
    """The proof compares the recorded pass with a plain one that starts from the same random state."""
    model = Sequences(nn.GRU(3, 4, dropout=0.5, **DEEP))
    x = torch.randn(4, 5, 3)
    state = torch.get_rng_state()
    with torch.no_grad():
        plain = model(x)
    engine = Engine(model)
    torch.set_rng_state(state)
    ours = model(x)
    engine.collect(ours.sum(1))
    torch.testing.assert_close(ours.detach(), plain)


def test_subclass_with_another_forward_goes_through_the_fallback() -> None:
    class Twice(nn.GRU):
        def forward(self, x: Tensor, state: Any = None) -> Any:
            out, last = super().forward(x, state)
            return 2 * out, last

    model = Sequences(Twice(3, 4, batch_first=True))
    assert [type(m) for m in Engine(model).expanded()] == [Twice]


@pytest.mark.parametrize("shape", [(5, 3), (1, 3, 4)], ids=["without records", "state of other records"])
def test_wrong_shapes_are_named(shape: tuple[int, ...]) -> None:
    cell = nn.GRU(3, 4, batch_first=True)
    engine = Engine(nn.Sequential(cell))
    with pytest.raises(UnsupportedModelError, match="shape"):
        cell(torch.randn(5, 3)) if len(shape) == 2 else cell(torch.randn(4, 5, 3), torch.randn(shape))
    engine.detach()


class LearnedState(nn.Module):
    """Begins with a trained state that all records share, or with one for each place in the batch."""

    def __init__(self, cell: nn.RNNBase, places: int = 1) -> None:
        super().__init__()
        self.cell, self.places = cell, places
        layers = cell.num_layers * (2 if cell.bidirectional else 1)
        self.h = nn.Parameter(torch.zeros(layers, places, cell.proj_size or cell.hidden_size))
        self.c = nn.Parameter(torch.zeros(layers, places, cell.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        h, c = (state[:, : len(x)].expand(-1, len(x), -1).contiguous() for state in (self.h, self.c))
        out, _ = self.cell(x, (h, c) if isinstance(self.cell, nn.LSTM) else h)
        return out.flatten(1)


@pytest.mark.parametrize("option", [{}, DEEP], ids=["one", "deep"])
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_first_state_that_is_learned(kind: str, option: dict[str, Any]) -> None:
    agree(LearnedState(RECURRENT[kind](3, 4, batch_first=True, **option)), torch.randn(5, 4, 3), batched=False)


@pytest.mark.parametrize("same", [True, False])
def test_a_first_state_for_each_place_in_the_batch_is_refused(same: bool) -> None:
    model = LearnedState(nn.GRU(3, 4, batch_first=True), places=5)
    if not same:
        nn.init.normal_(model.h)
    engine = Engine(model)
    with pytest.raises(UnsupportedModelError):
        engine.collect(model(torch.randn(5, 4, 3)).square().sum(1))
    engine.detach()
