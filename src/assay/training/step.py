"""The private step, for your own training loop: you keep the model, the loop, the optimizer and the scheduler.

    step = assay.PrivateStep(model, plan)
    for x, y in step.batches(dataset):
        losses = F.cross_entropy(model(x), y, reduction="none")   # one loss per record
        if step.backward(losses):                                 # clip, sum, charge, add noise, write .grad
            optimizer.step()

Under `torchrun` (or any other launcher) the same loop trains on several ranks. Each rank gets its share of every
batch, and after `backward` all ranks hold the same `.grad` (`assay.distributed`).

Privacy lives in the step, not in the optimizer: `backward` writes an ordinary `.grad` that is already private, and
whatever follows is post-processing. Optimizers, schedulers and non-private models (a GAN's generator) need no wrapper.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from dp_accounting.dp_event import DpEvent
from torch import Tensor, nn
from torch.utils.data import Dataset

from assay._util import seals
from assay._util.figures import at_most
from assay._util.process import Unique
from assay.accounting import events
from assay.accounting.ledger import Ledger
from assay.data.apart import Padded, check_apart, padded_less
from assay.data.persons import Ids
from assay.data.records import PREFETCH, Collate, Loading, Records
from assay.distributed.world import Everywhere, Placement, Ranks, World
from assay.distributed.world import world as current_world
from assay.errors import AssayError, BudgetSpentError, ConfigError, UnsupportedModelError
from assay.gradients import on_grid
from assay.gradients.arithmetic import zeros_for
from assay.gradients.engine import Engine
from assay.gradients.proof import position
from assay.gradients.proof.handed import LoopWatch
from assay.gradients.proof.losses import check_one_each
from assay.gradients.proof.tape import Tape, quiet
from assay.gradients.record_grads import RecordGrads
from assay.gradients.rules.layers import RULES
from assay.mechanisms.correlated import Correlated
from assay.mechanisms.exact import ExactGaussian
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.types import Bounded, SideQuery
from assay.methods.chain import Chain, Form
from assay.methods.plan import Plan
from assay.models.compat import compiled, trainable_layers
from assay.randomness.streams import Blocks, OsSeeded, Randomness, fresh_source
from assay.training import trained
from assay.training.augment import Augmentation
from assay.training.batches import Batch, Batches, BatchPart, unit_records
from assay.training.epochs import EpochLoader
from assay.training.masks import Masks
from assay.training.preflight import (
    check_exact,
    check_ledger,
    check_paid,
    check_ranks,
    check_views,
    left_of,
    lock_charges,
    size_of_parts,
    without_autocast,
)

_NO_BACKWARD = (
    "a batch was drawn but backward() of this PrivateStep was not called for it: every batch needs its step. Likely "
    "causes: something fetches batches ahead (a DataLoader, accelerate or list() around batches(); use num_workers of "
    "batches() instead); gradients are accumulated over several batches (set a larger batch_size and "
    "max_physical_batch instead); or loss.backward() or out.loss.backward() was called in place of "
    "step.backward(losses)"
)
_READ_ONLY = (
    "records that stay what they are: what a loop makes of a batch and writes back would carry one record into others. "
    "Change a record where it is fetched, or all of them before the loop, each by itself"
)
_FLUSH_SECONDS = 0.25  # charge ahead about this much work, so that flushing the ledger to disk stays cheap


@dataclass(slots=True)
class _BatchState:
    """What belongs to one batch: its clipped sum so far, and the part of it that waits for its losses. Sensitive."""

    passes_left: int = 1
    part: BatchPart | None = None
    """The part handed out last; None once `backward` has taken its losses."""
    total: dict[str, Tensor] = field(default_factory=dict)
    measured: list[Tensor] = field(default_factory=list)
    """What the side queries have measured, one number each."""
    looked_at: bool = False
    """Whether what a loop of the user's own makes of it is looked at."""
    tape: Tape | None = None
    """What the loop does with the part handed out last."""
    padded: Callable[[], Sequence[Padded]] = tuple
    """Gives the part handed out last with as much padding as it has, and with less."""

    def add(self, total: dict[str, Tensor], measured: list[Tensor]) -> None:
        """Add the clipped sum and the side queries' numbers of one part."""
        if not self.total:
            self.total, self.measured = total, measured
        else:
            torch._foreach_add_(list(self.total.values()), list(total.values()))
            self.measured = [a + b for a, b in zip(self.measured, measured, strict=True)]


class PrivateStep(Unique):
    """Turns the losses of a batch into a private gradient, and charges the ledger first.

    Guarantee: the values of `.grad` after all calls of `backward` that returned True are together (ε, δ)-differentially
    private, with the ε that `epsilon()` states. This holds if the batches come from `batches` and nothing else that was
    computed from the records is released.

    A step cannot be copied, and a forked process must make its own. An exception inside `backward` makes it unusable,
    because it may have drawn noise already. A new step on the same ledger continues with fresh noise.

    Args:
        model: The model to train. Layers that mix records are refused.
        plan: What is sampled, clipped and noised, and for how many steps.
        ledger: Where steps are charged: a ledger, its path, or None for one in memory.
        randomness: The source of all random numbers; the operating system's by default.
        max_physical_batch: The largest number of records (or views) in memory at once. Results do not change.
        side: Numbers to release beside the gradient, each for a share of the step's privacy.
        augment: Random views of each record, averaged before clipping.
        taken: How many steps of the plan were taken before, when a run resumes.
        world: The ranks that train together; by default those of the current launch.

    Raises:
        ConfigError: The arguments do not fit together, or the ledger does not fit the plan.
        UnsupportedModelError: The model mixes records, or has layers without a per-record gradient.

    >>> plan = Plan(records=8, batch_size=4, steps=1, noise_multiplier=1.0, delta=1e-3)
    >>> data = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randint(2, (8,)))
    >>> model = torch.nn.Linear(3, 2)
    >>> step = PrivateStep(model, plan)
    >>> for inputs, targets in step.batches(data):
    ...     stepped = step.backward(torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
    >>> stepped, model.weight.grad.shape
    (True, torch.Size([2, 3]))
    """

    selects: ClassVar[bool] = False
    """Whether whoever owns the loop tests each step, for methods that do (`assay.training.selecting`)."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        *,
        ledger: Ledger | str | Path | None = None,
        randomness: Randomness | None = None,
        max_physical_batch: int | None = None,
        side: Sequence[SideQuery] = (),
        augment: Augmentation | None = None,
        taken: int = 0,
        world: World | None = None,
    ) -> None:
        if max_physical_batch is not None and max_physical_batch < 1:
            raise ConfigError("max_physical_batch", max_physical_batch, "a whole number, 1 or above")
        self.world = world = current_world() if world is None else world
        check_ranks(plan, world.size)
        self.plan = plan = plan.for_layers(trainable_layers(model))
        if plan.exact:
            check_exact(model, side)
        gradient_share = left_of([*side, *plan.clip.queries])
        chain = plan.chain(gradient_share)
        self.randomness = fresh_source(OsSeeded() if randomness is None else randomness)
        self._position: position.Watch | None = None
        self._augment, self._views = augment, 1 if augment is None else augment.views
        if augment is not None:
            check_views(str(augment), plan, world.size)
        if self._views > 1 and chain.rules:
            raise ConfigError(
                "augment", str(augment), "one view of a record with methods that work on whole maps of a layer"
            )
        with contextlib.ExitStack() as undo:  # an error here leaves model and ledger as they were
            self._attach(model, chain, ledger, taken, undo)
            self._later = {
                factor: plan.chain(gradient_share, factor).on(self.engine.parameters).noise
                for _, factor in plan.stretches
                if factor != 1.0
            }
            self._physical = None if max_physical_batch is None else max(1, max_physical_batch // self._views)
            if plan.exact:
                self._physical = self._physical or size_of_parts(plan.batch_size)
                self._position = position.Watch(model)
                undo.callback(self._position.stop)
            self._side: list[SideQuery] = [*side, *self.chain.clip.queries]
            self.groups = self.chain.clip.groups(self.engine.layers)
            self._forms: dict[str, Form] = {name: parameter.shape for name, parameter in self.engine.parameters.items()}
            self._noise = Blocks(self.randomness, "noise")
            self._masks: Masks | None = None
            if self.randomness.fingerprint is None:  # a seeded run's dropout follows the seed of the caller
                self._masks = Masks(model, self.randomness.stream("model", 0))
                undo.callback(self._masks.stop)
            if isinstance(self.chain.noise, Correlated):
                self._catch_up(self.chain.noise)
            undo.pop_all()
        self._expected_size = plan.sampler.expected_size
        self.nonfinite = 0
        self._paid: list[DpEvent] = []
        self._batch = _BatchState()
        self._block, self._charged_at = 1, -math.inf
        self._loop = 0
        self._busy = threading.Lock()
        self._apart: list[tuple[Any, Any]] = []  # data sets, and how they are put together, that keep records apart
        self._versions = {id(p): p._version for p in self.engine.parameters.values()}
        self._mine: set[trained.Trained] = set()
        self._looks_at_loops = not compiled(model)  # a compiled model would be compiled twice
        coins = self.randomness.stream("loops", taken - self._origin)
        self._loops = LoopWatch(model, self.engine.copied, coins)
        self._closed = self._unfinished = self._rest_charged = False
        self._refused: AssayError | None = None  # for what a loop did, whoever catches it

    def _attach(
        self,
        model: nn.Module,
        chain: Chain,
        ledger: Ledger | str | Path | None,
        taken: int,
        undo: contextlib.ExitStack,
    ) -> None:
        """Open the ledger and attach the engine to the model."""
        plan, world = self.plan, self.world
        if plan.selection is not None and not self.selects:
            raise ConfigError(
                "method",
                plan.method.name,
                "one without a test after each step, in a loop of your own; `assay.fit` makes the tests",
            )
        self._own_ledger = not isinstance(ledger, Ledger)
        if not isinstance(ledger, Ledger):
            path = None if ledger is None or not world.leader else Path(ledger)
            ledger = Ledger(path, delta=plan.delta, adjacency=plan.adjacency, ceiling=plan.epsilon_limit)
            undo.callback(ledger.close)
        check_ledger(ledger, plan)
        charges = world.once(lock_charges, ledger, self.randomness.fingerprint)
        self.ledger = ledger = ledger if world.leader else ledger.reading(charges)
        if taken > ledger.total_steps:
            raise ConfigError(
                "taken", taken, f"at most the {ledger.total_steps} steps that the ledger was charged for: give the "
                "ledger of the run that took them"
            )  # fmt: skip
        if not all(ledger.paid(first) for first in plan.first_events):
            raise ConfigError(
                "method",
                plan.method.name,
                "a ledger that was charged for what this method releases before its first step; "
                "`assay.fit` does all of that",
            )
        # A seeded run must repeat to the last bit, so timings must not choose between ways to compute a gradient.
        seeded = self.randomness.fingerprint is not None
        coins = self.randomness.stream("proof", taken)
        self.engine = Engine(model, {**RULES, **chain.rules}, measured=not seeded and not plan.exact, coins=coins)
        undo.callback(self.engine.detach)
        # a resumed run begins with a copy of its own weights, and its ledger has the steps that made them
        self._behind = trained.runs_behind(model, copies=taken == 0)
        self._began = trained.numbers(self.engine.parameters.values())
        # Later levels of a noise schedule replace the noise only (`_later`): the rest of the chain may have a state.
        self.chain = chain.on(self.engine.parameters)
        world.align(model)
        self.placement: Placement = Everywhere(world)
        # A resumed run with a seed counts its draws from the first step of the run. Fresh randomness counts from here.
        self._origin = 0 if seeded else taken
        self.taken = taken
        cost = functools.partial(plan.steps_event, start=self._origin)
        start = world.once(seals.of_model, model) if seeded and taken == 0 else None
        draws = self.randomness.fingerprint
        self._segment = ledger.begin(cost, plan.steps - self._origin, draws=draws, start=start, origin=self._origin)
        self.randomness = self._segment.own(self.randomness)
        self._limit = self._origin + world.once(int, self._segment.allowed)  # what the leader allows

    def _catch_up(self, noise: Correlated) -> None:
        """Draw the noise of earlier steps again, which later steps take back in part; none with fresh randomness."""
        first = self.engine.parameters[min(self.engine.parameters)]
        streams = [self.placement.noise(self._noise.at(local)) for local in range(self.taken - self._origin)]
        size = sum(p.numel() for p in self.engine.parameters.values())
        noise.catch_up(size, streams, dtype=zeros_for(first).dtype, device=first.device)

    def shard(self, losses: Tensor, device: torch.device | None = None) -> None:
        """Split a model that does not fit one device over the ranks (FSDP2); call before the optimizer is made.

        Args:
            losses: The losses of any two records or more. The engine checks itself on them while the model is whole;
                they do not count as a step.
            device: Where this rank keeps its share; by default where `losses` are.

        Raises:
            ConfigError: There is one rank only, the plan needs the whole model, or the losses cannot serve as a check.
        """
        from assay.distributed.shards import Shards  # FSDP2 takes a second to import

        check_ranks(self.plan, self.world.size, shard=True)
        assert isinstance(self.world, Ranks)
        if losses.dim() != 1 or len(losses) < 2:
            raise ConfigError("losses", f"shape {tuple(losses.shape)}", "those of two records or more, one value each")
        self.engine.collect(losses)
        if not self.engine.proven:
            raise ConfigError("losses", "no finite gradients", "finite ones: the model is split only once it is proven")
        self.placement = Shards(self.engine, self.world, device or losses.device)

    def batches(
        self,
        dataset: Dataset[Any] | Records,
        steps: int | None = None,
        *,
        units: Ids | None = None,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int = PREFETCH,
    ) -> Iterator[Any]:
        """The batches that the plan's sampler draws, collated as a DataLoader would.

        With `max_physical_batch` a batch comes in parts, and `backward` returns True after the last. With `augment`,
        the views of each record follow each other and `backward` takes one loss per view.

        Poisson sampling sometimes draws an empty batch. It must look like any other: it is charged, gets its noise, and
        your optimizer steps on noise alone. A model that stood still would tell that nobody was drawn, which ε does not
        cover. So a stand-in comes in its place: the data set's first record, which your model can take. It counts
        nowhere: `backward` checks, as for every batch, that the model keeps nothing of it, and throws its gradient and
        its loss away. To take such steps without calling the model, loop over `batches_or_none`.

        Without a seed, torch's own generators, which dropout draws from, get secret states for every part
        (`assay.training.masks`).

        Args:
            dataset: The records. On several ranks, either the whole data set, of which each rank takes an equal share,
                or the share that only this rank has. The plan is always that of the whole.
            steps: How many batches at most; by default up to the end of the plan or the budget.
            units: Whose each row of `dataset` is, if the plan's unit is a person: an id for each row. `backward` still
                takes one loss per row.
            collate_fn: Puts records together, as for a DataLoader; every tensor of a batch has the records as its first
                dimension. A collator of Hugging Face that pads to the longest record works unchanged.
            num_workers: Processes that fetch records while the model trains. The records of a batch are drawn in this
                process, and results do not depend on the number of workers.
            pin_memory: Fetch into pinned memory, where batches go to a GPU.
            prefetch_factor: How many parts of batches each worker fetches ahead.

        Raises:
            ConfigError: The data set, or `units`, is not the plan's.
            AssayError: The step is closed or unusable, `backward` was not called for a batch, or another loop over
                `batches` began while this one was running.
        """
        loading = Loading(
            collate_fn=collate_fn, num_workers=num_workers, pin_memory=pin_memory, prefetch_factor=prefetch_factor
        )
        records = dataset if isinstance(dataset, Records) else Records(dataset, loading=loading)
        return self._drawn(unit_records(records, units, self.plan), steps)

    def loader(
        self,
        dataset: Dataset[Any] | Records,
        *,
        units: Ids | None = None,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int = PREFETCH,
    ) -> EpochLoader:
        """The batches as a loader with a length, one epoch per iteration, for tqdm, Lightning and Trainer.

        Every batch still needs its `backward`, before the next one is fetched: something that fetches ahead around the
        loader gets an error. With `max_physical_batch` batches come in parts, and the loader has no length.

        Args:
            dataset: The records, as for `batches`.
            units: As for `batches`.
            collate_fn: As for `batches`.
            num_workers: As for `batches`. They fetch ahead, and nothing else may.
            pin_memory: As for `batches`.
            prefetch_factor: As for `batches`.

        Returns:
            An iterable with a length; each iteration goes on to the end of the epoch.

        Raises:
            ConfigError: As `batches`.

        >>> plan = Plan(records=8, batch_size=4, steps=4, noise_multiplier=1.0, delta=1e-3)
        >>> data = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randint(2, (8,)))
        >>> len(PrivateStep(torch.nn.Linear(3, 2), plan).loader(data))
        2
        """
        loading = Loading(
            collate_fn=collate_fn, num_workers=num_workers, pin_memory=pin_memory, prefetch_factor=prefetch_factor
        )
        plain = dataset if isinstance(dataset, Records) else Records(dataset, loading=loading)
        records = unit_records(plain, units, self.plan)
        return EpochLoader(
            self,
            plain.dataset,
            plain.loading,
            lambda steps: self._drawn(records, steps),
            in_parts=self._physical is not None,
        )

    def batches_or_none(self, records: Records, steps: int | None = None) -> Iterator[Any]:
        """As `batches`, with None in place of a part without records; `backward_of_none` takes the step then.

        For loops that need not call the model for such a part, as that of `assay.fit`.

        Args:
            records: The records; `Records(dataset)` makes them from a data set.
            steps: How many batches at most.
        """
        return self._drawn(unit_records(records, None, self.plan), steps, own=True)

    def _is_forgotten(self, part: BatchPart) -> bool:
        """Whether a part has no records and nothing of its pass through the model is used.

        A record that does not count still goes through the model where the noise must have the shape of a layer's
        maps, and where all ranks are needed for a pass through a split model.
        """
        return part.padding and not self.chain.rules and not self.placement.split

    def _drawn(self, records: Records, steps: int | None, *, own: bool = False) -> Iterator[Any]:
        """The parts of the batches; for loops of our `own`, None in place of a part that need not pass the model."""
        self._check_usable()
        if self._masks is not None:
            self._masks.begin([parameter.device for parameter in self.engine.parameters.values()])
        self._loops.stop()
        self._loop += 1
        loop = self._loop
        self._check_apart(records)
        drawing = Batches(records, self.plan, self.randomness, self.world, self._physical, self._augment)
        end = self._limit if steps is None else min(self._limit, self.taken + steps)
        writes = records.writes
        # our own loops keep records apart, but not the length of one from others that are padded with it
        looks = not own or (records.may_pad and self._augment is None)
        ahead = drawing.ahead(self.taken - self._origin, end - self._origin)
        try:
            while self.taken < end:
                now = self.taken
                with quiet():
                    batch = next(ahead)
                passes = self.placement.passes(len(batch))
                # A fresh state: where a loop was left in the middle of a batch, the same batch is drawn here again.
                self._batch = _BatchState(passes, looked_at=looks and self._loop_is_due())
                for part in batch.parts(passes):
                    if self._masks is not None:
                        self._masks.renew()  # before the records are fetched: data sets draw as well
                    self._batch.part = part
                    self.engine.expect(len(part) * self._views)
                    yield None if own and self._is_forgotten(part) else self._gathered(records, batch, part)
                    self._check_usable()
                    if records.writes != writes:
                        self._refused = ConfigError("dataset", "written into while a loop over it ran", _READ_ONLY)
                    if (written := self._loops.written()) is not None:
                        self._refused = UnsupportedModelError(written)
                    self._check_usable()
                    if self._loop != loop:
                        raise AssayError(
                            "another loop over batches() of this PrivateStep has begun: parts of one batch would count "
                            "in the other. Finish one loop before the next"
                        )
                if self.taken == now:
                    raise AssayError(_NO_BACKWARD)
        finally:
            if self._loop == loop:
                self._loops.leave()

    def _loop_is_due(self) -> bool:
        """Whether what a loop of the user's own does with the next batch is looked at."""
        return self._looks_at_loops and not self.placement.split and self._loops.is_due()

    def _gathered(self, records: Records, batch: Batch, part: BatchPart) -> Any:
        """The part that a loop gets. What the loop does with it is written down if that is looked at."""
        with quiet():
            found = batch.gather(part)
        self.engine.hand_out(found)
        if self._batch.looked_at and not part.padding:
            self._batch.tape = self._loops.hand_out(found, len(part) * self._views)
            if records.may_pad and self._augment is None and part.index is not None:
                seed = int(self.randomness.stream("padding", self.taken).integers(2**31, 1))
                self._batch.padded = functools.partial(padded_less, records, records.places_of(part.index), seed)
        return found

    def _check_apart(self, records: Records) -> None:
        """Refuse a data set that holds a record twice, or a way of putting records together that mixes them."""
        source = records.dataset, records.loading.collate
        if not any(a is source[0] and b is source[1] for a, b in self._apart):
            if not records.plain:
                seed = int(self.randomness.stream("apart", len(self._apart)).integers(2**31, 1))
                check_apart(records, seed, once=self.plan.unit is None)
            self.world.once(self._check_trained, records)
            self._apart.append(source)

    def _check_trained(self, records: Records) -> None:
        """Refuse a model that an earlier run has trained on these records, unless its charge counts here, too."""
        on = trained.marked(Records(records.dataset, loading=records.loading))
        trained.check(self._behind, on, self.ledger, budget=self.ledger.budget)
        self._mine.add(trained.Trained(on, self.ledger))

    def _check_used(self, tensors: Sequence[Tensor]) -> None:
        """Refuse a loop that uses what an earlier run has trained on its records (a teacher, a frozen extractor)."""
        if runs := trained.runs_behind_these(tensors):
            for mine in self._mine:
                trained.check(runs, mine.on, self.ledger, budget=self.ledger.budget)

    def backward(self, losses: Tensor) -> bool:
        """Clip the gradients of the batch and sum them up; after its last part charge, add noise and write `.grad`.

        Args:
            losses: One loss per record of the part drawn last (one per view with `augment`).

        Returns:
            Whether `.grad` holds the private gradient. Until the last part of a batch `.grad` is None, so that an
            optimizer that steps anyway does nothing.

        Raises:
            BudgetSpentError: The plan or the budget allows no further step.
            ConfigError: The losses do not belong to the part drawn last.
            AssayError: The step is closed or unusable, or somebody seeded torch's generators.
        """
        self._loops.pause()
        # a second thread could add a part of a batch twice, or use the noise of one step for two
        if not self._busy.acquire(blocking=False):
            raise AssayError("another thread is in backward() of this PrivateStep: let one thread train")
        try:
            with quiet(), without_autocast(losses.device.type):
                try:
                    self._check_call(losses)
                except BaseException:
                    self._loops.resume()  # the loop may compute other losses
                    raise
                complete = self._advance(losses)
        finally:
            self._busy.release()
        self._loops.go_on()
        return complete

    def backward_of_none(self) -> bool:
        """Do what `backward` does, for a part without records: `batches_or_none` gave None for it.

        Returns:
            As `backward`.

        Raises:
            AssayError: The part drawn last has records, or the step is closed, unusable or spent.
        """
        self._check_step_left()
        part = self._batch.part
        if part is None or not self._is_forgotten(part):
            raise AssayError("the part drawn last has records: give their losses to backward()")
        device = next(iter(self.engine.parameters.values())).device
        with without_autocast(device.type):
            return self._advance(None)

    def _advance(self, losses: Tensor | None) -> bool:
        """Count one part of the batch; release after the last."""
        self._unfinished = True  # if an exception comes from here on, noise may be drawn, or a part counted
        self._add(losses)
        if complete := self._batch.passes_left == 0:
            self._release()
        self._unfinished = False
        return complete

    def _check_step_left(self) -> None:
        self._check_usable()
        if self.taken >= self._limit:
            raise BudgetSpentError(
                f"the budget is spent after {self.taken} steps: ε = {at_most(self.epsilon())}"
                + (f" of {self.ledger.ceiling:g}" if self.ledger.ceiling is not None else "")
                + f" (δ = {self.plan.delta:g}); no further step is taken"
            )

    def _check_call(self, losses: Tensor) -> None:
        """Refuse a call of `backward` that must not compute anything."""
        self._check_step_left()
        part = self._batch.part
        expected = None if part is None else len(part) * self._views
        if losses.dim() == 1 and losses.shape[0] != expected:
            raise ConfigError(
                "losses",
                f"{len(losses)} values",
                f"one for each of the {expected} {self._each} of the batch drawn last"
                if expected is not None
                else "the losses of a batch from `batches`: ε is true only for batches that the plan's sampler drew",
            )
        if losses.dim() == 0 and expected == 1:
            raise ConfigError(
                "losses",
                "a tensor of shape ()",
                "shape (1,): this batch has one record, and its dimension is gone. Likely .squeeze() without a number "
                "dropped it, which drops every dimension of size 1: use .squeeze(-1) or .flatten(). A mean drops it, "
                "too: use reduction='none'",
            )
        check_one_each(losses)
        if self._masks is not None and not self._masks.secret:
            raise AssayError(
                "torch's generators were seeded between model(...) and backward(): what the loss draws from them would "
                "be known. Seed before the model is called, or use a torch.Generator of your own; then call the model "
                "again for this batch"
            )

    @property
    def _each(self) -> str:
        """What there is one loss for."""
        if self.plan.unit is not None:
            return "rows"
        return "records" if self._views == 1 else "views"

    def _check_usable(self) -> None:
        self.check_process()
        if self._refused is not None:
            raise self._refused
        if self._closed:
            raise AssayError("this PrivateStep was closed: make a new one to go on")
        if self._unfinished:
            raise AssayError(
                "an exception ended a backward() of this PrivateStep in the middle, so it takes no further step: noise "
                "might be used twice. close() it and make a new one on the same ledger, PrivateStep(model, plan, "
                "ledger=step.ledger, taken=step.taken): it draws fresh noise, and what was charged stays charged"
            )

    def _add(self, losses: Tensor | None) -> None:
        """Add the clipped gradients of one part to the batch; there are no losses where nothing is collected."""
        batch, part = self._batch, self._batch.part
        assert part is not None
        batch.part = None
        if batch.passes_left > 1:
            for parameter in self.engine.parameters.values():
                parameter.grad = None
        if losses is not None and self._is_forgotten(part):
            self.engine.collect(losses)  # so that a model that keeps something of the stand-in is refused
        if self._is_forgotten(part):
            self.engine.forget()
        else:
            assert losses is not None
            batch.add(*self._clipped_sum(losses, part))
        batch.passes_left -= 1

    def _clipped_sum(self, losses: Tensor, part: BatchPart) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The clipped sum of one part's gradients, and what the side queries measure on it."""
        given = losses
        if self._batch.tape is not None:
            self._batch.tape.weigh(losses)
        if part.persons is not None:  # a person's loss is the mean over their rows
            grads = self.engine.collect(part.persons.shares(losses), part.persons)
            losses = part.persons.sums(part.persons.shares(losses.detach()))
        elif self._views > 1:  # a record's loss is the mean over its views
            grads = self._collect(losses / self._views, part.fill)
            losses = losses.detach().view(-1, self._views).mean(1)
        else:
            # a split model adds up over the ranks at once, so a stand-in must have gradient zero there
            grads = self._collect(losses * 0.0 if part.padding else losses, part.fill)
        # not before the engine, which names the layer if the model itself mixes
        if (mixed := self._mixed_around(given, part)) is not None:
            raise UnsupportedModelError(mixed)
        total, norms = self.chain.clipped_sum(grads, self.groups, part.slots)
        if not part.padding:
            self.nonfinite += grads.nonfinite
        if self.chain.rules:
            self._forms |= grads.bases()
        measured = [query.measure(losses, norms) for query in self._side]
        if part.padding:
            measured = [torch.zeros_like(value) for value in measured]
            if not self.placement.split:  # in a split model the sum holds what other ranks have added
                total = {name: torch.zeros_like(value) for name, value in total.items()}
        return total, measured

    def _mixed_around(self, losses: Tensor, part: BatchPart) -> str | None:
        """What is wrong with what the loop did to the batch, if that is looked at."""
        tape, self._batch.tape = self._batch.tape, None
        if tape is None:
            return None
        in_order = part.persons is not None or self._views > 1
        padded, used = self._batch.padded, self._check_used
        return self._loops.fault(tape, losses, in_order=in_order, padded=padded, check_used=used)

    def _collect(self, losses: Tensor, fill: int) -> RecordGrads:
        """Every record's gradient. With exact noise the first batch shows that no record changes another's bits."""
        if self._position is None:
            grads = self.engine.collect(losses, self._views)
        else:
            again = self._position.replayed(losses)
            first = self.engine.collect(losses, self._views)
            if self.engine.proven:  # from here on the engine computes as it will in all later steps
                self._position.stop()
                self._position = None
            grads = again.check(self.engine, self._views, self._whole_numbers) or first
        grads.padding = fill if self.plan.exact else 0
        return grads

    def _whole_numbers(self, grads: RecordGrads) -> dict[str, Tensor]:
        assert isinstance(self.chain.noise, ExactGaussian)
        return on_grid.rounded(grads, self.chain.clip, self.groups, self.chain.noise.grid)

    def _release(self) -> None:
        """Charge for the batch's sum, add noise and write `.grad`."""
        local = self.taken - self._origin
        if local >= self._segment.charged:
            self._pay(local)
        batch, self._batch = self._batch, _BatchState()
        total = batch.total or self.chain.sum_of_nothing(self.engine.parameters)
        factor = self.plan.noise_factor(self.taken)
        self.taken += 1  # now: what follows may fail after the noisy sum has left this process
        # The ledger is charged by now, and the leader adds the noise to its sum before the ranks' sums are added up.
        chain = self.chain if factor == 1.0 else replace(self.chain, noise=self._later[factor])
        released = chain.release(Bounded(total, chain.l2), self.placement.noise(self._noise.at(local)))
        self.placement.combine(released.value)
        spent = [released.event]
        if self._side:
            spent += self._release_side(batch.measured, local, factor)
        if spent != self._paid:  # compared once; steps rarely differ in what they release
            check_paid(events.joint(spent), self.plan.chain(noise_factor=factor).event())
            self._paid = spent
        grads = self.chain.finish(released, self._expected_size, self._forms)
        for name, parameter in self.engine.parameters.items():
            parameter.grad = self.placement.gradient(parameter, grads[name])

    def _release_side(self, measured: list[Tensor], local: int, factor: float) -> list[DpEvent]:
        """Release what the side queries measured and hand it to them. Returns the cost."""
        measured = measured or [torch.zeros((), dtype=torch.float64) for _ in self._side]
        sides = []
        for i, (query, value) in enumerate(zip(self._side, measured, strict=True)):
            noise = Gaussian(multiplier=self.plan.noise_multiplier * factor / math.sqrt(query.share))
            bounded = Bounded({"": value.cpu().double().view(1)}, query.sensitivity)
            sides.append(noise.release(bounded, self.world.noise(self.randomness.stream(f"side {i}", local))))
        self.world.sum([side.value[""] for side in sides])
        for query, side in zip(self._side, sides, strict=True):
            query.receive(float(side.value[""]), self._expected_size)
        return [side.event for side in sides]

    def _pay(self, local: int) -> None:
        """Charge this step, and a few more if steps are short. Nothing is released before the ledger is on disk."""
        now = time.monotonic()
        early = now - self._charged_at < _FLUSH_SECONDS
        self._block = min(4096, 2 * self._block) if early else max(1, self._block // 2)
        self._charged_at = now
        self._segment.charge(min(local + self._block, self._limit - self._origin))

    def settle(self) -> None:
        """Return what was charged ahead and not used. Call when a loop ends or pauses in an orderly way."""
        if not self._rest_charged:
            self._segment.settle(self.taken - self._origin)

    def charge_rest(self) -> None:
        """Charge all steps up to `limit`, for a run that stops early because of what it released.

        If released values decide when a run stops, the ε of the steps taken is too small; the ε of all planned steps
        holds (`assay.runs.callbacks`). `settle` returns nothing afterwards.
        """
        self._segment.charge(self._limit - self._origin)
        self._rest_charged = True

    def epsilon(self) -> float:
        """The verified ε charged so far, never less than what was spent."""
        return self.ledger.epsilon()

    def epsilon_taken(self) -> float:
        """The verified ε of the steps taken, without those charged ahead."""
        return self._segment.epsilon_after(self.taken - self._origin)

    @property
    def limit(self) -> int:
        """The step after which the plan or the budget ends."""
        return self._limit

    def close(self) -> None:
        """Settle the ledger and detach from the model. No step follows. A ledger that the step opened is closed."""
        if not self._closed:
            now = trained.numbers(self.engine.parameters.values())  # an optimizer may write `.data`, without a version
            changed = [
                p
                for p in self.engine.parameters.values()
                if self._versions.get(id(p)) != p._version or self._began.get(id(p)) != now.get(id(p))
            ]
            trained.note(changed, self._behind | self._mine, self._began)
        self._closed = True
        self._loops.stop()
        if not self.is_inherited:  # a forked child has nothing to settle: its parent continues
            self.settle()
        if self._own_ledger:
            self.ledger.close()
        if self._position is not None:
            self._position.stop()
        if self._masks is not None:
            self._masks.stop()
        self.engine.detach()
