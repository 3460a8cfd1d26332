"""Relevance: the maps against Eq. 4-7 done by hand, what one record can move, and what the release costs."""

from __future__ import annotations

import math

import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.accounting.epsilon import Adjacency, epsilon
from assay.errors import ConfigError, UnsupportedModelError
from assay.methods.perturb import PUBLIC_MODEL, Propagation, private_relevance, published_relevance
from assay.methods.perturb.relevance import PUBLISHED_IS_NOT_PRIVATE, RULES, bounded_maps
from assay.models import build
from assay.models.afrrs import afrrs_mnist
from assay.randomness.streams import Seeded

from . import reference

BOTH = (Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE)


def flat(module: nn.Module) -> list[nn.Module]:
    children = list(module.children())
    return [layer for child in children for layer in flat(child)] if children else [module]


def small_cnn(activation: type[nn.Module], pool: nn.Module) -> nn.Sequential:
    # With two value-wise layers in a row, captum alone takes the derivative of the second into the relevance.
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, stride=2),
        activation(),
        pool,
        nn.Conv2d(3, 4, 2),
        activation(),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 5),
        activation(),
        nn.Linear(5, 3),
    )


@pytest.mark.parametrize("beta", [1e-6, 0.3])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid, nn.Tanh])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(2, stride=1), nn.AvgPool2d(2, stride=1)], ids=["max", "average"])
def test_maps_are_those_of_equations_4_to_7(beta: float, activation: type[nn.Module], pool: nn.Module) -> None:
    torch.manual_seed(0)
    model = small_cnn(activation, pool).double()
    x = torch.rand(4, 2, 8, 8, dtype=torch.float64)
    maps = Propagation(beta=beta).maps(model, x)
    for record, found in zip(x, maps, strict=True):
        expected = reference.relevance(list(model), record, beta)
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9 * float(expected.abs().max()))


def test_layers_that_do_nothing_or_work_in_place_change_nothing() -> None:
    torch.manual_seed(0)
    one, two = nn.Linear(6, 5).double(), nn.Linear(5, 3).double()
    x = torch.rand(3, 6, dtype=torch.float64)
    before = x.clone()
    plain = Propagation().maps(nn.Sequential(one, nn.ReLU(), two), x)
    for extra in (nn.Flatten(), nn.Identity(), nn.Dropout(0.5)):
        full = nn.Sequential(
            nn.ReLU(inplace=True), extra, one, nn.ReLU(inplace=True), extra.__class__(), two, extra.__class__()
        )
        torch.testing.assert_close(Propagation().maps(full, x), plain)
        assert full[0].inplace
    assert torch.equal(x, before)


def test_one_linear_layer_by_hand() -> None:
    layer = nn.Linear(2, 2)
    layer.weight.data = torch.tensor([[1.0, 2.0], [0.5, -3.0]])
    layer.bias.data = torch.tensor([0.5, 0.0])
    # z = (1·3 + 2·1 + 0.5, …) = 5.5, decided for; relevance a_q ω_q / (z + β) · z
    found = Propagation(beta=0.5).maps(layer_in(layer), torch.tensor([[3.0, 1.0]]))
    torch.testing.assert_close(found, torch.tensor([[3.0, 2.0]]) / 6.0 * 5.5)


def layer_in(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


def test_relevance_is_conserved_without_biases() -> None:
    """Eq. 8: the score is the sum of the map, as β goes to 0 and nothing leaves by the biases."""
    torch.manual_seed(1)
    model = small_cnn(nn.ReLU, nn.MaxPool2d(2, stride=1)).double()
    for layer in model:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.zeros_(layer.bias)
    x = torch.rand(5, 2, 8, 8, dtype=torch.float64)
    maps = Propagation(beta=1e-12).maps(model, x)
    torch.testing.assert_close(maps.flatten(1).sum(1), model(x).max(1).values.detach(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["logistic", "mlp", "mnist-cnn", "lenet5", "model3", "alexnet"])
def test_named_models_are_explained_record_by_record(name: str, rule: str) -> None:
    torch.manual_seed(0)
    model = build(name, input_shape=(1, 18, 18), classes=4).double()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = torch.rand(3, 1, 18, 18, dtype=torch.float64)
    how = Propagation(rule=rule)
    maps = how.maps(model, x)
    assert maps.shape == x.shape
    assert maps.isfinite().all()
    assert maps.any()
    others = torch.cat([x[:1], 100 * torch.rand_like(x[1:])])
    torch.testing.assert_close(how.maps(model, others)[0], maps[0], rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(how.maps(model, x[:1])[0], maps[0], rtol=1e-8, atol=1e-12)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(hasattr(layer, "rule") for layer in model.modules())


def test_a_reshape_between_layers_is_followed() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act, self.out = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Linear(72, 3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.out(self.act(self.conv(x)).flatten(1))
            return result

    torch.manual_seed(0)
    model = Custom().double()
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    chained = nn.Sequential(model.conv, model.act, nn.Flatten(), model.out)
    torch.testing.assert_close(Propagation().maps(model, x), Propagation().maps(chained, x))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(x + self.inner(x))
        return result


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.inner(self.inner(x)))
        return result


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(x - x.mean(0))
        return result


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (Residual(), "Residual"),
        (Twice(), "inner"),
        (Mixing(), "Mixing"),
        (nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)), "GroupNorm"),
        (nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 6)), nn.Linear(6, 3)), "Flatten"),
        (nn.Sequential(nn.Linear(6, 3), nn.Softmax(0)), "Softmax"),
    ],
    ids=["branches", "twice", "mixing", "group norm", "flattened records", "softmax over records"],
)
def test_what_is_no_chain_of_layers_is_refused_by_name(model: nn.Module, named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        Propagation().maps(model, torch.rand(4, 6))


@given(
    st.lists(
        st.lists(st.floats(width=64), min_size=5, max_size=5) | st.lists(st.floats(-2, 2), min_size=5, max_size=5),
        min_size=1,
        max_size=6,
    )
)
def test_no_record_moves_the_sum_of_maps_by_more_than_one(rows: list[list[float]]) -> None:
    maps = torch.tensor(rows, dtype=torch.float64)
    bounded = bounded_maps(maps)
    assert bounded.isfinite().all()
    for row in bounded.tolist():
        assert math.fsum(map(abs, row)) <= 1
    for row, kept in zip(maps, bounded, strict=True):
        norm = float(row.abs().sum())
        if norm <= 1 - 1e-8:
            assert torch.equal(row, kept)
        elif math.isfinite(norm):
            torch.testing.assert_close(kept, row / norm, rtol=1e-8, atol=1e-300)
        elif not row.isfinite().all():
            assert not kept.any()


class Fixed:
    """A stream whose Laplace numbers are known."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    def laplace(self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        assert tuple(shape) == tuple(self.numbers.shape)
        return self.numbers.to(dtype=dtype, device=device)


def lesson() -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(0)
    model = build("mlp", input_shape=(1, 4, 4), classes=3)
    for parameter in model.parameters():
        parameter.data *= 4  # scores, and with them maps, beyond the bound
    return model, TensorDataset(torch.rand(300, 1, 4, 4), torch.zeros(300, dtype=torch.int64))


def scaled(values: Tensor) -> Tensor:
    return (values - values.min()) / (values.max() - values.min())


def test_private_relevance_is_noise_of_one_over_epsilon_on_the_sum_of_bounded_maps() -> None:
    model, data = lesson()
    noise = torch.linspace(-3, 5, 16, dtype=torch.float64).view(1, 4, 4)
    got = private_relevance(model, data, epsilon=0.25, model_cost=PUBLIC_MODEL, stream=Fixed(noise))  # type: ignore[arg-type]
    maps = Propagation().maps(model, data.tensors[0])
    assert float((maps.flatten(1).abs().sum(1) > 1).double().mean()) > 0.5, "most maps are clipped here"
    expected = scaled(bounded_maps(maps).sum(0) + noise / 0.25)
    torch.testing.assert_close(got.values, expected, rtol=1e-4, atol=1e-5)
    assert (got.values.min(), got.values.max()) == (0, 1)
    assert got.scale == pytest.approx(1 / (0.25 * 300))
    assert got.reason is None
    assert epsilon(got.event, 0.0, Adjacency.ADD_OR_REMOVE_ONE) == pytest.approx(0.25)
    assert epsilon(got.event, 0.0, Adjacency.REPLACE_ONE) == pytest.approx(0.5), "the sum moves by up to 2"


def test_published_relevance_is_equations_9_to_11_and_has_no_epsilon() -> None:
    model, data = lesson()
    noise = torch.linspace(-3, 5, 16, dtype=torch.float64).view(1, 4, 4)
    got = published_relevance(model, data, epsilon=0.25, stream=Fixed(noise))  # type: ignore[arg-type]
    delta_r = 2 * 16 / 300
    average = Propagation().maps(model, data.tensors[0]).double().mean(0)
    torch.testing.assert_close(got.values, scaled(average) + delta_r / 0.25 * noise, rtol=1e-4, atol=1e-5)
    assert got.scale == pytest.approx(delta_r / 0.25)
    assert got.reason == PUBLISHED_IS_NOT_PRIVATE
    assert all(epsilon(got.event, 1e-5, adjacency) == math.inf for adjacency in BOTH)


def test_the_model_s_own_cost_is_part_of_the_event() -> None:
    model, data = lesson()
    trained = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.1))
    stream = Seeded(0).stream("relevance", 0)
    add = Adjacency.ADD_OR_REMOVE_ONE
    alone = epsilon(LaplaceDpEvent(2.0), 1e-5, add)
    both = epsilon(private_relevance(model, data, epsilon=0.5, model_cost=trained, stream=stream).event, 1e-5, add)
    assert alone < both <= alone + epsilon(trained, 1e-5, add)
    leaking = private_relevance(model, data, epsilon=0.5, model_cost=NonPrivateDpEvent(), stream=stream)
    assert epsilon(leaking.event, 1e-5, add) == math.inf
    assert leaking.reason is not None


def test_the_afrrs_network_can_explain_itself() -> None:
    torch.manual_seed(0)
    model = afrrs_mnist((1, 14, 14), 3).double()
    x = torch.rand(2, 1, 14, 14, dtype=torch.float64)
    found = Propagation(beta=0.05).maps(model, x)
    expected = reference.relevance(flat(model), x[0], 0.05)
    torch.testing.assert_close(found[0], expected, rtol=1e-7, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize(("field", "value"), [("rule", "magic"), ("beta", 0.0), ("beta", math.inf), ("beta", -1.0)])
def test_bad_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Propagation(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_that_is_none_is_refused(bad: float) -> None:
    model, data = lesson()
    stream = Seeded(0).stream("relevance", 0)
    with pytest.raises(ConfigError, match="epsilon1"):
        private_relevance(model, data, epsilon=bad, model_cost=PUBLIC_MODEL, stream=stream)
    with pytest.raises(ConfigError, match="epsilon1"):
        published_relevance(model, data, epsilon=bad, stream=stream)
