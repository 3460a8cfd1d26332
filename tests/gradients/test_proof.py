"""What the first batch proves: each kind of model for which a clipped sum would not be bounded is refused."""

from __future__ import annotations

import copy
import re
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import ConfigError, UnsupportedModelError
from assay.gradients.engine import Engine
from assay.gradients.proof.losses import separate
from assay.gradients.record_grads import RecordGrads
from assay.models.compat import replace_batchnorm
from assay.randomness.streams import Seeded

from .oracle import agree


def step(model: nn.Module, x: Tensor, engine: Engine | None = None) -> RecordGrads:
    """One private step of a model, as a loop would take it."""
    return (engine or Engine(model)).collect(model(x).flatten(1).square().sum(1))


class Mix(nn.Module):
    """Some function of the whole batch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return {
            "centre": lambda: x - x.mean(0),
            "centre, statistics detached": lambda: x - x.mean(0).detach(),
            "batch norm by function": lambda: F.batch_norm(x, None, None, training=True),
            "roll": lambda: x + 0.1 * x.roll(1, 0),
            "sum up to here": lambda: x.cumsum(0),
            "sum from here": lambda: x.flip(0).cumsum(0).flip(0),
            "attention over the batch": lambda: torch.softmax(x @ x.t(), 1) @ x,
            "scale by the largest": lambda: x / x.abs().max(),
            "none": lambda: x,
        }[self.kind]()

    def extra_repr(self) -> str:
        return self.kind


KINDS = ["centre", "batch norm by function", "roll", "sum up to here", "sum from here", "attention over the batch"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("records", [2, 5])
def test_mixing_inside_is_refused(kind: str, records: int) -> None:
    model = nn.Sequential(nn.Linear(6, 6), Mix(kind), nn.Linear(6, 3))
    with pytest.raises(UnsupportedModelError, match=r"0 mixes records.*batch statistics"):
        step(model, torch.randn(records, 6))


@pytest.mark.parametrize("kind", KINDS)
def test_mixing_after_the_last_layer_is_refused(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match="mixes records"):
        step(nn.Sequential(nn.Linear(6, 6), Mix(kind)), torch.randn(4, 6))


def test_mixing_by_an_extreme_value_is_refused() -> None:
    x = torch.ones(4, 6)
    x[2] = 9.0
    with pytest.raises(UnsupportedModelError, match="mixes records"):
        step(nn.Sequential(nn.Linear(6, 6), Mix("scale by the largest"), nn.Linear(6, 3)), x)


@pytest.mark.parametrize("kind", [*KINDS, "scale by the largest"])
def test_mixing_before_the_first_layer_is_refused(kind: str) -> None:
    """One record then moves every record's gradient, though no loss depends on another record's activations."""
    with pytest.raises(UnsupportedModelError, match="mixes records"):
        step(nn.Sequential(Mix(kind), nn.Linear(6, 3)), torch.randn(4, 6))


def test_mixing_in_a_frozen_beginning_is_refused() -> None:
    beginning = nn.Sequential(nn.Linear(6, 6), Mix("centre")).requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match="mixes records"):
        step(nn.Sequential(beginning, nn.Linear(6, 3)), torch.randn(4, 6))


@pytest.mark.parametrize("place", ["inside", "before"])
def test_mixing_that_gradients_do_not_show_is_refused(place: str) -> None:
    mix = Mix("centre, statistics detached")
    model = (
        nn.Sequential(nn.Linear(6, 6), mix, nn.Linear(6, 3))
        if place == "inside"
        else nn.Sequential(mix, nn.Linear(6, 3))
    )
    with pytest.raises(UnsupportedModelError, match="mixes records"):
        step(model, torch.randn(4, 6))


def test_loss_that_mixes_is_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 3))
    engine = Engine(model)
    output = F.normalize(model(torch.randn(4, 6)))
    with pytest.raises(UnsupportedModelError, match="mixes records"):
        engine.collect(F.cross_entropy(output @ output.t(), torch.arange(4), reduction="none"))


def test_model_that_passed_keeps_apart() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Dropout(0.5), nn.Linear(6, 3))
    engine = Engine(model)
    for _ in range(3):
        step(model, torch.randn(4, 6), engine)


@pytest.mark.parametrize("path", ["norm", "deep.1"])
def test_batchnorm_is_refused_by_name_with_the_fix(path: str) -> None:
    layers = (
        {"norm": nn.BatchNorm1d(6)} if path == "norm" else {"deep": nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))}
    )
    model = nn.Sequential()
    for name, layer in {"first": nn.Linear(6, 6), **layers, "last": nn.Linear(6, 3)}.items():
        model.add_module(name, layer)
    with pytest.raises(UnsupportedModelError, match=re.escape(path) + ": BatchNorm1d") as refused:
        Engine(model)
    assert "replace_batchnorm(model" in str(refused.value)
    fixed, _ = replace_batchnorm(model, "layer")
    step(fixed, torch.randn(4, 6))


@pytest.mark.parametrize("frozen", [True, False])
def test_batchnorm_that_was_in_eval_mode_when_attached_is_refused_in_train_mode(frozen: bool) -> None:
    beginning = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4)).requires_grad_(not frozen)
    model = nn.Sequential(beginning, nn.Flatten(), nn.Linear(16, 3)).eval()
    engine = Engine(model)
    model.train()
    with pytest.raises(UnsupportedModelError, match=r"BatchNorm1d|mixes records"):
        step(model, torch.randn(4, 2, 6), engine)


def test_batchnorm_in_eval_mode_is_a_constant() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6).requires_grad_(False), nn.Linear(6, 3)).eval()
    step(model, torch.randn(4, 6))


class TimeFirst(nn.Module):
    """Takes [T, B, D] and gives one row a record."""

    def __init__(self, pick: str) -> None:
        super().__init__()
        self.first, self.last, self.pick = nn.Linear(6, 6), nn.Linear(6, 3), pick

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        h = {"mean": h.mean(0), "first": h[0], "last": h[-1]}[self.pick]
        out: Tensor = self.last(h)
        return out


@pytest.mark.parametrize("pick", ["mean", "first", "last"])
def test_records_in_the_second_dimension_are_refused_where_the_first_looks_like_theirs(pick: str) -> None:
    with pytest.raises(UnsupportedModelError, match="batch_first=True"):
        step(TimeFirst(pick), torch.randn(4, 4, 6))


@pytest.mark.parametrize("pick", ["mean", "first", "last"])
@pytest.mark.parametrize("records", [1, 4, 10])
def test_records_in_the_second_dimension_are_not_their_positions(records: int, pick: str) -> None:
    """Else five positions would be clipped as five records: five times the bound."""
    torch.manual_seed(0)
    model, x = TimeFirst(pick).double(), torch.randn(5, records, 6, dtype=torch.float64)
    alone = [torch.autograd.grad(model(x[:, i : i + 1]).tanh().sum(), list(model.parameters())) for i in range(records)]
    engine = Engine(model)
    engine.expect(records)
    grads = engine.collect(model(x).tanh().sum(1))
    norms = torch.stack([torch.cat([g.flatten() for g in row]).norm() for row in alone])
    torch.testing.assert_close(grads.norms([0] * grads.layers)[:, 0], norms)


@pytest.mark.parametrize("length", [4, 5], ids=["as long as the batch", "longer"])
@pytest.mark.parametrize("pick", [0, -1])
def test_recurrence_over_the_batch_is_refused(length: int, pick: int) -> None:
    """batch_first=False, the default, on records first: the classic mistake."""

    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRU(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.cell(x)[0][:, pick]
            return out

    with pytest.raises(UnsupportedModelError, match="batch_first=True"):
        step(Wrong(), torch.randn(4, length, 6))


class Borrows(nn.Module):
    """Uses a layer's weight without calling the layer; hidden, where the engine cannot put a stand-in."""

    def __init__(self, strength: float = 1.0, *, hidden: bool = True) -> None:
        super().__init__()
        self.table, self.inner, self.strength = nn.Embedding(9, 6), nn.Linear(6, 6), strength
        self.kept = [self.table.weight] if hidden else []

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(self.table(x)).tanh()
        weight = self.kept[0] if self.kept else self.table.weight
        return self.strength * F.linear(h, weight) + h.sum(-1, keepdim=True)


@pytest.mark.parametrize("strength", [1.0, 0.0, 1e-6])
def test_weight_of_another_layer_is_one_more_use_of_it(strength: float) -> None:
    agree(Borrows(strength, hidden=False), torch.randint(0, 9, (4, 5)))


def test_weight_used_outside_its_module_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"table\.weight.*used outside the module"):
        step(Borrows(), torch.randint(0, 9, (4, 5)))


@pytest.mark.parametrize("strength", [0.0, 1e-6])
def test_faint_use_outside_its_module_is_refused_too(strength: float) -> None:
    """A gate that starts at (or near) zero hides the use in the first sum; the graph shows it by the second batch."""
    model = Borrows(strength)
    engine = Engine(model)

    def two_steps() -> None:
        for _ in range(2):
            step(model, torch.randint(0, 9, (4, 5)), engine)

    with pytest.raises(UnsupportedModelError, match=r"table\.weight"):
        two_steps()


def test_weight_decay_in_the_loss_is_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 3))
    engine = Engine(model)
    losses = model(torch.randn(4, 6)).square().sum(1) + model[0].weight.square().sum()
    with pytest.raises(UnsupportedModelError, match=r"0\.weight"):
        engine.collect(losses)


@pytest.mark.parametrize("records", [1, 4])
def test_parameter_outside_the_model_is_refused(records: int) -> None:
    model, outside = nn.Linear(6, 3), nn.Linear(6, 6)
    engine = Engine(model)
    with pytest.raises(UnsupportedModelError, match=r"\(6,\)|\(6, 6\)"):
        engine.collect(model(outside(torch.randn(records, 6))).square().sum(1))
    assert outside.weight.grad is None
    outside.requires_grad_(False)
    engine.collect(model(outside(torch.randn(records, 6))).square().sum(1))


def test_parameter_that_is_unfrozen_later_is_refused() -> None:
    """The engine does not know it: its gradient would go to the optimizer without noise."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    engine = Engine(model)
    step(model, torch.randn(4, 6), engine)
    model[0].requires_grad_(True)
    with pytest.raises(UnsupportedModelError, match=r"0\.weight"):
        step(model, torch.randn(4, 6), engine)


def test_instance_norm_that_uses_stored_statistics_computes_what_it_should() -> None:
    model = nn.Sequential(nn.InstanceNorm1d(4, affine=True, track_running_stats=True)).eval()
    x = 3 * torch.randn(4, 4, 6) + 1
    plain = model(x).detach()
    Engine(model)
    torch.testing.assert_close(model(x).detach(), plain)


def test_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no trainable parameter"):
        Engine(nn.Linear(2, 2).requires_grad_(False))


@pytest.mark.parametrize(
    ("reduce", "hint"),
    [
        (lambda losses: losses.mean(), "reduction='none'"),
        (lambda losses: losses, "one value per record"),
        (lambda losses: losses.sum(1).detach(), "gradients enabled"),
    ],
    ids=["scalar", "two dimensions", "without gradient"],
)
def test_loss_of_the_wrong_kind(reduce: object, hint: str) -> None:
    model = nn.Linear(6, 3)
    engine = Engine(model)
    with pytest.raises(ConfigError, match=r"^loss = ") as refused:
        engine.collect(reduce(model(torch.randn(4, 6)).square()))  # type: ignore[operator]
    assert hint in str(refused.value)
    step(model, torch.randn(4, 6), engine)


def test_loss_that_does_not_reach_the_model_is_refused() -> None:
    """Made by another model, or before the engine was attached: there would be nothing to clip and nothing to learn."""
    model = nn.Linear(6, 3)
    early = model(torch.randn(4, 6)).square().sum(1)
    engine = Engine(model)
    with pytest.raises(UnsupportedModelError, match="weight"):
        engine.collect(early)


def test_refusal_leaves_nothing_in_grad() -> None:
    model = Borrows()
    with pytest.raises(UnsupportedModelError):
        step(model, torch.randint(0, 9, (4, 5)))
    assert all(p.grad is None for p in model.parameters())


def test_first_batch_that_cannot_tell_is_followed_by_one_that_can() -> None:
    """NaN in the first batch proves nothing; the model is judged by the next."""
    model = Borrows()
    engine = Engine(model)
    x = torch.randint(0, 9, (4, 5))
    spoiled = model(x).flatten(1).square().sum(1) * torch.tensor([1.0, float("nan"), 1.0, 1.0])
    try:
        engine.collect(spoiled)
    except UnsupportedModelError:
        return
    with pytest.raises(UnsupportedModelError, match=r"table\.weight"):
        step(model, x, engine)


class Remembers(nn.Module):
    """Writes something down while it trains, and goes on as if nothing were."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.seen = what, torch.zeros(6)
        self.register_buffer("state", torch.zeros(6))
        self.register_buffer("ready", torch.tensor(0))
        self.shift = nn.Parameter(torch.zeros(6)) if what == "initialisation" else 0.0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x - self.state
        if self.what == "mean for inference":
            self.state = 0.5 * self.state + 0.5 * x.detach().mean(0)
        elif self.what == "a record":
            self.state.copy_(x[0].detach())
        elif self.what == "initialisation" and not self.ready:
            self.shift.data.copy_(-x.detach().mean(0))
            self.ready.fill_(1)
        elif self.what == "initialisation of a buffer" and not self.ready:
            self.state.copy_(x.detach().mean(0))
            self.ready.fill_(1)
        elif self.what == "outside buffers":
            x, self.seen = x - self.seen, 0.9 * self.seen + 0.1 * x.detach().mean(0)
        elif self.what == "calls":
            self.ready += 1
        return x + self.shift


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("mean for inference", "buffer 0.state"),
        ("a record", "buffer 0.state"),
        ("initialisation", "parameter 0.shift"),
        ("initialisation of a buffer", "buffer 0.state"),
        ("outside buffers", "remembers"),
    ],
)
def test_what_a_forward_pass_writes_into_the_model_is_refused(what: str, told: str, dropout: float) -> None:
    """It would leave with the model, without noise."""
    model = nn.Sequential(Remembers(what), nn.Dropout(dropout), nn.Linear(6, 3))
    with pytest.raises(UnsupportedModelError, match=told):
        step(model, torch.randn(5, 6) + 3)


def test_what_a_forward_pass_writes_without_looking_at_records_is_fine() -> None:
    model = nn.Sequential(
        Remembers("calls"), nn.Dropout(0.1), nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)), nn.Linear(3, 2)
    )
    engine = Engine(model)
    step(model, torch.randn(5, 6), engine)
    assert engine.proven
    assert int(model[0].ready) == 1, "and the proof's own passes leave it alone"


@pytest.mark.parametrize("affine", [True, False])
def test_batchnorm_that_goes_into_train_mode_later_is_refused(affine: bool) -> None:
    """`model.eval()` to evaluate and `model.train()` to go on: what was a constant uses the batch from there on."""
    norm = nn.BatchNorm1d(6, affine=affine).eval()
    model = nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 3))
    if affine:
        norm.requires_grad_(False)
    engine = Engine(model)
    step(model, torch.randn(5, 6), engine)
    assert engine.proven
    model.eval()
    step(model, torch.randn(5, 6), engine)
    model.train()
    with pytest.raises(UnsupportedModelError, match="1: BatchNorm1d uses statistics of the whole batch"):
        step(model, torch.randn(5, 6), engine)


def test_tensor_outside_the_model_that_is_trained_is_refused() -> None:
    """Not only parameters: whatever gets a gradient of the loss gets it without noise."""
    model, heat = nn.Linear(6, 3), torch.ones(1, requires_grad=True)
    with pytest.raises(UnsupportedModelError, match=r"trainable parameter of shape \(1,\)"):
        Engine(model).collect((model(torch.randn(4, 6)) * heat).sum(1))


def test_parameter_outside_the_model_that_joins_later_is_found() -> None:
    model, heat = nn.Linear(6, 3), nn.Parameter(torch.ones(1))
    engine = Engine(model)
    for _ in range(4):
        step(model, torch.randn(4, 6), engine)
    assert engine.proven
    losses = (model(torch.randn(4, 6)) * heat).sum(1)
    with pytest.raises(UnsupportedModelError, match="not part of the private model"):
        engine.collect(losses)


def test_inputs_and_activations_that_ask_for_gradients_are_no_parameters() -> None:
    """Adversarial inputs, and frozen embeddings whose output is made to require gradients (as adapters do)."""
    model = nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 3))
    model[0].register_forward_hook(lambda _module, _args, output: output.requires_grad_())
    engine = Engine(model)
    for _ in range(3):
        step(model, torch.randn(4, 6, requires_grad=True), engine)
    assert engine.proven


def test_second_engine_on_a_model_is_refused_until_the_first_is_off() -> None:
    """Within another's recording it would see nothing: gradients of zero, and noise alone."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    first = Engine(model)
    with pytest.raises(UnsupportedModelError, match="not closed"):
        Engine(nn.Sequential(nn.Linear(6, 6), model))
    step(model, torch.randn(4, 6), first)
    first.detach()
    second = Engine(model)
    assert float(step(model, torch.randn(4, 6), second).norms([0, 0]).min()) > 0


def test_what_is_written_in_a_pass_record_by_record_is_refused_in_words() -> None:
    class Owner(Remembers):
        def __init__(self) -> None:
            super().__init__("mean for inference")
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale

    with pytest.raises(UnsupportedModelError, match=r"buffer 0\.state"):
        step(nn.Sequential(Owner(), nn.Linear(6, 3)), torch.randn(5, 6))


class SetOnce(nn.Module):
    """Keeps what its first batch told it, outside parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.detach().mean(0)
        return x - self.mean


@pytest.mark.parametrize("records", [1, 5])
def test_what_a_model_keeps_of_its_first_batch_is_refused(records: int) -> None:
    """Later gradients would depend on the records of the first batch. Calling the same model again shows nothing."""
    with pytest.raises(UnsupportedModelError, match=r"mixes records|remembers|writes into the model"):
        step(nn.Sequential(SetOnce(), nn.Linear(6, 3)), torch.randn(records, 6))


@pytest.mark.parametrize("what", ["mean for inference", "a record", "initialisation", "initialisation of a buffer"])
def test_what_a_single_record_writes_into_the_model_is_refused(what: str) -> None:
    with pytest.raises(UnsupportedModelError, match="the forward pass writes into"):
        step(nn.Sequential(Remembers(what), nn.Linear(6, 3)), torch.randn(1, 6) + 3)


def test_a_record_of_zeros_settles_nothing() -> None:
    """It stands for an empty batch; the first real record still has to show that it leaves nothing behind."""
    model = nn.Sequential(Remembers("a record"), nn.Linear(6, 3))
    engine = Engine(model)
    step(model, torch.zeros(1, 6), engine)
    with pytest.raises(UnsupportedModelError, match="the forward pass writes into"):
        step(model, torch.ones(1, 6), engine)


class ByNumber(nn.Module):
    """Divides by how many records there are."""

    def forward(self, x: Tensor) -> Tensor:
        return x / len(x)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("records", [1, 2, 3, 6])
def test_what_depends_on_the_number_of_records_is_refused(records: int, dropout: float) -> None:
    """A record that joins a batch would change what all others contribute."""
    model = nn.Sequential(nn.Linear(6, 6), ByNumber(), nn.Dropout(dropout), nn.Linear(6, 3))
    with pytest.raises(UnsupportedModelError, match="how many records there are"):
        step(model, torch.randn(records, 6))


@pytest.mark.parametrize("kind", [*KINDS, "scale by the largest", "number"])
def test_a_head_that_begins_at_zero_hides_nothing(kind: str) -> None:
    """Outputs and gradients before it are zero on the first batch, whatever is mixed there."""
    head = nn.Linear(6, 3)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    model = nn.Sequential(nn.Linear(6, 6), ByNumber() if kind == "number" else Mix(kind), head)
    with pytest.raises(UnsupportedModelError, match=r"mixes records|how many records there are"):
        step(model, torch.randn(4, 6))
    assert not head.weight.any(), "and it is not moved by the question"


def test_a_model_for_one_number_of_records_is_refused() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.ones(5, 6)

    with pytest.raises(UnsupportedModelError, match="takes 5 records and fails for 2"):
        step(nn.Sequential(nn.Linear(6, 6), Fixed(), nn.Linear(6, 3)), torch.randn(5, 6))


class ScaledBackward(torch.autograd.Function):
    """Leaves values alone and brings the gradient of the batch to norm 1."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0] / grads[0].norm()


@pytest.mark.parametrize("how", ["hook", "function"])
def test_a_backward_pass_that_mixes_is_refused(how: str) -> None:
    """Values and single gradients are as they should be; in the sum one record then scales all the others."""

    class Scaling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if how == "hook":
                x = x * 1.0
                x.register_hook(lambda g: g / g.norm())
                return x
            out: Tensor = ScaledBackward.apply(x)
            return out

    with pytest.raises(UnsupportedModelError, match="the backward pass mixes records"):
        step(nn.Sequential(nn.Linear(6, 6), Scaling(), nn.Linear(6, 3)), torch.randn(4, 6))


class Hidden:
    """An output that only the loss can look into."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Centred(nn.Module):
    def __init__(self, hidden: bool) -> None:
        super().__init__()
        self.body, self.head, self.hidden = nn.Linear(6, 6), nn.Linear(6, 3), hidden

    def forward(self, x: Tensor | Hidden) -> Tensor | Hidden:
        x = x.value if isinstance(x, Hidden) else x
        out = self.head(self.body(x - x.mean(0)))
        return Hidden(out) if self.hidden else out


@pytest.mark.parametrize("how", ["model.forward", "parts", "output out of sight", "input out of sight"])
def test_a_model_that_nothing_can_be_seen_of_is_refused(how: str) -> None:
    """Batch statistics of the inputs, which gradients do not show, are found by calling the whole model again."""
    model, x = Centred(how == "output out of sight"), torch.randn(4, 6)
    engine = Engine(model)
    outputs = {
        "model.forward": lambda: model.forward(x),
        "parts": lambda: model.head(model.body(x - x.mean(0))),
        "output out of sight": lambda: model(x).value,
        "input out of sight": lambda: model(Hidden(x)),
    }[how]()
    with pytest.raises(UnsupportedModelError, match="no call of the whole model"):
        engine.collect(outputs.square().sum(1))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_layer_that_is_added_later_is_refused_at_once(steps: int) -> None:
    model = nn.Sequential(nn.Linear(6, 3))
    engine = Engine(model)
    for _ in range(steps):
        step(model, torch.randn(4, 6), engine)
    model.append(nn.Linear(3, 3))
    with pytest.raises(UnsupportedModelError, match="not part of the private model"):
        step(model, torch.randn(4, 6), engine)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_that_rescales_its_rows_is_refused(kind: type[nn.Module], frozen: bool) -> None:
    """max_norm writes into the rows that a batch looks up, whether they are trained or not."""
    table = kind(50, 6, max_norm=1.0).requires_grad_(not frozen)
    with pytest.raises(UnsupportedModelError, match="max_norm"):
        Engine(nn.Sequential(table, nn.Flatten(), nn.Linear(6, 3)))


def test_a_gradient_that_is_differentiated_is_refused_later_too() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    engine = Engine(model)
    step(model, torch.randn(4, 6), engine)
    x = torch.randn(4, 6, requires_grad=True)
    losses = model(x).square().sum(1)
    with pytest.raises(UnsupportedModelError, match="gradient penalty"):
        torch.autograd.grad(losses.sum(), x, create_graph=True)


def test_an_iteration_in_a_pass_record_by_record_starts_again_for_each() -> None:
    """Spectral normalisation iterates once per call: a record later in the batch must not find it further on."""
    torch.manual_seed(0)

    class Recurrent(nn.Module):  # what vmap cannot batch
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))
            self.norm = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(x) * self.scale
            return out if float(out.sum()) > -1e9 else -out

    model = nn.Sequential(Recurrent(), nn.Linear(6, 3))
    plain = copy.deepcopy(model)
    x = torch.randn(5, 6)
    step(model, x)
    plain(x)
    for (name, mine), theirs in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(mine, theirs), f"{name} went further than one call takes it"


class Always:
    """Coins by which every batch is looked at."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(5)

    def uniform(self, n: int) -> Tensor:
        return torch.rand(n, dtype=torch.float64, generator=self._generator) * (1 if n > 1 else 1e-6)


class Never(Always):
    """Coins by which no later batch is."""

    def uniform(self, n: int) -> Tensor:
        return super().uniform(n) if n > 1 else torch.full((1,), 1 - 1e-9, dtype=torch.float64)


@pytest.mark.parametrize("kind", [*KINDS, "centre, statistics detached", "scale by the largest"])
def test_mixing_that_begins_later_is_found_on_a_batch_that_is_looked_at(kind: str) -> None:
    now = ["none"]

    class Hidden(Mix):
        def forward(self, x: Tensor) -> Tensor:
            return Mix(now[0]).forward(x)

    for layers in ([Hidden(""), nn.Linear(6, 3)], [nn.Linear(6, 6), Hidden(""), nn.Linear(6, 3)]):
        model, now[0] = nn.Sequential(*layers), "none"
        engine = Engine(model, coins=Always())
        for _ in range(3):
            step(model, torch.randn(5, 6), engine)
        now[0] = kind
        with pytest.raises(UnsupportedModelError, match="mixes records"):
            [step(model, torch.randn(5, 6), engine) for _ in range(60)]  # one misses with probability 0.6 at most


@pytest.mark.parametrize("kind", [*KINDS, "centre, statistics detached", "scale by the largest"])
def test_mixing_that_an_attribute_switches_on_is_found_at_once(kind: str) -> None:
    model = nn.Sequential(Mix("none"), nn.Linear(6, 3))
    engine = Engine(model, coins=Never())
    for _ in range(3):
        step(model, torch.randn(5, 6), engine)
    model[0].kind = kind
    with pytest.raises(UnsupportedModelError, match="mixes records"):
        step(model, torch.randn(5, 6), engine)


def test_looking_again_changes_no_bit_and_draws_no_number() -> None:
    """Seeded runs are the same to the last bit, whichever batches are looked at."""

    def run(coins: Always) -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 3)
        )
        engine, found = Engine(model, coins=coins), []
        for _ in range(5):
            grads = step(model, torch.randn(7, 2, 6), engine)
            norms = grads.norms([0] * grads.layers)
            found += [norms, *grads.weighted_sum(torch.ones_like(norms), [0] * grads.layers).values()]
        return found, torch.get_rng_state()

    (often, state), (rarely, other) = run(Always()), run(Never())
    assert all(torch.equal(a, b) for a, b in zip(often, rarely, strict=True))
    assert torch.equal(state, other)


@pytest.mark.parametrize("rows", [2, 3, 8, 17, 64])
def test_no_two_of_eight_records_are_always_replaced_together(rows: int) -> None:
    """A function of a pair of neighbours shows, wherever they stand."""

    class Pair(nn.Module):
        def __init__(self, first: int) -> None:
            super().__init__()
            self.first = first

        def forward(self, x: Tensor) -> Tensor:
            if len(x) < self.first + 2:
                return x
            pair = x[self.first : self.first + 2]
            return torch.cat([x[: self.first], pair + pair.flip(0), x[self.first + 2 :]])

    for first in range(min(rows, 8) - 1) if rows <= 8 else ():
        with pytest.raises(UnsupportedModelError, match=r"mixes records|how many records"):
            step(nn.Sequential(Pair(first), nn.Linear(6, 3)), torch.randn(rows, 6))
    step(nn.Sequential(nn.Linear(6, 3)), torch.randn(rows, 6))


def test_a_loss_that_mixes_by_values_alone_is_refused_where_the_loss_is_known() -> None:
    def balanced(outputs: Tensor, targets: Tensor) -> Tensor:
        """Weights by how often a class is in the batch."""
        counts = torch.bincount(targets, minlength=3)
        return F.cross_entropy(outputs, targets, reduction="none") / counts[targets]

    targets = torch.tensor([2, 0, 1, 0, 1, 0, 1, 2])
    for seed in range(20):
        coins = Seeded(seed).stream("test", 0)
        with pytest.raises(UnsupportedModelError, match=r"the loss (mixes|of a record depends)"):
            separate(balanced, torch.randn(8, 3), targets, coins)
        assert separate(lambda o, t: F.cross_entropy(o, t, reduction="none"), torch.randn(8, 3), targets, coins)
        probabilities = torch.rand(8)
        assert separate(
            lambda o, t: F.binary_cross_entropy(o, t, reduction="none"), probabilities, (targets > 0).float(), coins
        )


def test_an_optimizer_may_step_between_a_call_for_another_purpose_and_the_next() -> None:
    """A look at the test records without `no_grad`, before and after the engine is proven, marks nothing for good."""
    model = nn.Sequential(nn.Linear(6, 3))
    engine = Engine(model)
    for _ in range(3):
        model(torch.randn(9, 6))
        with torch.no_grad():
            model[0].weight.add_(0.1)
        step(model, torch.randn(4, 6), engine)
    assert engine.proven


class Large(nn.Module):
    """A first layer whose output is too large to be kept until the losses are there, and what follows it."""

    def __init__(self, kind: str = "none", *, in_place: bool = False) -> None:
        super().__init__()
        self.first, self.mix, self.last = nn.Conv2d(1, 16, 3, padding=1), Mix(kind), nn.Linear(16, 3)
        self.activation = nn.ReLU(inplace=in_place)

    def forward(self, x: Tensor) -> Tensor:
        made = self.first(x)
        OUTPUTS.append(weakref.ref(made))
        made = self.mix(self.activation(made))
        out: Tensor = self.last(made.flatten(2).mean(2))
        return out


OUTPUTS: list[weakref.ref[Tensor]] = []


def test_a_large_output_does_not_outlive_its_use() -> None:
    model = Large()
    engine = Engine(model)
    OUTPUTS.clear()
    losses = model(torch.randn(6, 1, 32, 32)).square().sum(1)
    assert [ref() for ref in OUTPUTS] == [None]
    engine.collect(losses)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_large_output_is_looked_at_as_a_small_one_is(in_place: bool) -> None:
    x = torch.randn(6, 1, 32, 32, dtype=torch.float64)
    if in_place:
        agree(Large(in_place=True).double(), x)
    for kind in ("centre, statistics detached", "roll"):
        with pytest.raises(UnsupportedModelError, match="mixes records"):
            step(Large(kind, in_place=in_place), x.float())
