"""Cases that one process and several must train alike: each runs unchanged in both.

`python cases.py OUT CASE...` under torchrun writes the tensors and facts of every case and rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from assay import AssayError, Optimizer, Plan, PrivateStep, Training, fit, methods, resume
from assay.accounting.epsilon import Adjacency
from assay.accounting.schedules import Banded, Buffered
from assay.data.persons import rows_kept
from assay.data.sampling import FullBatch, Shuffled, WithoutReplacement
from assay.data.units import Sampled, Unit
from assay.distributed.world import world
from assay.gradients import clipping as clip
from assay.randomness.streams import Seeded
from assay.runs.callbacks import OnStep

Outcome = tuple[dict[str, Tensor], dict[str, Any]]
CASES: dict[str, Callable[[], Outcome]] = {}
RECORDS = 301
PLAN = Plan(records=RECORDS, batch_size=40, steps=9, noise_multiplier=1.0, delta=1e-3)
SGD = Optimizer(lr=0.2, momentum=0.9)
ADAM = Optimizer(name="adam", lr=0.01)


def case(make: Callable[[], Outcome]) -> Callable[[], Outcome]:
    CASES[make.__name__] = make
    return make


def digits(dtype: torch.dtype = torch.float64, image: bool = False) -> TensorDataset:
    x, y = load_digits(return_X_y=True)
    inputs = torch.from_numpy(x[:RECORDS] / 16).to(dtype)
    return TensorDataset(inputs.view(-1, 1, 8, 8) if image else inputs, torch.from_numpy(y[:RECORDS]).long())


def gaussian(records: int) -> Tensor:
    """The same inputs on every rank, whatever was drawn before."""
    return torch.randn(records, 64, generator=torch.Generator().manual_seed(0)).double()


def perceptron(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).to(dtype)


def convolutional() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 10)).double()


class Shift(nn.Module):
    """A layer type that no rule knows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.linspace(-1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.by) + self.by


class Sorts(nn.Module):
    """Layers with a rule and without, one used twice, shared weights, frozen ones, and odd numbers of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 3)
        self.norm = nn.GroupNorm(1, 5)
        self.frozen = nn.Linear(180, 21)
        self.frozen.requires_grad_(False)
        self.shift = Shift(21)
        self.twice = nn.Linear(21, 21)
        self.up = nn.Linear(21, 7, bias=False)
        self.again = nn.Linear(21, 7, bias=False)
        self.again.weight = self.up.weight
        self.head = nn.Linear(7, 10)
        self.one = nn.Linear(10, 1)  # a single row: one rank has none of it

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.norm(self.conv(x))).flatten(1)
        x = self.shift(torch.tanh(self.frozen(x)))
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        out = self.head(torch.tanh(self.up(x)) + self.again(x))
        return out + self.one(out)


def of_many_sorts() -> nn.Module:
    torch.manual_seed(3)
    return Sorts().double()


def darker(dtype: torch.dtype) -> TensorDataset:
    """Records to test on, which nobody is trained on."""
    x, y = digits(dtype).tensors
    return TensorDataset(0.9 * x, y)


def trained(
    plan: Plan = PLAN,
    *,
    model: nn.Module | None = None,
    data: Dataset[Any] | None = None,
    training: Training | None = None,
) -> Outcome:
    network, seen = model or perceptron(), []
    result = fit(
        network,
        digits() if data is None else data,
        plan=plan,
        test=darker(next(network.parameters()).dtype) if data is None else None,
        training=training or Training(optimizer=SGD, seed=7),
        callbacks=[OnStep(lambda now: seen.append(now.step))],
    )
    return _whole(result.model), {
        "epsilon": result.epsilon,
        "accuracy": result.accuracy,
        "history": result.record["history"],
        "watched": len(seen),
    }


def _whole(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for n, p in model.named_parameters()}


def share(data: TensorDataset, sizes: tuple[int, int]) -> TensorDataset:
    """The rank's own records where there are two ranks; all of them in one process."""
    if world().size == 1:
        return data
    first = sizes[0] * (not world().leader)
    return TensorDataset(*(t[first : first + sizes[not world().leader]] for t in data.tensors))


@case
def plain() -> Outcome:
    return trained()


def _by_person(sampled: Sampled, training: Training | None = None) -> Outcome:
    """Seven rows at the most of 61 persons, who have one to nine of the digits each."""
    ids = torch.arange(RECORDS).sqrt().mul(3.5).long()
    unit = Unit(name="id", persons=len(ids.unique()), rows=7, sampled=sampled)
    records = unit.persons if unit.whole else rows_kept(ids, 7)
    plan = replace(PLAN, records=records, batch_size=records / 5, unit=unit)
    training = training or Training(optimizer=SGD, seed=7)
    result = fit(perceptron(), digits(), plan=plan, training=training, units=ids)
    return _whole(result.model), {"epsilon": result.epsilon, "persons": result.record["persons"]["persons"]}


@case
def persons() -> Outcome:
    return _by_person(Sampled.PERSONS)


@case
def rows_of_persons() -> Outcome:
    return _by_person(Sampled.ROWS)


@case
def single_precision() -> Outcome:
    return trained(model=perceptron(torch.float32), data=digits(torch.float32))


@case
def accumulated() -> Outcome:
    return trained(training=Training(optimizer=SGD, seed=7, max_physical_batch=6))


@case
def adam_average_adaptive_clipping() -> Outcome:
    return trained(
        replace(PLAN, clip=clip.AdaptiveQuantile(bound=0.3)), training=Training(optimizer=ADAM, ema=0.9, seed=7)
    )


@case
def uneven_shares() -> Outcome:
    return trained(data=share(digits(), (37, RECORDS - 37)))


@case
def a_rank_without_records() -> Outcome:
    return trained(data=share(digits(), (RECORDS, 0)))


@case
def a_leader_without_records() -> Outcome:
    return trained(data=share(digits(), (0, RECORDS)))


@case
def one_record() -> Outcome:
    data = TensorDataset(*(t[:1] for t in digits().tensors))
    return trained(replace(PLAN, records=1, batch_size=0.5), data=data)


@case
def without_replacement() -> Outcome:
    return trained(replace(PLAN, sampling=WithoutReplacement, adjacency=Adjacency.REPLACE_ONE))


@case
def shuffled() -> Outcome:
    return trained(replace(PLAN, sampling=Shuffled))


@case
def banded_noise() -> Outcome:
    return trained(replace(PLAN, noise_schedule=Banded(bands=3, momentum=0.9)))


@case
def noise_with_buffers() -> Outcome:
    """Length and groups are those of the run."""
    return trained(replace(PLAN, batch_size=43, noise_schedule=Buffered(buffers=2, momentum=0.9)))


@case
def full_batches() -> Outcome:
    return trained(replace(PLAN, sampling=FullBatch, batch_size=RECORDS, steps=3))


def _method(name: str, **options: Any) -> Callable[[], Outcome]:
    def run() -> Outcome:
        chosen = methods.get(name, **options)
        network = convolutional()
        plan = replace(PLAN, steps=4, method=chosen, clip=chosen.clip).for_model(network)
        return trained(plan, model=network, data=digits(image=True))

    return run


CASES |= {f"method {name}": _method(name) for name in ("dpadam", "lssgd", "gredp", "spectral", "discrete")}
CASES |= {
    "method gredp, maps with noise that is not white": _method("gredp", variant="published", noise_form="0.6/0.8"),
    "method discrete, learnt priors": _method("discrete", priors="learnt"),
}


@case
def a_stage_before_training() -> Outcome:
    """Relevance by a network that is itself trained privately, on the leader."""
    torch.manual_seed(4)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    data = digits(torch.float32, image=True)
    chosen = methods.get("afrrs", share=0.3)
    plan = replace(PLAN, method=chosen, clip=chosen.clip).for_model(network)
    tensors, facts = trained(plan, model=network, data=data)
    return tensors | {"scale": dict(network.named_buffers())["input_scale"]}, facts


@case
def own_loop() -> Outcome:
    """People's own loops, with a ledger that a second step goes on with."""
    with tempfile.TemporaryDirectory() as folder:
        path = world().once(lambda: Path(folder) / "ledger.jsonl")
        for _ in range(2):
            network, data = perceptron(), digits()
            step = PrivateStep(network, PLAN, randomness=Seeded(5), ledger=path)
            optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
            for x, y in step.batches(data, 5):
                if step.backward(F.cross_entropy(network(x), y, reduction="none")):
                    optimizer.step()
            step.close()
        unseeded = PrivateStep(perceptron(), PLAN, ledger=path)
        facts = {"epsilon": unseeded.epsilon(), "limit": unseeded.limit}
        world().once(lambda: None)  # the leader's folder goes when all have looked
    return _whole(network), facts


@case
def stopped_and_resumed() -> Outcome:
    """SIGTERM on one rank stops them all at the same step, and they go on together."""
    return _stopped(Training(optimizer=ADAM, ema=0.9, seed=7))


@case
def ended_by_a_callback() -> Outcome:
    """The leader's callback ends the run on all ranks at the same step."""
    result = fit(
        perceptron(), digits(), plan=PLAN, training=Training(optimizer=SGD, seed=7), callbacks=[OnStep(_at_step_five)]
    )
    facts = {"status": result.record["status"], "steps": result.record["steps"], "epsilon": result.epsilon}
    return _whole(result.model), facts


def _at_step_five(now: Any) -> bool:
    return bool(now.step == 5)


@case
def error_of_a_callback() -> Outcome:
    """The leader's callback fails: no rank waits for it, and no step is lost."""

    def fail(now: Any) -> None:
        if now.step == 5:
            raise ValueError("my own mistake")

    training, seen = Training(optimizer=SGD, seed=7), list[int]()
    with tempfile.TemporaryDirectory() as folder:
        out = world().once(lambda: Path(folder) / "run")
        with contextlib.suppress(ValueError, AssayError):
            fit(perceptron(), digits(), plan=PLAN, training=training, out=out, callbacks=[OnStep(fail)])
        result = resume(perceptron(), digits(), out, callbacks=[OnStep(lambda now: seen.append(now.step))])
        facts = {"first": world().once(lambda: seen[0]), "epsilon": result.epsilon}
        world().once(lambda: None)
    return _whole(result.model), facts


def _stopped(training: Training) -> Outcome:
    def stop(now: Any) -> None:
        if now.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with tempfile.TemporaryDirectory() as folder:
        out = world().once(lambda: Path(folder) / "run")
        stopped = ""
        try:
            fit(perceptron(), digits(), plan=PLAN, training=training, out=out, callbacks=[OnStep(stop)])
        except AssayError as error:
            stopped = str(error).partition(" as asked")[0]
        result = resume(perceptron(), digits(), out)
        facts = {"stopped": stopped, "epsilon": result.epsilon, "history": result.record["history"]}
        world().once(lambda: None)
    return _whole(result.model), facts


# Of these there is no equal in one process.


@case
def unseeded() -> Outcome:
    """Parameters begin apart; masks of the ranks must never be the same; the noise is there once."""
    torch.manual_seed(100 + int(os.environ["RANK"]))
    network = nn.Sequential(nn.Linear(64, 200), nn.Tanh(), nn.Linear(200, 10)).double()
    plan = Plan(records=300, batch_size=150, steps=2, noise_multiplier=1e6, delta=1e-3, clip=1.0)
    step = PrivateStep(network, plan)
    batches = []
    labels = TensorDataset(gaussian(300), torch.arange(300) % 10, torch.arange(300))
    for x, y, number in step.batches(labels):
        batches.append((number % 150).tolist())
        if step.backward(F.cross_entropy(network(x), y, reduction="none")):
            noise = torch.cat([p.grad.flatten() for p in network.parameters()]) * plan.batch_size / 1e6
            with torch.no_grad():
                for p in network.parameters():
                    p -= 1e-6 * p.grad
    return _whole(network), {"batches": batches, "noise variance": float(noise.var())}


@case
def seeded_masks() -> Outcome:
    plan = Plan(records=300, batch_size=150, steps=2, noise_multiplier=1.0, delta=1e-3)
    step = PrivateStep(perceptron(), plan, randomness=Seeded(3))
    batches = []
    for number, x in step.batches(TensorDataset(torch.arange(300), gaussian(300))):
        batches.append((number % 150).tolist())
        step.backward(step.engine.model(x).sum(1))
    return {}, {"batches": batches}


@case
def refused() -> Outcome:
    """What is refused, on every rank, and why."""
    network, said = perceptron(), {}

    def ask(name: str, plan: Plan = PLAN, data: Dataset[Any] | None = None, **rest: Any) -> None:
        try:
            fit(network, data or digits(), plan=plan, **rest)
        except AssayError as error:
            said[name] = str(error)

    with tempfile.TemporaryDirectory() as folder:
        used = world().once(lambda: Path(folder))
        if world().leader:
            (used / "file").touch()
        ask("micro-batch", replace(PLAN, micro_batch=2), out=used / "new")
        ask("folder in use", out=used)
        ask("records missing", data=share(digits(), (100, 100)))
        reordered = digits() if world().leader else Subset(digits(), list(range(len(digits())))[::-1])
        ask("another order", data=reordered)
        split = Training(shard=True)
        ask("shard, smoothing", replace(PLAN, method=methods.get("lssgd")), training=split, out=used / "new")
        ask("shard, stage", replace(PLAN, method=methods.get("afrrs")), training=split, out=used / "new")
        said["written"] = (used / "new").exists()
        world().once(lambda: None)
    if not world().leader:
        with torch.no_grad():
            network[0].weight[0, 0] += 1e-9
    try:
        world().check_alike(network)
    except AssayError as error:
        said["apart"] = str(error)
    return {}, said


def _split(**settings: Any) -> Training:
    return Training(seed=7, shard=world().size > 1, **settings)


@case
def shard_many_sorts() -> Outcome:
    return trained(model=of_many_sorts(), data=digits(image=True), training=_split(optimizer=SGD))


@case
def shard_accumulated_adam_average_adaptive_clipping() -> Outcome:
    plan = replace(PLAN, clip=clip.AdaptiveQuantile(bound=0.3), batch_size=12, steps=12)
    training = _split(optimizer=ADAM, ema=0.9, max_physical_batch=3)
    return trained(plan, model=of_many_sorts(), data=digits(image=True), training=training)


@case
def shard_large() -> Outcome:
    """More than 2²⁰ numbers on every rank: each parameter's noise is a draw of its own."""
    torch.manual_seed(4)
    model = nn.Sequential(
        nn.Linear(64, 2000), nn.Tanh(), nn.Linear(2000, 1101), nn.Tanh(), nn.Linear(1101, 10)
    ).double()
    return trained(replace(PLAN, steps=2), model=model, training=_split(optimizer=SGD))


@case
def shard_per_layer_clipping_and_test_records() -> Outcome:
    return trained(replace(PLAN, clip=clip.PerLayer(bound=1.0)), training=_split(optimizer=SGD, ema=0.8))


@case
def shard_persons_in_parts() -> Outcome:
    return _by_person(Sampled.PERSONS, _split(optimizer=SGD, max_physical_batch=9))


@case
def shard_stopped_and_resumed() -> Outcome:
    return _stopped(_split(optimizer=ADAM, ema=0.9))


def main() -> None:
    out, *names = sys.argv[1:]
    for name in names:
        tensors, facts = CASES[name]()
        place = Path(out) / f"{name}.{os.environ['RANK']}"
        save_file({n: t.detach().contiguous().clone() for n, t in tensors.items()}, f"{place}.safetensors")
        Path(f"{place}.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
