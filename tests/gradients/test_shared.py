"""Parameters that code uses by itself, layers on what all records share, and rows folded into the batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.gradients.engine import Engine

from .oracle import agree, flat_norms, squared_error, trained


class Own(nn.Module):
    """Parameters of these shapes, and code that uses them."""

    def __init__(self, how: Callable[[Own, Tensor], Tensor], **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.how = how
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def _in_place(m: Any, x: Tensor) -> Tensor:
    h = x + 1
    h += m.p
    h.sub_(m.s)
    return h


CODE: dict[str, Own] = {
    "scale": Own(lambda m, x: x * m.s, s=(5,)),
    "scale of one number": Own(lambda m, x: x * m.s.exp(), s=()),
    "places": Own(lambda m, x: x + m.p, p=(1, 6, 5)),
    "places without a first dimension": Own(lambda m, x: m.p + x, p=(6, 5)),
    "places cut to length": Own(lambda m, x: x + m.p[:, : x.shape[1]], p=(1, 9, 5)),
    "places by distances": Own(
        lambda m, x: torch.einsum("bti,tsi->bts", x, m.p[torch.arange(x.shape[1])[:, None] - torch.arange(4) + 3]),
        p=(9, 5),
    ),
    "places by a table": Own(lambda m, x: x + m.p[torch.arange(x.shape[1]) % 2], p=(3, 5)),
    "subtracted and divided by": Own(lambda m, x: (m.p - x) / (1 + m.s.square()), p=(5,), s=(5,)),
    "in place": Own(_in_place, p=(5,), s=(5,)),
    "token": Own(lambda m, x: torch.cat([m.t.expand(len(x), -1, -1), x], 1), t=(1, 1, 5)),
    "token repeated": Own(lambda m, x: torch.cat([m.t.repeat(len(x), 2, 1), x], 1), t=(1, 1, 5)),
    "token in a new dimension": Own(lambda m, x: torch.cat([x, m.t.unsqueeze(0).expand(len(x), -1, -1)], 1), t=(2, 5)),
    "matrix": Own(lambda m, x: x @ m.w, w=(5, 3)),
    "matrix of a matrix": Own(lambda m, x: F.linear(x, m.a.t() @ m.b, m.c), a=(2, 3), b=(2, 5), c=(3,)),
    "matrix normalised": Own(lambda m, x: F.linear(x, m.w / m.w.norm(dim=1, keepdim=True)), w=(3, 5)),
    "einsum": Own(lambda m, x: torch.einsum("bti,oi->bot", x, m.w), w=(3, 5)),
    "from the left": Own(lambda m, x: m.w @ x, w=(3, 6)),
    "queries": Own(lambda m, x: F.scaled_dot_product_attention(m.q.expand(len(x), -1, -1), x, x), q=(1, 2, 5)),
    "bias of attention": Own(lambda m, x: F.scaled_dot_product_attention(x, x, x, m.b), b=(6, 6)),
    "norm with own weights": Own(lambda m, x: F.layer_norm(x, (5,), m.w.exp(), m.b), w=(5,), b=(5,)),
    "condition": Own(lambda m, x: torch.where(x > 0, x, m.s * x), s=(5,)),
    "used twice": Own(lambda m, x: (x * m.s).tanh() * m.s, s=(5,)),
    "detached as well": Own(lambda m, x: x * m.s / m.s.detach().norm(), s=(5,)),
    "without gradient in part": Own(lambda m, x: x * m.s + _constant(m.s), s=(5,)),
}


@torch.no_grad()
def _constant(t: Tensor) -> Tensor:
    return t.sum() * torch.ones(5)


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("code", CODE)
def test_code_that_uses_parameters(code: str, first: bool) -> None:
    model = CODE[code]
    whole = nn.Sequential(model) if first else nn.Sequential(nn.Linear(5, 5), model)
    agree(whole, torch.randn(4, 6, 5), batched=False)
    engine = Engine(whole)
    whole(torch.randn(4, 6, 5))
    assert not engine.once_each()
    engine.detach()


class Convolves(nn.Module):
    """Convolutions without a rule of their own, by torch's functions."""

    def __init__(self, dims: int, *, transposed: bool, **options: Any) -> None:
        super().__init__()
        name = f"{'ConvTranspose' if transposed else 'Conv'}{dims}d"
        self.layer = getattr(nn, name)(4, 6, 3, **options)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2}, {"stride": 2, "padding": 1, "output_padding": 1}, {"dilation": 2, "groups": 2, "bias": False}],
    ids=str,
)
def test_transposed_convolution(dims: int, options: dict[str, Any]) -> None:
    agree(Convolves(dims, transposed=True, **options), torch.randn(3, 4, *[5] * dims))


@pytest.mark.parametrize("shape", [(4, 3), (4, 5, 3)], ids=str)
def test_bilinear(shape: tuple[int, ...]) -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Bilinear(3, 3, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.both(x, x.flip(-1))
            return out

    agree(Pairs(), torch.randn(shape))


def test_batchnorm_in_eval_mode() -> None:
    norm = nn.BatchNorm2d(4).eval()
    norm.running_mean, norm.running_var = torch.randn(4), torch.rand(4) + 0.5
    agree(nn.Sequential(nn.Conv2d(3, 4, 3), norm), torch.randn(4, 3, 6, 6))


class Rows(nn.Module):
    """Folds positions into the batch; `turned` puts the records in turn, `second` in the second dimension."""

    def __init__(self, how: str, inner: nn.Module) -> None:
        super().__init__()
        self.how, self.inner, self.head = how, inner, nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "second":
            h = self.inner(x.transpose(0, 1)).transpose(0, 1)
        elif self.how == "turned":
            h = self.inner(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (x.shape[1], -1)).transpose(0, 1)
        else:
            h = self.inner(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        out: Tensor = self.head(h.tanh()).flatten(1)
        return out


@pytest.mark.parametrize("length", [6, 4, 8, 1], ids=lambda n: f"{n} rows")
@pytest.mark.parametrize(
    "inner",
    [
        nn.Linear(5, 5),
        nn.LayerNorm(5),
        nn.GroupNorm(1, 5),
        Own(lambda m, x: x * m.s, s=(5,)),
        nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(10, 5)),
    ],
    ids=["linear", "layer norm", "group norm", "bare", "convolution"],
)
def test_rows_folded_into_the_batch(inner: nn.Module, length: int) -> None:
    agree(Rows("folded", inner), torch.randn(4, length, 5), batched=False)


@pytest.mark.parametrize("length", [6, 4, 8])
def test_records_in_the_second_dimension_of_a_layer(length: int) -> None:
    agree(Rows("second", nn.Linear(5, 5)), torch.randn(4, length, 5))


class Relative(nn.Module):
    """As XLNet attends: the records are second in what it attends to, and third in the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Relative.Attention(), nn.Linear(5, 2)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.bias = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.randn(5))

        def forward(self, h: Tensor, r: Tensor, mask: Tensor | None = None) -> Tensor:
            q = torch.einsum("ibd,de->ibe", h, self.q) + self.bias
            scores = torch.einsum("ibd,jbd->ijb", q, h) + torch.einsum("ibd,jbd->ijb", q, r[: len(h)])
            scores = scores if mask is None else scores - mask
            return torch.einsum("ijb,jbd->ibd", scores.softmax(1), h)

    def forward(self, x: Tensor, masked: bool = True) -> Tensor:
        h = x.transpose(0, 1)
        r = torch.linspace(-1, 1, 10 * len(h), dtype=x.dtype).view(-1, 1, 5).expand(-1, len(x), -1)
        h = self.inner(h, r, (h[:, None, :, 0] - h[None, :, :, 0]).abs()) if masked else self.inner(h, r)
        out: Tensor = self.head(h.transpose(0, 1).tanh()).flatten(1)
        return out


@pytest.mark.parametrize("length", [6, 7, 8])
def test_records_second_and_third(length: int) -> None:
    agree(Relative(), torch.randn(4, length, 5))


def test_records_second_and_third_are_not_guessed() -> None:
    """As many positions as records in the first batch: a wrong guess shows."""
    model = Relative()
    engine = Engine(model)
    with pytest.raises(UnsupportedModelError, match="something else record by record"):
        engine.collect(model(torch.randn(4, 4, 5)).square().sum(1))


def test_records_second_and_third_in_a_later_batch_of_as_many_positions() -> None:
    """There every dimension could be the records': where they are was decided on the first batch."""
    model, x = trained(Relative()), torch.randn(4, 6, 5).double()
    plain = copy.deepcopy(model)
    engine = Engine(model)
    for some in (x, x[:3, :3], x[:2, :2]):
        found = engine.collect(model(some).square().sum(1)).per_record()
        names, parameters = zip(*plain.named_parameters(), strict=True)
        for i in range(len(some)):
            alone = torch.autograd.grad(plain(some[i : i + 1]).square().sum(), parameters)
            for name, g in zip(names, alone, strict=True):
                torch.testing.assert_close(found[name][i], g)


def test_records_second_in_a_call_that_the_first_batch_did_not_show() -> None:
    """Positions would be taken for records."""
    model = Relative()
    engine = Engine(model)
    engine.collect(model(torch.randn(4, 6, 5)).square().sum(1))
    with pytest.raises(UnsupportedModelError, match="other arguments than in the first batch"):
        model(torch.randn(4, 4, 5), masked=False)


@pytest.mark.parametrize("inner", [nn.Linear(5, 5), nn.LayerNorm(5), Own(lambda m, x: x * m.s, s=(5,))], ids=repr)
@pytest.mark.parametrize("length", [6, 4, 2])
def test_rows_of_different_records_in_turn(inner: nn.Module, length: int) -> None:
    """Taken for rows of one record, a record would count in the norms of others: each row is told by its gradient."""
    model, x = Rows("turned", copy.deepcopy(inner)), torch.randn(4, length, 5)
    if not isinstance(inner, Own):
        agree(model, x)
        return
    engine = Engine(model)
    with pytest.raises(UnsupportedModelError, match="mixes records"):
        engine.collect(squared_error(model(x), torch.zeros(4, 2 * length)))


def test_rows_that_are_folded_for_the_first_time_later_are_refused() -> None:
    model = Rows("folded", nn.Linear(5, 5))
    engine = Engine(model)
    engine.collect(squared_error(model(torch.randn(4, 1, 5)), torch.zeros(4, 2)))
    losses = squared_error(model(torch.randn(4, 3, 5)), torch.zeros(4, 6))
    with pytest.raises(UnsupportedModelError, match=r"inner works on a tensor|of shape \(12, 5\)"):
        engine.collect(losses)


def test_places_stay_shared_in_a_later_batch_of_as_many_records() -> None:
    model = trained(nn.Sequential(Own(lambda m, x: (x + m.p).tanh(), p=(6, 5)), nn.Linear(5, 2)))
    engine = Engine(model)
    x = torch.randn(12, 6, 5).double()

    def gradients(records: int) -> Tensor:
        return engine.collect(model(x[:records]).flatten(1).square().sum(1)).per_record()["0.p"]

    gradients(12)
    assert engine.proven
    torch.testing.assert_close(gradients(6)[:5], gradients(5))


class Pooled(nn.Module):
    """A parameter with what depends on all records."""

    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.pool, self.p, self.head = pool, nn.Parameter(torch.randn(5)), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x + self.p * self.pool(x))
        return out


@pytest.mark.parametrize(
    "pool",
    [lambda x: x.mean(0), lambda x: x.mean(0, keepdim=True), lambda x: x.mean(0).expand_as(x), lambda x: x.flip(0)],
    ids=["mean", "mean in one row", "mean in all rows", "another record"],
)
@pytest.mark.parametrize("detached", [False, True])
def test_parameter_beside_other_records_is_refused(pool: Callable[[Tensor], Tensor], detached: bool) -> None:
    model = Pooled((lambda x: pool(x.detach())) if detached else pool)
    model = nn.Sequential(nn.Linear(5, 5), model)  # type: ignore[assignment]
    engine = Engine(model)
    with pytest.raises(UnsupportedModelError):
        engine.collect(squared_error(model(torch.randn(4, 5)), torch.zeros(4, 2)))


class Biased(nn.Module):
    """Asks a module below for what it makes of its parameter, without calling it, as MaxViT does."""

    class Table(nn.Module):
        def __init__(self, *, called: bool) -> None:
            super().__init__()
            self.p, self.called = nn.Parameter(torch.randn(6, 6)), called

        def bias(self) -> Tensor:
            return self.p.exp()

        def forward(self, x: Tensor) -> Tensor:
            return x * self.p.mean() if self.called else x

    def __init__(self, *, called: bool) -> None:
        super().__init__()
        self.table, self.map = Biased.Table(called=called), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.map(self.table(x)).tanh()
        return F.scaled_dot_product_attention(h, h, h, self.table.bias())


@pytest.mark.parametrize("called", [False, True])
def test_parameter_that_another_module_reads(called: bool) -> None:
    agree(Biased(called=called), torch.randn(4, 6, 5))


def test_each_parameter_counts_in_its_own_layer() -> None:
    """A function of parameters of two layers: norms by layer are those of each."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(5, 3), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.one.weight * self.two.weight, self.two.bias) + self.one(x)

    agree(Two(), torch.randn(4, 5))


def test_norms_of_what_is_computed_from_a_parameter_are_never_too_small() -> None:
    """The gradient with respect to the computed weight may be far smaller than that with respect to the parameter."""
    model = nn.Sequential(Own(lambda m, x: F.linear(x, 100.0 * m.w), w=(3, 5))).double()
    engine = Engine(model)
    x = torch.randn(4, 5).double()
    for _ in range(2):
        norms = flat_norms(engine.collect(model(x).sum(1)))
        torch.testing.assert_close(norms, 100.0 * 3**0.5 * x.norm(dim=1))


@pytest.mark.parametrize("layers", [4, 2])
def test_states_of_as_many_layers_as_there_are_records(layers: int) -> None:
    model = nn.LSTM(5, 3, layers, batch_first=True)
    engine = Engine(model)
    out, _ = model(torch.randn(4, 6, 5))
    assert flat_norms(engine.collect(out.flatten(1).square().sum(1))).isfinite().all()


def test_an_output_of_as_many_rows_as_there_are_records() -> None:
    class Extra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x.detach().sum() * torch.ones(4, 2)

    model = Extra()
    engine = Engine(model)
    engine.collect(model(torch.randn(4, 5))[0].square().sum(1))


def test_an_output_of_a_fixed_size_that_the_loss_uses_is_compared() -> None:
    """The losses take its rows for records: what it says of other records must show."""

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x.mean(0).expand(4, 5))
            return out

    model = Fixed()
    engine = Engine(model)
    with pytest.raises(UnsupportedModelError):
        engine.collect(model(torch.randn(4, 5)).square().sum(1))


@pytest.mark.parametrize(("dims", "side"), [(1, 9), (2, 9), (3, 5)])
def test_convolution_by_patches(dims: int, side: int) -> None:
    """Windows that touch without overlap, and a margin that no window covers."""
    agree(nn.Sequential(getattr(nn, f"Conv{dims}d")(2, 40, 2, stride=2), nn.Tanh()), torch.randn(3, 2, *[side] * dims))
    agree(nn.Sequential(getattr(nn, f"Conv{dims}d")(3, 60, 4, stride=4), nn.Tanh()), torch.randn(3, 3, *[5] * dims))


class Adapted(nn.Module):
    """Calls a layer with weights that it computes from several parameters, as hypernetworks and adapters do."""

    def __init__(self, layer: nn.Module, *, scale: bool = False) -> None:
        super().__init__()
        self.layer, self.scale = layer, nn.Parameter(torch.rand(())) if scale else None
        shape = layer.get_parameter("weight").shape
        self.a, self.b = nn.Parameter(torch.randn(shape[0], 2)), nn.Parameter(torch.randn(2, shape[1:].numel()))

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = self.layer.weight
        made = weight * (1 if self.scale is None else self.scale) + (self.a @ self.b).view(weight.shape)
        out: Tensor = torch.func.functional_call(self.layer, {"weight": made}, (x,))
        return out + self.layer(x)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(5, 4), (6, 5)),
        (nn.Linear(5, 4), (6, 3, 5)),
        (nn.Conv1d(3, 4, 2, bias=False), (6, 3, 5)),
        (nn.Conv2d(2, 3, 3, padding=1), (5, 2, 4, 4)),
    ],
)
@pytest.mark.parametrize("scale", [False, True])
def test_a_layer_called_with_computed_weights(layer: nn.Module, shape: tuple[int, ...], scale: bool) -> None:
    agree(nn.Sequential(Adapted(layer, scale=scale), nn.Tanh()), torch.randn(shape))


def test_an_embedding_called_with_computed_weights() -> None:
    agree(nn.Sequential(Adapted(nn.Embedding(7, 3)), nn.Linear(3, 2)), torch.randint(0, 7, (6, 4)))


def test_recurrent_layers_called_with_computed_weights_are_refused_by_name() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.s = nn.GRU(3, 3, batch_first=True), nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            weight = {"weight_ih_l0": self.gru.weight_ih_l0 * self.s}
            out: Tensor = torch.func.functional_call(self.gru, weight, (x,))[0]
            return out

    model = Scaled()
    Engine(model)
    with pytest.raises(UnsupportedModelError, match=r"gru \(GRU\) is called with other weights than its own"):
        model(torch.randn(4, 2, 3))


class Transformed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.vmap(self.map)(x)
        return out


def test_calls_within_torch_func_are_refused_by_name() -> None:
    model = Transformed()
    Engine(model)
    with pytest.raises(UnsupportedModelError, match=r"map \(Linear\) is called within a function that torch.func"):
        model(torch.randn(4, 3))
    with pytest.raises(UnsupportedModelError, match=r"the model \(Transformed\) is called within a function"):
        torch.vmap(model)(torch.randn(4, 2, 3))


class Positions(nn.Module):
    """As many positions as records on the first batch, which takes them for what they are."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.table, self.map, self.last = how, nn.Embedding(4, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.register_buffer("waves", torch.randn(4, 5).double())
        self.register_buffer("types", torch.zeros(1, 4, dtype=torch.int64))
        self.prompt = torch.arange(4)

    def forward(self, x: Tensor) -> Tensor:
        waves: Any = self.waves
        types: Any = self.types
        made = {
            "a table": lambda: self.table(torch.arange(4)),
            "a constant": lambda: self.map(waves[: x.shape[1]]),
            "types for each record": lambda: self.table(types.expand(len(x), -1)),
            "a prompt in one row": lambda: self.table(self.prompt[None]),
        }[self.how]()
        out: Tensor = self.last((x + made + 0 * (self.map(x) + self.table.weight)).tanh())
        return out


@pytest.mark.parametrize("how", ["a table", "a constant", "types for each record", "a prompt in one row"])
def test_as_many_positions_as_records_on_the_first_batch(how: str) -> None:
    agree(Positions(how), torch.randn(4, 4, 5))
