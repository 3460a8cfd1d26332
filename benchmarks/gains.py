"""What a step could still gain: noise at no cost, and a step that Inductor compiles as a whole. `python -m
benchmarks.gains [--quick] [--model NAME]`

Beside plain training and Assay's step, in one process and interleaved:

- Assay's step without noise. Noise drawn ahead on a second thread could save no more than this.
- Plain training of the model under `torch.compile`.
- A private step that `torch.compile` takes whole: per-record gradients by `torch.func.vmap`, clipping, torch's own
  normal numbers, which nobody may rely on, and the update. It charges no ledger and checks nothing.

Before anything is timed, the compiled step must have Assay's clipped gradient. Compilation itself does not count.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
import torch._dynamo.config
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import TensorDataset

from benchmarks import engine, report
from benchmarks.contestants import (
    ASSAY,
    CLIP,
    NOISELESS,
    PLAIN,
    Contestant,
    Maker,
    Setting,
    Task,
    plain,
    private,
    whole_batches,
)
from benchmarks.timing import Effort, add_effort, effort_of, timed

TASKS = [task for task in engine.TARGETS if task.model in {"logistic", "mlp", "mnist-cnn", "model3", "resnet20"}]


def without_noise(model: nn.Module, data: TensorDataset, setting: Setting) -> Contestant:  # noqa: ARG001
    """Assay's step with a noise multiplier of zero."""
    return private(model, data, NOISELESS)


def plain_compiled(model: nn.Module, data: TensorDataset, setting: Setting) -> Contestant:
    """Training without privacy, with the model's two passes compiled."""
    model.compile(dynamic=False)
    made = plain(model, data, setting)

    def step(x: Tensor, y: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            made.step(x, y)

    return replace(made, step=step)


def private_compiled(model: nn.Module, data: TensorDataset, setting: Setting) -> Contestant:
    """A private step as one compiled function."""
    names = [name for name, _ in model.named_parameters()]
    values = [p.detach() for p in model.parameters()]

    def loss(values: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        return F.cross_entropy(functional_call(model, given, (x.unsqueeze(0),)), y.unsqueeze(0))

    each = vmap(grad(loss), (None, 0, 0), randomness="error")

    def updated(values: list[Tensor], x: Tensor, y: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        grads = [g.flatten(1) for g in each(values, x, y)]
        norms = torch.stack([g.square().sum(1) for g in grads]).sum(0).sqrt()
        factors = (CLIP / norms.clamp_min(1e-12)).clamp_max(1.0)
        sums = [(factors @ g).view_as(v) for g, v in zip(grads, values, strict=True)]
        if setting.noise_multiplier:
            sums = [s + setting.noise_multiplier * CLIP * torch.randn_like(s) for s in sums]
        means = [s / len(x) for s in sums]
        return [v - setting.lr * m for v, m in zip(values, means, strict=True)], means

    whole = torch.compile(updated, fullgraph=True, dynamic=False)

    def step(x: Tensor, y: Tensor) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():  # Assay watches what loops do, also this one
            made, means = whole(values, x, y)
        values[:] = made
        for p, mean in zip(model.parameters(), means, strict=True):
            p.grad = mean

    return Contestant(model, whole_batches(data), step)


MAKERS: dict[str, Maker] = {
    PLAIN: plain,
    ASSAY: private,
    "Assay without noise": without_noise,
    "plain, compiled": plain_compiled,
    "private, compiled whole": private_compiled,
}


def measure(task: Task, effort: Effort) -> list[str]:
    """A row of the table: milliseconds of a plain step, and the ratio of every other contestant to it."""
    engine.check_agrees(task, private_compiled)
    milliseconds, _ = timed(task, MAKERS, effort)
    base = milliseconds[PLAIN]
    return [task.label, f"{base:.2f}", *(f"{milliseconds[name] / base:.2f}" for name in MAKERS if name != PLAIN)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gains", description="what a step could still gain")
    add_effort(parser)
    parser.add_argument("--model", choices=sorted({task.model for task in TASKS}), help="only this one")
    options = parser.parse_args()
    torch.set_num_threads(report.THREADS)
    torch._dynamo.config.recompile_limit = 64  # a model after another is compiled in the same lines
    rows = [measure(task, effort_of(options)) for task in TASKS if options.model in (None, task.model)]
    heads = ["", "plain, ms", *(f"{name} / plain" for name in MAKERS if name != PLAIN)]
    print(f"{report.described()}\n\n{report.table(heads, rows)}")


if __name__ == "__main__":
    main()
