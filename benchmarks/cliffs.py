"""Layers and models whose private step might be slow: `python -m benchmarks.cliffs [--quick] [--case NAME]`

Each row is a small model around one kind of layer, with the time of a private step over that of a plain one, and over
that of the fastest Opacus mode that runs. Nothing should take more than 3 plain steps, or longer than Opacus.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import TensorDataset

from assay.models.standardised import StandardisedConv2d
from benchmarks import report
from benchmarks.contestants import ASSAY, PLAIN, Maker, Setting, plain, private
from benchmarks.rivals import OPACUS
from benchmarks.timing import Effort, add_effort, effort_of, timed

MOST = 3.0
"""The most that a private step may take, in plain steps."""
_WORDS = 20_000


class Ends(nn.Module):
    """A layer between what puts its input into shape and a linear head on the average of its output."""

    def __init__(self, body: nn.Module, width: int, before: nn.Module | None = None) -> None:
        super().__init__()
        self.before, self.body, self.head = before, body, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Any = self.body(x if self.before is None else self.before(x))
        out = out[0] if isinstance(out, tuple) else out
        if out.dim() > 2:  # the width is second after convolutions and last otherwise
            out = out.flatten(2).mean(2) if out.dim() == 4 else out.mean(1)
        scores: Tensor = self.head(out)
        return scores


class Pairs(nn.Module):
    """A bilinear layer on the two halves of a record."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Bilinear(64, 64, 64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.both(*x.chunk(2, 1))
        return out


class Scaled(nn.Module):
    """RMS normalisation as Llama and T5 write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))
        return scaled


class Attending(nn.Module):
    """Self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


def _still(norm: nn.BatchNorm2d) -> nn.Module:
    return norm.eval()


def _convolutions(norm: Callable[[int], nn.Module]) -> nn.Module:
    layers = [nn.Conv2d(3, 32, 3, padding=1), norm(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), norm(32)]
    return nn.Sequential(*layers, nn.ReLU())  # or the average behind an InstanceNorm would not depend on its input


def _linears(norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), norm(128), nn.ReLU(), nn.Linear(128, 64), norm(64))


def _positions(records: int) -> Tensor:
    return torch.randn(records, 32, 64)


def _images(records: int) -> Tensor:
    return torch.randn(records, 3, 32, 32)


def _words(records: int) -> Tensor:
    return torch.randint(_WORDS, (records, 32))


@dataclass(frozen=True)
class Case:
    """A model by name, and its records."""

    label: str
    make: Callable[[], nn.Module]
    records: Callable[[int], Tensor]
    batch: int = 64

    def build(self) -> nn.Module:
        """The model, the same weights every time."""
        torch.manual_seed(0)
        return self.make()

    def data(self) -> TensorDataset:
        """One batch of random records, the same every time."""
        torch.manual_seed(1)
        return TensorDataset(self.records(self.batch), torch.randint(10, (self.batch,)))


CASES = (
    Case("EmbeddingBag, 20,000 × 64", lambda: Ends(nn.EmbeddingBag(_WORDS, 64), 64), _words),
    Case("Embedding, 20,000 × 64", lambda: Ends(nn.Embedding(_WORDS, 64), 64), _words),
    Case("Bilinear, 64 × 64 × 64", lambda: Ends(Pairs(), 64), lambda n: torch.randn(n, 128)),
    Case("weight_norm, linear", lambda: Ends(weight_norm(nn.Linear(64, 64)), 64), _positions),
    Case("weight_norm, convolution", lambda: Ends(weight_norm(nn.Conv2d(3, 32, 3)), 32), _images),
    Case("LSTM, 64 hidden, 32 positions", lambda: Ends(nn.LSTM(64, 64, batch_first=True), 64), _positions),
    Case("GRU, 64 hidden, 32 positions", lambda: Ends(nn.GRU(64, 64, batch_first=True), 64), _positions),
    Case("RNN, 64 hidden, 32 positions", lambda: Ends(nn.RNN(64, 64, batch_first=True), 64), _positions),
    Case("ConvTranspose2d", lambda: Ends(nn.ConvTranspose2d(3, 32, 4, stride=2, padding=1), 32), _images),
    Case("standardised convolution", lambda: Ends(StandardisedConv2d(3, 32, 3, padding=1), 32), _images),
    Case("Conv1d", lambda: Ends(nn.Sequential(nn.Conv1d(32, 64, 5), nn.ReLU(), nn.Flatten()), 3840), _positions),
    Case("depthwise convolution", lambda: Ends(_convolutions(lambda n: nn.Conv2d(n, n, 3, groups=n)), 32), _images),
    Case("GroupNorm", lambda: Ends(_convolutions(lambda n: nn.GroupNorm(8, n)), 32), _images),
    Case("InstanceNorm2d", lambda: Ends(_convolutions(lambda n: nn.InstanceNorm2d(n, affine=True)), 32), _images),
    Case("BatchNorm2d, eval", lambda: Ends(_convolutions(lambda n: _still(nn.BatchNorm2d(n))), 32), _images),
    Case("LayerNorm", lambda: Ends(_linears(nn.LayerNorm), 64), _positions),
    Case("RMSNorm", lambda: Ends(_linears(nn.RMSNorm), 64), _positions),
    Case("RMSNorm written by hand", lambda: Ends(_linears(Scaled), 64), _positions),
    Case("PReLU", lambda: Ends(_linears(lambda _: nn.PReLU()), 64), _positions),
    Case("MultiheadAttention", lambda: Ends(Attending(), 64), _positions),
)


@dataclass(frozen=True, kw_only=True)
class Cliff:
    """Milliseconds of a step of each contestant that runs."""

    label: str
    milliseconds: dict[str, float]

    @property
    def over_plain(self) -> float:
        """Private steps in plain ones."""
        return self.milliseconds[ASSAY] / self.milliseconds[PLAIN]

    @property
    def best_rival(self) -> str | None:
        """The fastest mode of Opacus."""
        return min((n for n in OPACUS if n in self.milliseconds), key=self.milliseconds.__getitem__, default=None)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"label": self.label, "milliseconds": self.milliseconds, "over_plain": self.over_plain}


def measure(case: Case, effort: Effort) -> Cliff:
    """Plain, Assay and every mode of Opacus that trains this model."""
    makers: dict[str, Maker] = {PLAIN: plain, ASSAY: private}
    for name, maker in OPACUS.items():
        try:
            trial = maker(case.build(), case.data(), Setting())
            trial.step(*next(trial.batches))
        except Exception:
            continue
        makers[name] = maker
    return Cliff(label=f"{case.label} ({case.batch})", milliseconds=timed(case, makers, effort)[0])


def run(effort: Effort, only: str | None = None) -> list[Cliff]:
    """Every case, or those whose label contains a text."""
    torch.set_num_threads(report.THREADS)
    return [measure(case, effort) for case in CASES if only is None or only.lower() in case.label.lower()]


def rendered(found: list[Cliff]) -> str:
    """The table as text."""
    rows = []
    for cliff in found:
        rival, plain_ms = cliff.best_rival, cliff.milliseconds[PLAIN]
        best = (
            "n/a" if rival is None else f"{cliff.milliseconds[rival] / plain_ms:.2f} ({rival.removeprefix('Opacus ')})"
        )
        ahead = rival is None or cliff.milliseconds[ASSAY] <= cliff.milliseconds[rival]
        met = cliff.over_plain <= MOST and ahead
        rows.append([cliff.label, f"{plain_ms:.2f}", f"{cliff.over_plain:.2f}", best, "yes" if met else "no"])
    return report.table(
        ["layer (batch)", "plain, ms", "Assay / plain", "best Opacus / plain", f"within {MOST:g}"], rows
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cliffs", description="layers that might be slow")
    parser.add_argument("--case", help="only those whose name contains this")
    add_effort(parser)
    options = parser.parse_args()
    print(f"{report.described()}\n\n{rendered(run(effort_of(options), options.case))}")


if __name__ == "__main__":
    main()
