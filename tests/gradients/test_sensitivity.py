"""The promise everything stands on: one record moves the clipped sum by at most `l2`, in float32, whatever it holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.gradients.clipping import AdaptiveQuantile, Automatic, ClipRule, Flat, PerLayer
from assay.gradients.engine import Engine

SLACK = 1 + 1e-6
RULES: dict[str, Callable[[float], ClipRule]] = {
    "flat": lambda bound: Flat(bound=bound),
    "per-layer": lambda bound: PerLayer(bound=bound),
    "auto": lambda bound: Automatic(bound=bound),
    "adaptive": lambda bound: AdaptiveQuantile(bound=bound),
}


class Clipped:
    """Clipped sums of a model under a rule, as one vector in float64. The model was proved on an ordinary batch."""

    def __init__(self, model: nn.Module, rule: ClipRule, record: tuple[int, ...] | None) -> None:
        self.model, self.rule = model, rule
        self.engine = Engine(model)
        self.groups = rule.groups(self.engine.layers)
        ordinary = torch.randint(0, 3, (2, 4)) if record is None else torch.randn(2, *record)
        self(ordinary, torch.ones(()))

    def __call__(self, x: Tensor, slopes: Tensor) -> Tensor:
        """Records `x` with losses ⟨slopes, output⟩, whose gradient with respect to the output is `slopes`."""
        grads = self.engine.collect((self.model(x) * slopes).flatten(1).sum(1)) if len(x) else self.engine.empty()
        weights = self.rule.weights(grads.norms(self.groups))
        total = grads.weighted_sum(weights, self.groups)
        return torch.cat([g.flatten() for g in total.values()]).double()

    def moves(self, x: Tensor, slopes: Tensor) -> list[float]:
        """How far each record moves the sum when it is left out."""
        whole = self(x, slopes)
        found = []
        for i in range(len(x)):
            rest = torch.arange(len(x)) != i
            found.append(float((whole - self(x[rest], slopes[rest])).norm()))
        return found


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(x).tanh())
        return out


class Many(nn.Module):
    """One linear layer used twice in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.cat([self.cell(x), self.cell(-x * (1 + 1e-6))], -1)
        return out


class Places(nn.Module):
    """A table that all records look up alike, some rows more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.table(torch.tensor([[0, 3, 0, 3, 5]]))
        return out


# name: model, shape of a record (None: four of eleven words). One layer deep where inputs are adversarial: then the
# slopes are exact, and the sum without a record differs from the sum with it by that record alone.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    "linear": (lambda: nn.Linear(6, 3), (6,)),
    "linear without bias": (lambda: nn.Linear(6, 3, bias=False), (6,)),
    "linear on sequences, kept": (lambda: nn.Linear(6, 3), (9, 6)),
    "linear on sequences, factors": (lambda: nn.Linear(12, 20), (3, 12)),
    "linear twice": (Many, (6,)),
    "convolution, kept": (lambda: nn.Conv1d(2, 3, 3), (2, 8)),
    "convolution, ghost": (lambda: nn.Conv2d(24, 24, 3, padding=1), (24, 2, 2)),
    "convolution, in pieces": (lambda: nn.Conv2d(12, 12, 5, padding=2), (12, 4, 4)),
    "layer norm": (lambda: nn.LayerNorm(6), (5, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 6)),
    "bare parameter": (lambda: nn.PReLU(6), (6,)),
    "embedding": (lambda: nn.Embedding(11, 6), None),
    "embedding, shared by all records": (Places, (5, 6)),
    "tied": (Tied, None),
}
exponents = st.floats(-20, 20)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data())
def test_one_record_moves_the_sum_by_at_most_l2(name: str, kind: str, data: st.DataObject) -> None:
    make, record = MODELS[name]
    bound = 10.0 ** data.draw(st.integers(-3, 2))
    records = data.draw(st.integers(1, 4))
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    clipped = Clipped(make(), RULES[kind](bound), record)
    if record is None:
        x = torch.randint(0, 11, (records, 4))
    else:
        x = torch.randn(records, *record)
        for i in range(records):
            x[i] *= 10.0 ** data.draw(exponents)
    with torch.no_grad():
        slopes = torch.randn_like(clipped.model(x))
    for i in range(records):
        slopes[i] *= 10.0 ** data.draw(exponents)
    assert max(clipped.moves(x, slopes)) <= clipped.rule.l2 * SLACK


@pytest.mark.parametrize("kind", RULES)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data())
def test_through_a_network(kind: str, data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    network = nn.Sequential(
        nn.Conv1d(3, 6, 3),
        nn.GroupNorm(2, 6),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(24, 8),
        nn.LayerNorm(8),
        nn.Linear(8, 3),
    )
    clipped = Clipped(network, RULES[kind](0.7), (3, 6))
    slopes = torch.randn(4, 3) * torch.tensor([10.0 ** data.draw(exponents) for _ in range(4)]).unsqueeze(1)
    assert max(clipped.moves(torch.randn(4, 3, 6), slopes)) <= clipped.rule.l2 * SLACK


# Cancellation: terms of one record that are huge and nearly cancel. A norm found by another order of summation than the
# sum must not come out below what the sum then holds.


def cancelling(shape: tuple[int, ...], dim: int, size: float, rest: float) -> Tensor:
    """Random values whose halves along `dim` are the negatives of each other, but for a part `rest` of their size."""
    half = size * torch.randn(*shape[:dim], shape[dim] // 2, *shape[dim + 1 :])
    return torch.cat([half, -half * (1 + rest * torch.randn_like(half))], dim)


def repeated(shape: tuple[int, ...], dim: int, rest: float) -> Tensor:
    half = 1 + torch.rand(*shape[:dim], shape[dim] // 2, *shape[dim + 1 :])
    return torch.cat([half, half * (1 + rest * torch.randn_like(half))], dim)


@pytest.mark.parametrize("rest", [0.0, 1e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
@pytest.mark.parametrize(
    ("length", "inputs", "outputs"), [(2, 40, 40), (2, 300, 300), (8, 64, 64), (64, 6, 6), (32, 200, 3)]
)
def test_cancelling_positions_of_a_linear_layer(
    length: int, inputs: int, outputs: int, size: float, rest: float
) -> None:
    clipped = Clipped(nn.Linear(inputs, outputs, bias=False), Flat(bound=0.01), (length, inputs))
    x = repeated((6, length, inputs), 1, rest)
    assert max(clipped.moves(x, cancelling((6, length, outputs), 1, size, rest))) <= 0.01 * SLACK


@pytest.mark.parametrize("rest", [0.0, 1e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("size", [1.0, 1e6])
@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "sides"),
    [(2, 3, 3, (8, 8)), (64, 64, 3, (2, 2)), (32, 48, 3, (4, 3)), (12, 12, 5, (4, 4)), (40, 40, 1, (2, 3))],
    ids=["kept", "ghost", "ghost, more positions", "in pieces", "ghost, window of one"],
)
def test_cancelling_positions_of_a_convolution(
    inputs: int, outputs: int, kernel: int, sides: tuple[int, ...], size: float, rest: float
) -> None:
    model = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    clipped = Clipped(model, Flat(bound=0.01), (inputs, *sides))
    x = repeated((5, inputs, *sides), 2, rest)
    assert max(clipped.moves(x, cancelling((5, outputs, *sides), 2, size, rest))) <= 0.01 * SLACK


@pytest.mark.parametrize("rest", [0.0, 1e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("size", [1.0, 1e6])
@pytest.mark.parametrize("bound", [1e-3, 1e-2])
def test_cancelling_positions_of_an_embedding(bound: float, size: float, rest: float) -> None:
    """One word at every position, with slopes that nearly cancel."""
    clipped = Clipped(nn.Embedding(3, 4), Flat(bound=bound), None)
    slopes = cancelling((40, 2, 4), 1, size, rest)
    for x, slope in zip(torch.zeros(40, 1, 2, dtype=torch.long), slopes.unsqueeze(1), strict=True):
        assert float(clipped(x, slope).norm()) <= bound * SLACK


@pytest.mark.parametrize("rest", [0.0, 1e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("size", [1.0, 1e6])
def test_cancelling_uses_of_a_tied_table(size: float, rest: float) -> None:
    """The table as input and the table as output pull against each other, and so do two positions."""

    class Pull(Tied):
        def forward(self, x: Tensor) -> Tensor:
            words: Tensor = self.table(x)
            return torch.cat([words.flatten(1), self.head(torch.ones(len(x), 6))], 1)

    clipped = Clipped(Pull(), Flat(bound=0.01), None)
    x = torch.randint(0, 11, (40, 3))
    x[:, 2] = x[:, 1]
    words, out = torch.zeros(40, 3, 6), torch.zeros(40, 11)
    words[:, 1:] = cancelling((40, 2, 6), 1, size, rest)
    words[:, 0] = -(1 + rest * torch.randn(40, 6))
    out[torch.arange(40), x[:, 0]] = 1.0
    slopes = torch.cat([words.flatten(1), out], 1)
    for i in range(40):
        assert float(clipped(x[i : i + 1], slopes[i : i + 1]).norm()) <= 0.01 * SLACK


@pytest.mark.parametrize("kind", ["flat", "auto"])
def test_factors_one_tiny_and_one_huge(kind: str) -> None:
    """‖g‖² underflows, ‖x‖² nearly overflows, and the gradient g xᵀ is an ordinary one."""
    for length in (None, 2):
        lead = () if length is None else (length,)
        clipped = Clipped(nn.Linear(4, 3000, bias=False), RULES[kind](0.01), (*lead, 4))
        x, slopes = torch.full((1, *lead, 4), 8e18), torch.full((1, *lead, 3000), 2e-23)
        assert float(clipped(x, slopes).norm()) <= 0.01 * SLACK


@pytest.mark.parametrize("parameters", [2**17, 2**20])
@pytest.mark.parametrize("way", ["factors", "kept"])
def test_norm_of_many_equal_numbers(way: str, parameters: int) -> None:
    """Summed one after the other in float32, a million equal squares lose enough for the bound to be passed."""
    make = {"factors": lambda: nn.Linear(parameters, 1, bias=False), "kept": lambda: nn.PReLU(parameters)}[way]
    clipped = Clipped(make(), Flat(bound=1.0), (parameters,))
    for value in torch.linspace(1.0, 2.0, 12).tolist():
        assert 0.99 <= float(clipped(torch.full((1, parameters), -value), torch.ones(())).norm()) <= SLACK
