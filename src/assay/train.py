"""The one training loop: `fit`.

It charges before it moves (`assay.step`), stops by itself when the plan or the budget ends, writes a checkpoint every
epoch and when asked to stop, and resumes after a kill at any moment: with a fixed seed to the bit where an
uninterrupted run ends (on a CPU), without one with fresh randomness, the lost steps staying charged.

Under `torchrun` all ranks train one model (`assay.distributed`). Only the leader has a directory, and with it all files; what it
reads from there it gives to the others.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from dp_accounting.dp_event import NoOpDpEvent
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset

from assay import augment, stage
from assay.averaging import Average, moving, tail
from assay.data.records import Records
from assay.distributed import limits
from assay.distributed.launch import restarted
from assay.distributed.world import ALONE, World, world
from assay.errors import AssayError, ConfigError
from assay.files import replace_file, replace_json, replace_text
from assay.optim import Optimizer
from assay.plan import Plan
from assay.privacy.ledger import Ledger
from assay.privacy.rng import Randomness, check_source, source
from assay.privacy.statement import render
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory
from assay.runs.record import environment, finished_record, number
from assay.runs.stopping import stop_requests
from assay.stage import Loss
from assay.step import MeanLoss, PrivateStep

_EVALUATION_BATCH = 1000
PRECISIONS = ("float32", "bf16")


class InterruptedRunError(AssayError):
    """The run was asked to stop; a checkpoint is written and it can be resumed."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """What does not decide ε: the optimizer, weight averaging, memory, precision, device, where randomness comes from.

    `seed` makes a run reproducible, and therefore not private: whoever knows the seed can subtract the noise.
    `secure_rng` takes every random number from the operating system's cryptographic generator. `ema` is the decay of an
    exponential moving average of the weights, which is then the result; `tail` is the last part of the run whose weights are
    averaged instead. `scale_from` is the batch size at which learning rate, momentum and `ema` were found; a run with another one
    uses what `at_batch` makes of them. `augment` trains on several random views of each record (`assay.augment`). `shard` splits parameters and
    optimizer state over the ranks of a distributed run (FSDP2), for models that do not fit one device. `precision` is that of the
    model's forward and backward pass: with "bf16" under autocast; parameters, norms, clipped sums and noise are float32 all the same.
    """

    optimizer: Optimizer = field(default_factory=Optimizer)
    ema: float | None = None
    tail: float | None = None
    augment: str | None = None
    seed: int | None = None
    secure_rng: bool = False
    max_physical_batch: int | None = None
    device: str = "auto"
    shard: bool = False
    precision: str = "float32"
    scale_from: float | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfigError("precision", self.precision, f"one of {', '.join(PRECISIONS)}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ConfigError("ema", self.ema, "a number between 0 and 1, both excluded")
        if self.tail is not None and not (0 < self.tail <= 1 and self.ema is None):
            raise ConfigError("tail", self.tail, "a part of the run, above 0 and at most 1, without ema beside it")
        if self.scale_from is not None and not (math.isfinite(self.scale_from) and self.scale_from > 0):
            raise ConfigError("scale_from", self.scale_from, "the batch size that the settings were found at, above 0")
        if self.augment is not None:
            augment.parse(self.augment)
        check_source(self.seed, self.secure_rng)
        if self.max_physical_batch is not None and self.max_physical_batch < 1:
            raise ConfigError("max_physical_batch", self.max_physical_batch, "a whole number, 1 or above")

    def randomness(self) -> Randomness:
        """Where random numbers come from."""
        return source(self.seed, self.secure_rng)

    def at_batch(self, batch_size: float) -> Training:
        """What a run with this batch size trains with: with `scale_from`, settings carried over from there; these are not scaled again.

        κ = batch_size / scale_from: the optimizer as `Optimizer.scaled` says, the decay of `ema` to its κ-th power (Busbridge et al. 2023, "How to
        scale your EMA"). A `tail` is a part of the run and stays. `ConfigError` where nothing that can be used comes out.
        """
        if self.scale_from is None:
            return self
        times = batch_size / self.scale_from
        try:
            ema = None if self.ema is None else self.ema**times
            return replace(self, scale_from=None, optimizer=self.optimizer.scaled(times), ema=ema)
        except (ConfigError, OverflowError) as error:
            raise ConfigError(
                "scale_from",
                self.scale_from,
                f"a batch size nearer to that of the run, {batch_size:g}; carried over to it, settings are of no use: {error}",
            ) from error


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run is. Every number in it may be shown: the loss is a released one."""

    step: int
    steps: int
    epoch: float
    loss: float | None
    epsilon: float | None
    accuracy: float | None
    epoch_end: bool


@dataclass(frozen=True, kw_only=True)
class Result:
    """A trained model and its record; `directory` is where they were written, if anywhere.

    `nonfinite` counts gradients that held NaN or Inf and were left out. It is for the operator: it is not private, and not in
    the record.
    """

    model: nn.Module
    record: dict[str, Any]
    statement: str
    directory: RunDirectory | None
    nonfinite: int

    @property
    def epsilon(self) -> float:
        """The verified ε."""
        return float(self.record["epsilon"]["verified"])

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the test records, if there were any."""
        value: float | None = self.record["result"]["test_accuracy"]
        return value

    @property
    def budget_spent(self) -> bool:
        """Whether the budget ended the run before its plan did."""
        return bool(self.record["status"] == "budget-spent")


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy, one value a record (averaged over positions where there are several)."""
    losses = F.cross_entropy(output, target, reduction="none")
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def fit(
    model: nn.Module,
    train: Dataset[Any],
    *,
    plan: Plan,
    test: Dataset[Any] | None = None,
    loss: Loss = cross_entropy,
    training: Training | None = None,
    out: str | Path | None = None,
    force: bool = False,
    names: Mapping[str, Any] | None = None,
    watch: Callable[[Progress], None] | None = None,
) -> Result:
    """Train `model` in place on `train` under `plan`; returns it with its record and its privacy statement.

    `train` yields (input, target); `loss(output, target)` gives one value a record. `out` names a new directory for
    checkpoints, ledger, record, statement and model. `names` describes model and data in the record. To go on with an
    interrupted run, call `resume`; ranks that torchrun has started again go on by themselves.
    """
    training, ranks = training or Training(), world()
    plan = plan.for_model(model)
    if plan.stage is not None:
        plan.stage.check(model, Records(train), (names or {}).get("data"))
    training.at_batch(plan.batch_size)  # nonsense is an error before anything is written
    limits.check(plan, ranks.size, shard=training.shard)
    plan.chain()  # parts that do not go together are an error before anything is written
    pick_device(training.device)  # a wrong name is an error before anything is written
    if training.augment is not None:
        _check_augment(training.augment, train, plan, ranks.size)
    directory = None
    if out is not None:
        spec = {"plan": plan.to_json(), "training": training_json(training), "names": dict(names or {})}
        directory = ranks.once(lambda: _begun(Path(out), spec, force))
        if ranks.once(lambda: directory.finished):  # by ranks of which one was lost after that
            return _complete(model, directory, ranks)
    return _Run(model, train, plan, test, loss, training, directory, names or {}, watch, ranks).go()


def _begun(out: Path, spec: dict[str, Any], force: bool) -> RunDirectory:
    """A new run's directory; or, for ranks that were started again, that of the very run which they had begun."""
    if restarted() and (found := RunDirectory(out)).spec.exists():
        there = found.read_spec()
        if {key: there.get(key) for key in spec} == json.loads(json.dumps(spec)):
            return found
    return RunDirectory.create(out, spec, force=force)


def _complete(model: nn.Module, directory: RunDirectory, ranks: World) -> Result:
    """The result of a run that has all its files."""
    record, statement, tensors = ranks.once(
        lambda: (directory.read_record(), directory.statement.read_text(encoding="utf-8"), load_file(directory.model))
    )
    stage.adapt_as(model, tensors)
    model.load_state_dict(tensors)
    model.eval()
    return Result(
        model=model, record=record, statement=statement, directory=directory if ranks.leader else None, nonfinite=0
    )


def resume(
    model: nn.Module,
    train: Dataset[Any],
    out: str | Path,
    *,
    test: Dataset[Any] | None = None,
    loss: Loss = cross_entropy,
    watch: Callable[[Progress], None] | None = None,
) -> Result:
    """Go on with the run in directory `out`, under the plan and settings it was started with."""
    ranks = world()
    directory, spec = ranks.once(lambda: _unfinished(Path(out)))
    plan, training = Plan.from_json(spec["plan"]), training_from_json(spec["training"])
    return _Run(model, train, plan, test, loss, training, directory, spec["names"], watch, ranks).go()


def _unfinished(out: Path) -> tuple[RunDirectory, dict[str, Any]]:
    directory = RunDirectory.open(out)
    if directory.finished:
        raise AssayError(f"{out} is finished: there is nothing to resume")
    return directory, directory.read_spec()


def _check_augment(text: str, train: Dataset[Any], plan: Plan, ranks: int) -> None:
    """Refuse views of what is no picture, or where the records that training sees are not the records themselves."""
    if ranks > 1:
        raise ConfigError("augment", text, "one rank: ranks with one seed would draw the same views")
    if plan.stage is not None and plan.center is None:
        raise ConfigError(
            "augment", text, f"no augmentation with {plan.method.name}, which decides what training sees of a record"
        )
    augment.check(Records(train).gather(torch.tensor([0]))[0][0])


def _seed_torch(seed: int, device: torch.device) -> None:
    """Seed torch's own generators in use; `torch.manual_seed` would put off seeding CUDA's by queueing a stack trace a step."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def training_json(training: Training) -> dict[str, Any]:
    """Settings as JSON; `scale_from` only where there is one."""
    return {k: v for k, v in asdict(training).items() if k != "scale_from" or v is not None}


def _recorded(asked: Training, used: Training) -> dict[str, Any]:
    """Settings as they were asked for, and what was made of them for the batch size, if anything."""
    if asked.scale_from is None:
        return training_json(asked)
    scaled = {"lr": used.optimizer.lr, "momentum": used.optimizer.momentum, "ema": used.ema}
    return {**training_json(asked), "scaled": scaled}


def training_from_json(data: Mapping[str, Any]) -> Training:
    """Settings from JSON."""
    return Training(**{**data, "optimizer": Optimizer(**data["optimizer"])})


class _Run:
    """One run, from its first step (or its checkpoint) to its record."""

    def __init__(
        self,
        model: nn.Module,
        train: Dataset[Any],
        plan: Plan,
        test: Dataset[Any] | None,
        loss: Loss,
        training: Training,
        directory: RunDirectory | None,
        names: Mapping[str, Any],
        watch: Callable[[Progress], None] | None,
        ranks: World = ALONE,
    ) -> None:
        self.world = ranks
        if not ranks.leader:  # all that is written or shown is the leader's
            directory, watch = None, None
        self.device = pick_device(training.device)
        # a model that is to be split may be larger than the device
        self.model = model.to("cpu" if training.shard else self.device).train()
        self.asked, training = training, training.at_batch(plan.batch_size)
        self.plan, self.loss, self.training, self.directory, self.names = (
            plan,
            loss,
            training,
            directory,
            names,
        )
        self.watch = watch or (lambda _: None)
        self.test = None if test is None else Records(test, self.device)
        self.meter = MeanLoss()
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        saved = ranks.once(
            lambda: (
                checkpoint.load(directory.checkpoint)
                if directory is not None and directory.checkpoint.exists()
                else None
            )
        )
        ledger = Ledger(
            None if directory is None else directory.ledger,
            delta=plan.delta,
            adjacency=plan.adjacency,
            ceiling=plan.epsilon_limit,
        )
        randomness = training.randomness()
        self._stage(train, ledger, randomness)
        if saved is not None:
            self._restore_model(saved[0])
        measured = plan.noise_multiplier > 0 and not isinstance(plan.step_event, NoOpDpEvent)
        self.step = PrivateStep(
            self.model,
            plan,
            ledger=ledger,
            randomness=randomness,
            max_physical_batch=training.max_physical_batch,
            side=[self.meter] if measured else [],
            augment=None if training.augment is None else augment.parse(training.augment),
            taken=0 if saved is None else saved[1]["step"],
            world=ranks,
        )
        if training.shard:
            self._shard()
        self.optimizer = training.optimizer.build(self.model)
        self.average = None
        if training.ema is not None:
            self.average = Average(moving(training.ema), self.model)
        elif training.tail is not None:
            self.average = Average(tail(training.tail, plan.steps), self.model)
        if saved is not None:
            self._restore(*saved)

    def _stage(self, train: Dataset[Any], ledger: Ledger, randomness: Randomness) -> None:
        """What the method does before training, if anything; sets the records and the loss that training has."""
        first = self.plan.stage
        if first is not None:
            if len(Records(train)) != self.plan.records:
                raise ConfigError(
                    "dataset",
                    f"{len(Records(train))} records",
                    f"all {self.plan.records} records on every rank with method {self.plan.method.name}, which releases something about "
                    "all of them before the first step",
                )
            released = self.world.once(
                lambda: stage.released(
                    first,
                    model=self.model,
                    records=Records(train, self.device),
                    ledger=ledger,
                    randomness=randomness,
                    device=self.device,
                    directory=self.directory,
                )
            )
            first.install(self.model, released)
            train, self.loss = first.records(train, released), first.loss(self.loss)
        self.train = Records(train, self.device)

    def _shard(self) -> None:
        records = Records(self.train.dataset)
        if len(records) < 2:
            raise ConfigError(
                "shard", True, "two records or more on every rank: the engine proves itself on them first"
            )
        inputs, targets = records.gather(torch.arange(2))
        self.step.shard(self.loss(self.model(inputs), targets), self.device)

    def go(self) -> Result:
        """Run to the end of the plan or of the budget."""
        try:
            with stop_requests() as stop:
                self._loop(stop)
            return self._finish()
        finally:
            self.step.close()

    def _loop(self, stop: Callable[[], bool]) -> None:
        step = self.step
        begun = time.monotonic() - self.seconds
        prepared = -1
        for inputs, targets in step.batches(self.train):
            if prepared != step.taken:
                prepared = step.taken
                self._prepare(prepared)
            losses = self.loss(self._outputs(inputs), targets)
            if not step.backward(losses):
                continue
            self.optimizer.step()
            if self.average is not None:
                self.average.update(step.taken)
            self.seconds = time.monotonic() - begun
            at_end = self.plan.ends_epoch(step.taken) or step.taken == step.limit
            if at_end:
                self._epoch_end()
            self._tell(at_end)
            if self.world.any(stop()) and step.taken < step.limit:
                step.settle()
                self._save()
                where = f"; resume with: assay resume {self.directory.path}" if self.directory else ""
                raise InterruptedRunError(
                    f"stopped after step {step.taken} of {step.limit} as asked, checkpoint written{where}"
                )

    def _outputs(self, inputs: Any) -> Any:
        """The model's outputs for a training batch, float32 for the loss whatever the model computes in."""
        if self.training.precision == "float32":
            return self.model(inputs)
        with torch.autocast(self.device.type, torch.bfloat16):
            outputs = self.model(inputs)
        return pytree.tree_map(lambda t: t.float() if isinstance(t, Tensor) and t.is_floating_point() else t, outputs)

    def _prepare(self, step: int) -> None:
        self.training.optimizer.set_lr(self.optimizer, step, self.plan.steps)
        if self.training.seed is not None:  # the model's own randomness (dropout) is part of what a fixed seed fixes
            own = self.step.randomness.stream(self.world.purpose("model"), step)
            _seed_torch(int(own.integers(2**62, 1)), self.device)

    def _epoch_end(self) -> None:
        self.step.settle()
        accuracy, test_loss = self._evaluate()
        self.history.append(
            {
                "epoch": round(self.plan.epochs_after(self.step.taken), 2),
                "step": self.step.taken,
                "epsilon": number(self.world.once(self.step.epsilon_taken)),
                "train_loss": self.meter.value,
                "test_accuracy": accuracy,
                "test_loss": number(test_loss),  # published noise can make it infinite
            }
        )
        self.meter.reset()
        self._save()

    def _tell(self, at_end: bool) -> None:
        last = self.history[-1] if self.history else {}
        self.watch(
            Progress(
                step=self.step.taken,
                steps=self.step.limit,
                epoch=self.plan.epochs_after(self.step.taken),
                loss=last.get("train_loss") if at_end else self.meter.value,
                epsilon=float(last["epsilon"]) if last else None,
                accuracy=last.get("test_accuracy"),
                epoch_end=at_end,
            )
        )

    def _save(self) -> None:
        self.step.placement.check(self.model)
        tensors = {f"model.{n}": t for n, t in self.model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average.{n}": t for n, t in self.average.values.items()}
        optimizer_tensors, optimizer_plain = checkpoint.optimizer_state(self.optimizer)
        state = {
            "step": self.step.taken,
            "optimizer": optimizer_plain,
            "history": self.history,
            "seconds": self.seconds,
            "meter": self.meter.state(),
            "chain": self.step.chain.state(),
        }
        tensors = self.step.placement.whole(tensors | optimizer_tensors)
        if self.directory is not None:
            checkpoint.save(self.directory.checkpoint, tensors, state)

    def _restore_model(self, tensors: dict[str, Tensor]) -> None:
        self.model.load_state_dict(_below("model.", tensors))

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if self.average is not None:
            kept = _below("average.", tensors)
            self.average.load({n: self.step.placement.own(p, kept[n]) for n, p in self.model.named_parameters()})
        checkpoint.restore_optimizer(self.optimizer, tensors, state["optimizer"], self.step.placement.own)
        self.history, self.seconds = state["history"], state["seconds"]
        self.meter.restore(state["meter"])
        self.step.chain.restore(state["chain"])

    def _evaluate(self) -> tuple[float | None, float | None]:
        if self.test is None:
            return None, None
        with self._final_weights(), torch.no_grad():
            self.model.eval()
            try:
                return evaluate(self.model, self.test, self.loss)
            finally:
                self.model.train()

    @contextmanager
    def _final_weights(self) -> Iterator[None]:
        """The averaged weights, if there are any, in place of the current ones."""
        if self.average is None:
            yield
            return
        with self.average.applied():
            yield

    def _last_result(self) -> tuple[float | None, float | None]:
        if not self.history:
            return self._evaluate()
        loss = self.history[-1]["test_loss"]
        return self.history[-1]["test_accuracy"], None if loss is None else float(loss)

    def _finish(self) -> Result:
        self.step.settle()
        accuracy, test_loss = self._last_result()
        record = self.world.once(
            lambda: finished_record(
                plan=self.plan,
                ledger=self.step.ledger,
                training=_recorded(self.asked, self.training),
                names=self.names,
                steps=self.step.taken,
                history=self.history,
                result={"test_accuracy": accuracy, "test_loss": test_loss},
                seconds=self.seconds,
                environment=environment(),
            )
        )
        statement = render(record, self.plan, self.step.randomness.describe())
        if self.average is not None:
            self.average.apply()
        nonfinite = torch.tensor(self.step.nonfinite)
        self.world.sum([nonfinite])
        tensors = self.step.placement.whole(self.model.state_dict())
        return finished(self.model, record, statement, self.directory, int(nonfinite), tensors)


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def finished(
    model: nn.Module,
    record: dict[str, Any],
    statement: str,
    directory: RunDirectory | None,
    nonfinite: int,
    tensors: Mapping[str, Tensor] | None = None,
) -> Result:
    """The result of a run, its files written: the record last, since where it is the run is complete. `tensors` are the model's, if
    they are not to be had from it.
    """
    model.eval()
    if directory is not None:
        save_model(directory.model, model.state_dict() if tensors is None else tensors)
        replace_text(directory.statement, statement)
        replace_json(directory.record, record)
        directory.finish()
    return Result(model=model, record=record, statement=statement, directory=directory, nonfinite=nonfinite)


def save_model(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Parameters and buffers as safetensors, written whole."""
    whole = {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}
    path.parent.mkdir(exist_ok=True)
    replace_file(path, lambda part: save_file(whole, part))


def evaluate(model: nn.Module, records: Records, loss: Loss) -> tuple[float | None, float | None]:
    """Accuracy (None where the output is not a score for each class) and mean loss."""
    right, total, counted = 0, 0.0, 0
    classes = True
    for start in range(0, len(records), _EVALUATION_BATCH):
        inputs, targets = records.gather(torch.arange(start, min(start + _EVALUATION_BATCH, len(records))))
        output = model(inputs)
        total += float(loss(output, targets).double().sum())
        counted += len(targets)
        classes = classes and output.dim() == 2 and not targets.is_floating_point()
        if classes:
            right += int((output.argmax(1) == targets).sum())
    if not counted:
        return None, None
    return (right / counted if classes else None), total / counted


def pick_device(name: str) -> torch.device:
    """`auto` takes cuda, then mps, then cpu."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError("device", name, "auto, cpu, cuda, cuda:N or mps") from error
