"""Ragged groups of rows are persons: one gradient each, of the mean over their rows; the sum moves by at most C."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.gradients.clip_rules.automatic import Automatic
from assay.gradients.clip_rules.flat import Flat
from assay.gradients.clip_rules.per_layer import PerLayer
from assay.gradients.engine import Engine
from assay.gradients.uses.persons import Persons
from assay.models import available, build

from .oracle import TOLERANCE, flat_norms, flat_sum, squared_error, trained, weighted, whole_norms
from .reference import per_record_gradients
from .test_views import LAYERS, Tied

COUNTS = (3, 1, 5, 2, 1, 4)
ROWS = sum(COUNTS)


def by_person(rows: dict[str, Tensor], counts: tuple[int, ...]) -> dict[str, Tensor]:
    """The definition: the mean of the gradients of a person's rows; zero for somebody without any."""
    return {
        name: torch.stack([part.mean(0) if len(part) else torch.zeros_like(g[0]) for part in g.split(list(counts))])
        for name, g in rows.items()
    }


def agree_on_persons(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model = trained(copy.deepcopy(model))
    expected = by_person(per_record_gradients(model, squared_error, x, y, batched=False), COUNTS)
    persons = Persons(torch.tensor(COUNTS))
    weights = torch.rand(len(COUNTS), dtype=torch.float64)
    engine = Engine(model)
    for _ in range(2):  # with the proof of the first batch, and without
        grads = engine.collect(persons.shares(squared_error(model(x), y)), persons)
        assert grads.records == len(COUNTS)
        norms = flat_norms(grads)
        torch.testing.assert_close(norms, whole_norms(expected), rtol=1e-7, atol=1e-9)
        assert bool((norms >= whole_norms(expected) * (1 - 1e-12)).all())
        for name, total in flat_sum(grads, weights).items():
            torch.testing.assert_close(total, weighted(expected[name], weights), rtol=TOLERANCE, atol=TOLERANCE)
        for name, value in grads.per_record().items():
            torch.testing.assert_close(value, expected[name], rtol=TOLERANCE, atol=TOLERANCE)
    engine.detach()


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = LAYERS[name]
    x = torch.randn(ROWS, *shape, dtype=torch.float64)
    agree_on_persons(nn.Sequential(layer), x, torch.randn_like(copy.deepcopy(layer).double()(x)))


def test_embedding_and_tied_table() -> None:
    torch.manual_seed(0)
    x = torch.randint(9, (ROWS, 5))
    agree_on_persons(nn.Sequential(nn.Embedding(9, 4)), x, torch.randn(ROWS, 5, 4, dtype=torch.float64))
    agree_on_persons(Tied(), x, torch.randn(ROWS, 5, 9, dtype=torch.float64))


@pytest.mark.parametrize("name", ["lenet5", "ws-resnet20"])
def test_named_model(name: str) -> None:
    torch.manual_seed(0)
    side = next(info.smallest_side for info in available() if info.name == name)
    shape = (3, side, side)
    x = torch.randn(ROWS, *shape, dtype=torch.float64)
    agree_on_persons(build(name, input_shape=shape, classes=4), x, torch.randn(ROWS, 4, dtype=torch.float64))


class Model(nn.Module):
    """A table, a convolution, a norm and a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.score = nn.Conv1d(2, 3, 2), nn.GroupNorm(1, 3), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.score(self.norm(self.conv(x)).flatten(1))
        return out


numbers = st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e4, -1e15, 1e30, float("nan"), float("inf")])


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(lambda c: sum(c) - c[0] > 0 and c[0] > 0),
    scale=st.lists(numbers, min_size=4, max_size=4),
    seed=st.integers(0, 2**16),
    rule=st.sampled_from([Flat(0.7), PerLayer(0.7), Automatic(0.7)]),
)
def test_one_person_moves_the_sum_by_at_most_the_bound(
    counts: list[int], scale: list[float], seed: int, rule: Flat
) -> None:
    """The sum with the first person and all of their rows, less the sum without them, whatever the rows hold."""
    torch.manual_seed(seed)
    model = Model()
    x, y = torch.randn(sum(counts), 2, 4), torch.randn(sum(counts), 2)
    for i, factor in enumerate(scale):
        x[i * 7 % len(x)] *= factor  # mostly the first person's, some of others
    sums = []
    for kept in (counts, counts[1:]):
        rows = sum(counts) - sum(kept)
        engine = Engine(model)
        persons = Persons(torch.tensor(kept))
        grads = engine.collect(persons.shares(squared_error(model(x[rows:]), y[rows:])), persons)
        groups = rule.groups(engine.layers)
        norms = grads.norms(groups)
        sums.append(grads.weighted_sum(rule.weights(norms), groups))
        engine.detach()
    moved = torch.cat([(sums[0][name] - sums[1][name]).double().flatten() for name in sums[0]])
    assert bool(moved.isfinite().all())
    # float32: the two sums are of other numbers in another order
    assert float(moved.norm()) <= rule.l2 * (1 + 1e-5) + 1e-5 * len(counts)


def test_a_row_that_is_not_a_number_drops_its_person_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 2)).double()
    x, y = torch.randn(ROWS, 3, dtype=torch.float64), torch.zeros(ROWS, 2, dtype=torch.float64)
    x[COUNTS[0] + COUNTS[1] + 2] = torch.nan  # the third person's
    persons = Persons(torch.tensor(COUNTS))
    engine = Engine(model)
    grads = engine.collect(persons.shares(squared_error(model(x), y)), persons)
    norms = flat_norms(grads)
    assert grads.nonfinite == 1
    assert norms[2] < 1e-30
    assert bool((norms[[0, 1, 3, 4, 5]] > 1e-4).all())
    engine.detach()


def test_a_person_counts_once_whatever_the_number_of_rows() -> None:
    """Copies of a row change nothing: clipping row by row would let them add up."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    x, y = torch.randn(2, 4, dtype=torch.float64), 100 * torch.randn(2, 2, dtype=torch.float64)
    found = []
    for copies in (1, 50):
        persons = Persons(torch.tensor([copies, 1]))
        many, targets = torch.cat([x[:1].expand(copies, -1), x[1:]]), torch.cat([y[:1].expand(copies, -1), y[1:]])
        engine = Engine(model)
        grads = engine.collect(persons.shares(squared_error(model(many), targets)), persons)
        found.append(grads.weighted_sum(Flat(1.0).weights(grads.norms([0])), [0])["weight"])
        engine.detach()
    torch.testing.assert_close(found[0], found[1], rtol=1e-7, atol=1e-9)
