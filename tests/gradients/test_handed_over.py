"""A batch may be handed to the model packed, as bags of words, or with the records second; mixing shows in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.data import TensorDataset

import assay
from assay.gradients.engine import Engine
from assay.randomness.streams import Seeded

LENGTH, WIDTH, WORDS = 5, 4, 9
Form = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Calls a model on rows and their lengths, and gives one loss for each."""


def by_row(out: Tensor) -> Tensor:
    flat = out.flatten(1)
    return (flat.tanh() * torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)).sum(1)


def packed(model: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    out = model(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return by_row(pad_packed_sequence(out, batch_first=True, total_length=LENGTH)[0])


def second(model: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    return by_row(model(x.transpose(0, 1)).transpose(0, 1))


def bag(model: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    words = (x[..., 0].abs() * 10).long() % WORDS
    return by_row(
        model(torch.cat([row[:n] for row, n in zip(words, lengths, strict=True)]), lengths.cumsum(0) - lengths)
    )


class Recurrent(nn.Module):
    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.lstm, self.mixes = nn.LSTM(WIDTH, 3), mixes

    def forward(self, x: Any) -> Any:
        if self.mixes and isinstance(x, PackedSequence):
            x = x._replace(data=x.data - x.data[: int(x.batch_sizes[0])].mean(0))
        elif self.mixes:
            x = x - x.mean(1, keepdim=True)
        return self.lstm(x)[0]


class Bags(nn.Module):
    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.table, self.mixes = nn.EmbeddingBag(WORDS, 3, mode="mean"), mixes

    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        if self.mixes:
            words = (words + words.min()) % WORDS
        out: Tensor = self.table(words, offsets)
        return out


FORMS: dict[str, tuple[Form, Callable[[bool], nn.Module]]] = {
    "packed": (packed, Recurrent),
    "second": (second, Recurrent),
    "bag": (bag, Bags),
}


def rows(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(count)
    return torch.randn(count, LENGTH, WIDTH, dtype=torch.float64), 1 + torch.arange(count) % LENGTH


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("first", [1, 4, 7])
def test_every_record_has_the_gradient_that_it_has_alone(name: str, first: int) -> None:
    how, build = FORMS[name]
    torch.manual_seed(0)
    model = build(False).double()
    x, lengths = rows(7)
    alone = []
    for i in range(7):
        found = torch.autograd.grad(how(model, x[i : i + 1], lengths[i : i + 1]).sum(), list(model.parameters()))
        alone.append(torch.cat([g.flatten() for g in found]))
    engine = Engine(model)
    for count in (first, 7, LENGTH, 3):  # as many records as steps among them
        engine.expect(count)
        grads = engine.collect(how(model, x[:count], lengths[:count])).per_record()
        mine = torch.cat([grads[n].flatten(1) for n, _ in model.named_parameters()], 1)
        torch.testing.assert_close(mine, torch.stack(alone[:count]), rtol=0, atol=1e-12)
    engine.detach()


@pytest.mark.parametrize("name", FORMS)
def test_a_model_that_mixes_is_refused(name: str) -> None:
    how, build = FORMS[name]
    torch.manual_seed(0)
    model = build(True).double()
    engine = Engine(model, coins=Seeded(0).stream("proof", 0))  # one batch shows it to most coins, not to all
    losses = how(model, *rows(7))
    with pytest.raises(assay.UnsupportedModelError, match="mixes records"):
        engine.collect(losses)
    engine.detach()


@pytest.mark.parametrize("name", FORMS)
def test_a_run_takes_all_its_steps(name: str) -> None:
    how, build = FORMS[name]
    torch.manual_seed(0)
    model = build(False)
    x, lengths = rows(20)
    plan = assay.Plan(records=20, batch_size=5, steps=20, noise_multiplier=1.0, delta=1e-3)
    step = assay.PrivateStep(model, plan, randomness=Seeded(1))
    sizes = set()
    for some, lengths_of_some in step.batches(TensorDataset(x.float(), lengths)):
        sizes.add(len(some))
        assert step.backward(how(model, some, lengths_of_some))
    assert step.taken == 20
    assert LENGTH in sizes
