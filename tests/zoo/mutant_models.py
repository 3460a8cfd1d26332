"""Models and losses of the changelog's "ε came out too small". Each is wrong or, as its twin, right."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.runs.result import cross_entropy


class Keeps(nn.Module):
    """Keeps the mean of its records in a buffer, as running statistics do. Right: counts its calls."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.wrong:
            self.mean.copy_(x.detach().mean(0))
        else:
            self.calls += 1
        return x


class FillsItselfIn(nn.Module):
    """Initialises itself from the first batch that it sees. Right: it is made with a constant."""

    def __init__(self, how: str, *, wrong: bool) -> None:
        super().__init__()
        self.how, self.wrong, self.ready = how, wrong, False
        self.shift = nn.Parameter(torch.zeros(6))
        self.register_buffer("kept", torch.zeros(6))
        self.plain = torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        if self.wrong and not self.ready:
            seen = -x.detach().mean(0)
            if self.how == "a parameter":
                self.shift.data.copy_(seen)
            elif self.how == "a buffer":
                self.kept.copy_(seen)
            elif self.how == "an attribute":
                self.plain = seen
            self.ready = True
        return x + self.shift + self.kept + self.plain


class DividesByBatch(nn.Module):
    """Divides by the number of records in the batch. Right: by a constant."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        return 16 * x / (len(x) if self.wrong else 16)


class RecordsSecond(nn.Module):
    """Centres its records by the batch, and returns them in the second dimension. Right: by a constant."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong, self.linear = wrong, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x - (x.mean(0) if self.wrong else 0.5)
        out: Tensor = self.linear(torch.stack([x, x.flip(1)]))
        return out


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, wrong: bool) -> Tensor:  # type: ignore[override]
        ctx.wrong = wrong
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * (len(grad) if ctx.wrong else 16), None


class ScalesBackward(nn.Module):
    """Its backward pass scales gradients by the number of records. Right: by a constant."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        return _Scaled.apply(x, self.wrong)


class Centred(nn.Module):
    """Subtracts the mean of the batch. Right: that of each record."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        return x - (x.mean(0) if self.wrong else x.mean(1, keepdim=True))


class Hidden:
    """A tensor that the checks do not find."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Opaque(nn.Module):
    """Mixes records, with an input or an output that nothing can be seen of. Right: tensors, each record by itself."""

    def __init__(self, *, wrong: bool, output: bool = False) -> None:
        super().__init__()
        self.hides = wrong and output
        self.centred, self.head = Centred(wrong=wrong), nn.Linear(6, 3)

    def forward(self, x: Tensor | Hidden) -> Tensor | Hidden:
        made = self.head(self.centred(x.value if isinstance(x, Hidden) else x))
        return Hidden(made) if self.hides else made


class _Adds(nn.Module):
    """A bare parameter, for which the engine calls this record by record."""

    def __init__(self) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return x + self.strength * rows.mean(-2)


class Shares(nn.Module):
    """Gives a part one table for all records, from some step on (`share`). Right: a table for each."""

    def __init__(self) -> None:
        super().__init__()
        self.adds, self.shared = _Adds(), False
        self.register_buffer("table", torch.randn(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.adds(x, self.table if self.shared else self.table.expand(len(x), 3, 6))


class Folded(nn.Module):
    """Folds two rows of each record into the batch, and adds the row before to each. Right: each row alone."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong, self.inner = wrong, nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.unflatten(1, (2, 3)).flatten(0, 1)
        out: Tensor = self.inner(rows + rows.roll(1, 0) if self.wrong else rows)
        return out.unflatten(0, (-1, 2)).flatten(1)


class Shifted(nn.Module):
    """Rows folded into the batch, shifted by one: a record's last row goes to the next one. Right: shifted back."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong, self.inner = wrong, nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.unflatten(1, (2, 3)).flatten(0, 1)
        out: Tensor = self.inner(rows.roll(1, 0)).roll(0 if self.wrong else -1, 0)
        return out.unflatten(0, (-1, 2)).flatten(1)


class Token(nn.Module):
    """A parameter times the mean of the batch. Right: times a function of each record."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong, self.token = wrong, nn.Parameter(torch.ones(1, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.token * (x.mean(0, keepdim=True) if self.wrong else x.tanh())


def share(model: nn.Module) -> None:
    """All records share an argument from here on."""
    model[0].shared = True  # type: ignore[index]


def behind_zero(*, wrong: bool) -> nn.Module:
    """Records are mixed before a head that begins at zero: neither values nor gradients show it."""
    head = nn.Linear(8, 3)
    nn.init.zeros_(head.weight)
    return nn.Sequential(nn.Linear(6, 8), Centred(wrong=wrong), head)


class Table(nn.Module):
    """A frozen table that is rescaled by the rows which the records look up (`max_norm`). Right: it is not."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 6, max_norm=0.1 if wrong else None)
        self.table.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table((x[:, 0] > 0).long())


class Remembers:
    """A loss that compares each batch with the one before. Right: with a constant."""

    def __init__(self, *, wrong: bool) -> None:
        self.wrong, self.last = wrong, torch.tensor(0.0)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = cross_entropy(outputs, targets) + (outputs[:, 0] - self.last).square()
        if self.wrong:
            self.last = outputs.detach().mean()
        return losses


class Draws:
    """A loss that draws random numbers which its script fixes. Right: from states that nobody knows."""

    def __init__(self, *, wrong: bool) -> None:
        self.wrong = wrong

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.wrong:
            torch.manual_seed(0)
        return cross_entropy(outputs, targets) * (1 + torch.rand(len(targets)))


class DrawsAndMixes:
    """A random loss, weighted by how often each class is in the batch. Right: by constants."""

    def __init__(self, *, wrong: bool) -> None:
        self.wrong = wrong

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = cross_entropy(outputs + 0.01 * torch.randn_like(outputs), targets)
        return losses / torch.bincount(targets, minlength=3)[targets] if self.wrong else losses / 16


class DrawsAndAverages:
    """A random loss that is divided by the size of its batch. Right: by a constant."""

    def __init__(self, *, wrong: bool) -> None:
        self.wrong = wrong

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) * (1 + torch.rand(len(targets))) / (len(targets) if self.wrong else 16)


class Averaged:
    """A loss that is divided by the size of its batch. Right: by a constant."""

    def __init__(self, *, wrong: bool) -> None:
        self.wrong = wrong

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) / (len(outputs) if self.wrong else 16)


class Outside:
    """A loss with a trained tensor that the model does not have. Right: with a constant."""

    def __init__(self, *, wrong: bool) -> None:
        self.scale = torch.ones((), requires_grad=wrong)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs * self.scale, targets)


def with_norm(*, wrong: bool) -> nn.Module:
    """BatchNorm with fixed statistics."""
    norm = nn.BatchNorm1d(6, affine=False).eval()
    norm.train = lambda mode=True: norm  # type: ignore[assignment]  # stays as it is, whatever the model is told
    return nn.Sequential(norm, nn.Linear(6, 3))


def thaw(model: nn.Module) -> None:
    """The statistics are those of the batch from here on."""
    model[0].training = True  # type: ignore[index]


def add_layer(model: nn.Module) -> None:
    """A layer that the engine has not seen is added to the model, and trained by whoever has its parameters."""
    model.add_module("3", nn.Linear(3, 3))
