"""Steps in a row, other people's backward passes, copies, and what the engine leaves behind."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from assay.errors import UnsupportedModelError
from assay.gradients.engine import Engine

from .oracle import agree, flat_norms, flat_sum, squared_error, trained, whole_norms
from .reference import per_record_gradients


def discriminator() -> nn.Module:
    return trained(
        nn.Sequential(
            nn.Linear(6, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.PReLU(), nn.Linear(8, 1), nn.Flatten(0)
        )
    )


def losses_of(model: nn.Module, x: Tensor) -> Tensor:
    return F.softplus(model(x))


def exact(engine: Engine, x: Tensor) -> None:
    """The next private step on `x` gives what the reference gives."""
    plain = copy.deepcopy(engine.model)
    expected = per_record_gradients(plain, lambda output, _: F.softplus(output), x, x)
    grads = engine.collect(losses_of(engine.model, x))
    assert grads.records == len(x)
    torch.testing.assert_close(flat_norms(grads), whole_norms(expected), rtol=1e-10, atol=0.0)
    for name, values in grads.per_record().items():
        torch.testing.assert_close(values, expected[name], rtol=1e-10, atol=1e-12)


def batch(records: int = 4) -> Tensor:
    return torch.randn(records, 6).double()


@pytest.mark.parametrize("records", [1, 2, 7])
def test_nothing_is_left_in_grad(records: int) -> None:
    """Not even by a first batch of one record, on which nothing can be proved."""
    model = discriminator()
    engine = Engine(model)
    for _ in range(3):
        engine.collect(losses_of(model, batch(records)))
        assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("records", [1, 3])
def test_what_stood_in_grad_stays(records: int) -> None:
    model = discriminator()
    engine = Engine(model)
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    for _ in range(2):
        engine.collect(losses_of(model, batch(records)))
        assert all((p.grad == 7.0).all() for p in model.parameters())


def test_batches_of_any_size_in_a_row() -> None:
    engine = Engine(discriminator())
    for records in (1, 4, 1, 2, 9):
        exact(engine, batch(records))


def test_parameters_may_change_between_steps() -> None:
    engine = Engine(discriminator())
    for _ in range(3):
        exact(engine, batch())
        with torch.no_grad():
            for p in engine.parameters.values():
                p.add_(0.1 * torch.randn_like(p))


def test_asking_twice_gives_the_same() -> None:
    model = discriminator()
    engine = Engine(model)
    for _ in range(2):
        grads = engine.collect(losses_of(model, batch()))
        assert torch.equal(flat_norms(grads), flat_norms(grads))
        weights = torch.rand(4).double()
        first, second = flat_sum(grads, weights), flat_sum(grads, weights)
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_empty_batch() -> None:
    engine = Engine(discriminator())
    grads = engine.empty()
    assert grads.norms([0] * grads.layers).shape == (0, 1)
    assert grads.norms(list(range(grads.layers))).shape == (0, grads.layers)
    total = grads.weighted_sum(torch.ones(0, 1).double(), [0] * grads.layers)
    assert {name: g.shape for name, g in total.items()} == {n: p.shape for n, p in engine.parameters.items()}
    assert all((g == 0).all() for g in total.values())
    assert all(len(values) == 0 for values in grads.per_record().values())
    exact(engine, batch())


@pytest.mark.parametrize("proved", [True, False], ids=["after a private step", "before any private step"])
@pytest.mark.parametrize("records", [4, 7])
def test_generator_step_through_a_private_discriminator(proved: bool, records: int) -> None:
    generator, model = nn.Linear(3, 6).double(), discriminator()
    z = torch.randn(records, 3).double()
    plain = torch.autograd.grad(losses_of(model, generator(z)).mean(), list(generator.parameters()))
    engine = Engine(model)
    if proved:
        exact(engine, batch())
    losses_of(model, generator(z)).mean().backward()
    for p, expected in zip(generator.parameters(), plain, strict=True):
        torch.testing.assert_close(p.grad, expected, rtol=1e-12, atol=1e-14)
    exact(engine, batch())
    exact(engine, torch.cat([batch(2), generator(z).detach()]))


@pytest.mark.parametrize("proved", [True, False], ids=["after a private step", "before any private step"])
def test_forward_passes_that_nobody_uses(proved: bool) -> None:
    engine = Engine(discriminator())
    if proved:
        exact(engine, batch())
    engine.model(batch(5))
    with torch.no_grad():
        engine.model(batch(6))
    with torch.inference_mode():
        engine.model(batch(2))
    exact(engine, batch())


def test_backward_that_fails_does_not_disturb_the_next() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:
            raise RuntimeError("broken on purpose")

    engine = Engine(discriminator())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="on purpose"):
            engine.collect(Broken.apply(losses_of(engine.model, batch())))
        exact(engine, batch())


def test_evaluation_does_not_record() -> None:
    engine = Engine(discriminator())
    with torch.no_grad():
        output = engine.model(batch())
    assert not output.requires_grad
    exact(engine, batch())


@pytest.mark.parametrize("averaged", [True, False], ids=["AveragedModel", "deepcopy"])
def test_copy_is_independent(averaged: bool) -> None:
    """Weight averaging copies an attached model: the copy computes with its own weights and records nothing."""
    engine = Engine(discriminator())
    exact(engine, batch())
    model = engine.model
    twin = AveragedModel(model).module if averaged else copy.deepcopy(model)
    x = batch()
    before = model(x).detach()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    torch.testing.assert_close(twin(x).detach(), before, rtol=1e-12, atol=1e-14)
    losses_of(twin, x).sum().backward()
    assert all(p.grad is not None for p in twin.parameters())
    assert all(p.grad is None for p in model.parameters())
    exact(engine, x)


def test_engine_on_a_copy_of_an_attached_model() -> None:
    engine = Engine(discriminator())
    other = Engine(copy.deepcopy(engine.model))
    exact(other, batch())
    exact(engine, batch())
    other.detach()
    engine.detach()


def test_detach_gives_the_model_back() -> None:
    engine = Engine(discriminator())
    model, x = engine.model, batch()
    exact(engine, x)
    expected = per_record_gradients(copy.deepcopy(model), lambda output, _: F.softplus(output), x, x)
    engine.detach()
    assert not any("forward" in vars(module) for module in model.modules())
    losses_of(model, x).sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[name].sum(0), rtol=1e-10, atol=1e-12)
    model.zero_grad()
    exact(Engine(model), x)


def test_forward_that_somebody_put_on_a_layer() -> None:
    """Libraries replace `forward` of single layers: it is what the model computes, during and after."""
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    layer = model[0]
    layer.forward = lambda x: 2 * F.linear(x, layer.weight, layer.bias)
    x = torch.randn(4, 5).double()
    plain = model(x).detach()
    expected = torch.autograd.grad(squared_error(model(x), x[:, :3]).sum(), list(model.parameters()))
    engine = Engine(model)
    try:
        found = flat_sum(engine.collect(squared_error(model(x), x[:, :3])), torch.ones(4).double())
    except UnsupportedModelError:
        pass  # refusing is fine; computing something else is not
    else:
        for total, one in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(total, one, rtol=1e-10, atol=1e-12)
    engine.detach()
    torch.testing.assert_close(model(x).detach(), plain)


class ChangesItsInput(nn.Module):
    """The layer's input is overwritten after the layer has used it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.on = layer, False

    def forward(self, x: Tensor) -> Tensor:
        h = x.clone()
        out: Tensor = self.layer(h)
        if self.on:
            h.sub_(1)
        return out


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Linear(6, 3), torch.randn(4, 6)),
        (nn.Linear(6, 3), torch.randn(4, 2, 6)),
        (nn.Conv1d(6, 3, 2), torch.randn(4, 6, 5)),
        (nn.LayerNorm(6), torch.randn(4, 6)),
        (nn.RMSNorm(6), torch.randn(4, 6)),
        (nn.GroupNorm(2, 6), torch.randn(4, 6)),
        (nn.PReLU(), torch.randn(4, 6)),
        (nn.Embedding(9, 3), torch.randint(1, 9, (4, 5))),
    ],
    ids=lambda value: repr(value) if isinstance(value, nn.Module) else "",
)
@pytest.mark.parametrize("proved", [True, False], ids=["after a first batch", "on the first batch"])
def test_input_changed_in_place_raises(layer: nn.Module, x: Tensor, proved: bool) -> None:
    """Never a gradient computed from values that the forward pass did not see."""
    model = ChangesItsInput(copy.deepcopy(layer))
    engine = Engine(model)
    if proved:
        engine.collect(model(x).flatten(1).square().sum(1))
    model.on = True
    with pytest.raises((UnsupportedModelError, RuntimeError), match=r"in.?place"):
        engine.collect(model(x).flatten(1).square().sum(1))


def test_input_changed_in_place_names_the_layer() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    engine = Engine(model)
    engine.collect(model(torch.randn(4, 6)).square().sum(1))
    x = torch.randn(4, 6)
    losses = model(x).square().sum(1)
    x.add_(1)
    with pytest.raises(UnsupportedModelError, match="input of 0 was changed in place"):
        engine.collect(losses)


def test_residual_addition_in_place_of_the_output_is_fine() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            out = self.first(x)
            out += x
            out = torch.relu_(out)
            after: Tensor = self.second(out)
            after += out
            return after

    agree(Residual(), torch.randn(4, 6))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.PReLU())
        self.recompute = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = checkpoint(self.inner, h, use_reentrant=False) if self.recompute else self.inner(h)
        out: Tensor = self.last(h)
        return out


def test_activation_checkpointing() -> None:
    model = trained(Checkpointed())
    x, y = batch(), torch.randn(4, 3).double()
    expected = per_record_gradients(model, squared_error, x, y)
    model.recompute = True
    engine = Engine(model)
    for _ in range(2):
        grads = engine.collect(squared_error(model(x), y))
        torch.testing.assert_close(flat_norms(grads), whole_norms(expected), rtol=1e-10, atol=0.0)
