"""The private step, for people's own loops: they keep model, loop, optimizer and scheduler.

    step = assay.PrivateStep(model, plan)
    for x, y in step.batches(dataset):
        losses = F.cross_entropy(model(x), y, reduction="none")   # one value a record
        if step.backward(losses):                                 # clip, sum, charge, add noise, write .grad
            optimizer.step()

Under `torchrun` (or any other launch of several processes) the same loop trains on all of them: every rank gets its own part of each
batch, and after `backward` all have the same `.grad` (`assay.distributed`).

Privacy lives in the step, not in an optimizer: `backward` writes an ordinary, already private `.grad`, and whatever is
done with it is post-processing. Any number of optimizers, schedulers or non-private models around it (a GAN's
generator) need no wrapper.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, NonPrivateDpEvent
from torch import Tensor, nn
from torch.utils.data import Dataset

from assay._util import digest
from assay._util.figures import at_most
from assay._util.process import Unique, here
from assay.accounting import events
from assay.accounting.ledger import Ledger
from assay.data.records import Records
from assay.distributed.placement import Everywhere, Placement
from assay.distributed.world import Ranks, World
from assay.distributed.world import world as current_world
from assay.errors import AssayError, BudgetSpentError, ConfigError
from assay.gradients import on_grid
from assay.gradients.arithmetic import zeros_for
from assay.gradients.engine import Engine, check_losses
from assay.gradients.proof import position
from assay.gradients.record_grads import RecordGrads
from assay.gradients.rules.layers import RULES
from assay.mechanisms.banded import BandedGaussian
from assay.mechanisms.exact import ExactGaussian
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.types import Bounded, SideQuery
from assay.methods.chain import Chain, Form
from assay.methods.plan import Plan
from assay.models.layers import trainable_layers
from assay.randomness.blocks import Blocks
from assay.randomness.streams import OsSeeded, Randomness, taken_apart
from assay.training import limits
from assay.training.augment import Augmentation
from assay.training.batches import Batches
from assay.training.masks import Masks

_FLUSH_SECONDS = 0.25  # charge ahead about this much work, so that flushing the ledger to disk stays cheap


class PrivateStep(Unique):
    """Turns losses, one a record, into a private gradient, and pays for it first.

    Guarantee: what `.grad` holds after `backward` returned True, over all steps taken, is (ε, δ)-differentially private
    with the ε that `epsilon()` states, provided that the batches come from `batches` and that nothing else computed
    from the records is released.

    It exists once: it cannot be copied, and a forked process must make its own. An exception inside `backward` makes it unusable, because
    nobody can tell how much noise was drawn by then; a new one on the same ledger goes on with fresh noise.
    """

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
        limits.check(plan, world.size)
        self.plan = plan = plan.for_layers(trainable_layers(model))
        if plan.exact:
            _check_exact(model, side)
        gradient_share = _left_of([*side, *plan.clip.queries])
        chain = plan.chain(gradient_share)
        self.randomness = taken_apart(OsSeeded() if randomness is None else randomness)
        self._position: position.Watch | None = None
        self._augment, self._views = augment, 1 if augment is None else augment.views
        if augment is not None and world.size > 1:
            raise ConfigError("augment", str(augment), "one rank: ranks with one seed would draw the same views")
        if self._views > 1 and chain.rules:
            raise ConfigError(
                "augment", str(augment), "one view of a record with methods that work on whole maps of a layer"
            )
        with contextlib.ExitStack() as undo:  # what is refused leaves model and ledger as they were
            self._attach(model, chain, ledger, taken, undo)
            self._later = {
                factor: plan.chain(gradient_share, factor).on(self.engine.parameters).noise
                for _, factor in plan.stretches
                if factor != 1.0
            }
            self._physical = None if max_physical_batch is None else max(1, max_physical_batch // self._views)
            if plan.exact:
                self._physical = self._physical or _size_of_parts(plan.batch_size)
                self._position = position.Watch(model)
                undo.callback(self._position.stop)
            self._side: list[SideQuery] = [*side, *self.chain.clip.queries]
            self._groups = self.chain.clip.groups(self.engine.layers)
            self._forms: dict[str, Form] = {name: parameter.shape for name, parameter in self.engine.parameters.items()}
            self._noise = Blocks(self.randomness, "noise")
            self._masks: Masks | None = None
            if (
                self.randomness.fingerprint is None
            ):  # a fixed seed fixes what the model draws as well, and is the caller's
                self._masks = Masks(model, self.randomness.stream("model", 0))
                undo.callback(self._masks.stop)
            if isinstance(self.chain.noise, BandedGaussian):
                self._catch_up(self.chain.noise)
            undo.pop_all()
        self._expected_size = plan.sampler.expected_size
        self.nonfinite = 0
        self._paid: list[DpEvent] = []
        self._total: dict[str, Tensor] = {}
        self._measured: list[Tensor] = []
        self._pending = 1
        self._padded, self._fill = False, 0
        self._drawn: int | None = None
        self._slots: Tensor | None = None
        self._block, self._charged_at = 1, -math.inf
        self._loop = 0
        self._closed = self._unfinished = self._rest_charged = False

    def _attach(
        self,
        model: nn.Module,
        chain: Chain,
        ledger: Ledger | str | Path | None,
        taken: int,
        undo: contextlib.ExitStack,
    ) -> None:
        """Take up the ledger and the model."""
        plan, world = self.plan, self.world
        self._own_ledger = not isinstance(ledger, Ledger)
        if not isinstance(ledger, Ledger):
            path = None if ledger is None or not world.leader else Path(ledger)
            ledger = Ledger(path, delta=plan.delta, adjacency=plan.adjacency, ceiling=plan.epsilon_limit)
            undo.callback(ledger.close)
        _check_ledger(ledger, plan)
        charges = world.once(functools.partial(_claimed_charges, ledger))
        self.ledger = ledger = ledger if world.leader else ledger.reading(charges)
        if plan.stage is not None and not ledger.paid(plan.stage_event):
            raise ConfigError(
                "method",
                plan.method.name,
                "a ledger that was charged for what this method releases before its first step; `assay.fit` does all of that",
            )
        # a clock may decide differently the next time, and the last bits with it: not where a run is to be repeated exactly
        seeded = self.randomness.fingerprint is not None
        coins = self.randomness.stream("proof", taken)
        self.engine = Engine(model, {**RULES, **chain.rules}, measured=not seeded, coins=coins)
        undo.callback(self.engine.detach)
        # the noise of later levels of a schedule has its own; all else in the chain, which may have a state, is the same in all of them
        self.chain = chain.on(self.engine.parameters)
        world.alike(model)
        self.placement: Placement = Everywhere(world)
        # With a fixed seed a resumed run repeats the same draws, counted from the first step of the run. Fresh
        # randomness starts anew.
        self._origin = 0 if seeded else taken
        self.taken = taken
        cost = functools.partial(plan.steps_event, start=self._origin)
        start = world.once(lambda: digest.of_model(model)) if seeded and taken == 0 else None
        draws = self.randomness.fingerprint
        self._segment = ledger.begin(cost, plan.steps - self._origin, draws=draws, start=start, origin=self._origin)
        self.randomness = self._segment.own(self.randomness)
        self._limit = self._origin + world.once(lambda: self._segment.allowed)

    def _catch_up(self, noise: BandedGaussian) -> None:
        """The past of a run that repeats its draws. A run with fresh randomness has none: its first step here is step 0."""
        first = self.engine.parameters[min(self.engine.parameters)]
        streams = [self.placement.noise(self._noise.at(local)) for local in range(self.taken - self._origin)]
        size = sum(p.numel() for p in self.engine.parameters.values())
        noise.catch_up(size, streams, dtype=zeros_for(first).dtype, device=first.device)

    def shard(self, losses: Tensor, device: torch.device | None = None) -> None:
        """Split the model over the ranks (FSDP2), for one that does not fit a device; before its optimizer is made.

        `losses` are those of two records or more, whichever: by them the engine proves itself on the whole model. They count for nothing.
        """
        from assay.distributed.shards import Shards  # FSDP2 takes a second to import

        limits.check(self.plan, self.world.size, shard=True)
        assert isinstance(self.world, Ranks)
        if losses.dim() != 1 or len(losses) < 2:
            raise ConfigError("losses", f"shape {tuple(losses.shape)}", "those of two records or more, one value each")
        self.engine.collect(losses)
        if not self.engine.proven:
            raise ConfigError("losses", "no finite gradients", "finite ones: the model is split only once it is proven")
        self.placement = Shards(self.engine, self.world, device or losses.device)

    def batches(self, dataset: Dataset[Any] | Records, steps: int | None = None) -> Iterator[Any]:
        """The batches of the plan's sampler, up to the end of the plan (or `steps` of them), collated as a DataLoader
        would.

        With `max_physical_batch`, a batch comes in parts and `backward` returns True after the last. A batch that came
        out empty is given as one record of zeros, which counts for nothing: the step is taken, with its noise, as for
        any other batch. With `augment`, each record comes as several views, one after the other, and `backward` takes one
        loss a view; their gradients are averaged before clipping.

        Without a seed, torch's own generators, which dropout draws from, have secret states for every part (`assay.training.masks`).

        One loop at a time: a second call ends the first, which raises an error where it goes on.

        On several ranks `dataset` is the whole data set, of which each rank takes an equal share, or the rank's own share, which no
        other rank has. The plan is always that of the whole.
        """
        self._check_usable()
        records = dataset if isinstance(dataset, Records) else Records(dataset)
        if self._masks is not None:
            self._masks.begin(parameter.device for parameter in self.engine.parameters.values())
        self._loop += 1
        loop = self._loop
        drawing = Batches(records, self.plan, self.randomness, self.world, self._physical, self._augment)
        end = self._limit if steps is None else min(self._limit, self.taken + steps)
        while self.taken < end:
            now = self.taken
            batch = drawing.draw(now - self._origin)
            self._pending = passes = self.placement.passes(len(batch))
            # parts of a batch whose loop was left in the middle: the very same batch is drawn here again, each record once
            self._total, self._measured = {}, []
            for part in batch.parts(passes):
                if self._masks is not None:
                    self._masks.renew()  # before the records are fetched: data sets draw as well
                given = batch.gather(part)
                self._drawn, self._slots, self._padded = len(part) * self._views, part.slots, part.padding
                self._fill = part.fill
                yield given
                self._check_usable()
                if self._loop != loop:
                    raise AssayError(
                        "another loop over batches() of this PrivateStep has begun: parts of one batch would count in the other. Finish one loop "
                        "before the next"
                    )
            if self.taken == now:
                raise AssayError("a batch was drawn but backward() was not called for it: every batch needs its step")

    def backward(self, losses: Tensor) -> bool:
        """Clip and add up; after the last part of a batch charge, add noise, write `.grad`, and return True.

        Until then `.grad` is None, so that an optimizer that steps anyway does nothing.
        """
        # norms and sums in half precision would not keep the bound; the first question is quick, and enough where the answer is no
        if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(losses.device.type):
            with torch.autocast(losses.device.type, enabled=False):
                return self.backward(losses)
        self._check_usable()
        if self.taken >= self._limit:
            raise BudgetSpentError(
                f"the budget is spent after {self.taken} steps: ε = {at_most(self.epsilon())}"
                + (f" of {self.ledger.ceiling:g}" if self.ledger.ceiling is not None else "")
                + f" (δ = {self.plan.delta:g}); no further step is taken"
            )
        if losses.dim() == 1 and losses.shape[0] != self._drawn:
            raise ConfigError(
                "losses",
                f"{len(losses)} values",
                f"one for each of the {self._drawn} {'records' if self._views == 1 else 'views'} of the batch drawn last"
                if self._drawn is not None
                else "the losses of a batch from `batches`: ε is true only for batches that the plan's sampler drew",
            )
        check_losses(losses)
        if self._masks is not None and not self._masks.secret:
            raise AssayError(
                "torch's generators were seeded between model(...) and backward(): what the loss draws from them would be known. Seed before the "
                "model is called, or use a torch.Generator of your own; then call the model again for this batch"
            )
        # From here on nobody can tell how far an exception (an interrupt, a failed allocation) has let things go: noise may have been drawn, a
        # part of a batch may count already.
        self._unfinished = True
        done = self._add(losses)
        self._unfinished = False
        return done

    def _check_usable(self) -> None:
        self.check_process()
        if self._closed:
            raise AssayError("this PrivateStep was closed: make a new one to go on")
        if self._unfinished:
            raise AssayError(
                "an exception ended a backward() of this PrivateStep in the middle, so it takes no further step: noise might be used twice. close() "
                "it and make a new one on the same ledger, PrivateStep(model, plan, ledger=step.ledger, taken=step.taken): it draws fresh noise, "
                "and what was charged stays charged"
            )

    def _add(self, losses: Tensor) -> bool:
        """Clip and add up, and release after the last part."""
        self._drawn = None
        if self._pending > 1:
            for parameter in self.engine.parameters.values():
                parameter.grad = None
        # In a domain of maps, a batch without records must have noise of the same shape as any other, and a model that is split
        # needs all ranks for a pass: the one record of zeros runs through the model like others, and counts for nothing.
        if not self._padded or self.chain.rules or self.placement.split:
            if self._views > 1:  # the mean over a record's views, one value a record
                grads = self._collect(losses / self._views)
                losses = losses.detach().view(-1, self._views).mean(1)
            else:
                grads = self._collect(losses * 0.0 if self._padded else losses)
            total, norms = self.chain.clipped_sum(grads, self._groups, self._slots)
            self.nonfinite += grads.nonfinite
            if self.chain.rules:
                self._forms |= grads.bases()
            measured = [query.measure(losses, norms) for query in self._side]
            if self._padded:
                measured = [torch.zeros_like(value) for value in measured]
                if not self.placement.split:  # there it holds what other ranks have added
                    total = {name: torch.zeros_like(value) for name, value in total.items()}
            if not self._total:
                self._total, self._measured = total, measured
            else:
                torch._foreach_add_(list(self._total.values()), list(total.values()))
                self._measured = [a + b for a, b in zip(self._measured, measured, strict=True)]
        else:
            self.engine.forget()
        self._pending -= 1
        if self._pending > 0:
            return False
        self._release()
        return True

    def _collect(self, losses: Tensor) -> RecordGrads:
        """Every record's gradient. With exact noise the first batch shows that no record changes another's bits."""
        if self._position is None:
            grads = self.engine.collect(losses, self._views)
        else:
            again = self._position.replayed(losses)
            first = self.engine.collect(losses, self._views)
            if self.engine.proven:  # from here on the engine goes the way that it goes in all later steps
                self._position.stop()
                self._position = None
            grads = again.check(self.engine, self._views, self._whole_numbers) or first
        grads.padding = self._fill if self.plan.exact else 0
        return grads

    def _whole_numbers(self, grads: RecordGrads) -> dict[str, Tensor]:
        assert isinstance(self.chain.noise, ExactGaussian)
        return on_grid.rounded(grads, self.chain.clip, self._groups, self.chain.noise.grid)

    def _release(self) -> None:
        local = self.taken - self._origin
        if local >= self._segment.charged:
            self._pay(local)
        total = self._total or self.chain.sum_of_nothing(self.engine.parameters)
        measured = self._measured
        self._total, self._measured, self._pending = {}, [], 1
        factor = self.plan.noise_factor(self.taken)
        self.taken += 1  # from here on: what follows may fail when the noisy sum has left this process already
        # the noise is in the leader's part before the parts are added up, and the ledger was charged before either
        chain = self.chain if factor == 1.0 else replace(self.chain, noise=self._later[factor])
        released = chain.release(Bounded(total, chain.l2), self.placement.noise(self._noise.at(local)))
        self.placement.released(released.value)
        spent = [released.event]
        if self._side:
            spent += self._release_side(measured, local, factor)
        if spent != self._paid:  # compared once; steps rarely differ in what they release
            _check_paid(events.joint(spent), self.plan.chain(noise_factor=factor).event())
            self._paid = spent
        grads = self.chain.finish(released, self._expected_size, self._forms)
        for name, parameter in self.engine.parameters.items():
            parameter.grad = self.placement.gradient(parameter, grads[name])

    def _release_side(self, measured: list[Tensor], local: int, factor: float) -> list[DpEvent]:
        """Release what the side queries measured and hand it to them; what that cost."""
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
        """Charge this step, and a few ahead if steps are short; nothing is released before the ledger is on disk."""
        now = time.monotonic()
        self._block = (
            min(4096, 2 * self._block) if now - self._charged_at < _FLUSH_SECONDS else max(1, self._block // 2)
        )
        self._charged_at = now
        self._segment.charge(min(local + self._block, self._limit - self._origin))

    def settle(self) -> None:
        """Give back what was charged ahead and not used. Call when a loop ends or pauses in an orderly way."""
        if not self._rest_charged:
            self._segment.settle(self.taken - self._origin)

    def charge_rest(self) -> None:
        """Charge all steps up to `limit`, for a run that ends here because of what it released. None is given back.

        The ε of a number of steps that was chosen by looking at released values is too small; that of all steps holds
        (`assay.runs.callbacks`).
        """
        self._segment.charge(self._limit - self._origin)
        self._rest_charged = True

    def epsilon(self) -> float:
        """The verified ε charged so far; never less than what was spent."""
        return self.ledger.epsilon()

    def epsilon_taken(self) -> float:
        """The verified ε of the steps taken, without those that are paid for ahead."""
        return self._segment.epsilon_after(self.taken - self._origin)

    @property
    def limit(self) -> int:
        """The step after which the plan or the budget ends."""
        return self._limit

    def close(self) -> None:
        """Settle the ledger, let others charge it if it was made here, and give the model back as it was. No step follows."""
        self._closed = True
        if self._process is here():  # a forked child has nothing to settle: its parent goes on
            self.settle()
        if self._own_ledger:
            self.ledger.close()
        if self._position is not None:
            self._position.stop()
        if self._masks is not None:
            self._masks.stop()
        self.engine.detach()


def _size_of_parts(batch_size: float) -> int:
    """How many records go through the model at once with exact noise: a power of two up to 64 that batches fill."""
    return min(64, max(8, 1 << math.ceil(math.log2(max(1.0, batch_size)))))


def _check_exact(model: nn.Module, side: Sequence[SideQuery]) -> None:
    """Refuse exact noise for what is not computed or released exactly."""
    if side:
        raise ConfigError(
            "side", [type(query).__name__ for query in side], "nothing beside the gradient with exact noise"
        )
    for name, p in model.named_parameters():
        if p.device.type != "cpu":
            raise ConfigError(
                "device", str(p.device), f"cpu with exact noise: kernels elsewhere add up in any order ({name})"
            )


def _left_of(asked: Sequence[SideQuery]) -> float:
    """What side queries leave of a step's privacy for the gradient."""
    shares = [query.share for query in asked]
    if not all(0 < share < 1 for share in shares) or sum(shares) >= 1:
        raise ConfigError(
            "side", f"shares {shares}", "shares of a step's privacy above 0 that leave some for the gradient"
        )
    return 1.0 - sum(shares)


def _claimed_charges(ledger: Ledger) -> Any:
    """What the ledger holds, once nobody else can charge it."""
    ledger.claim()
    return ledger.charges()


def _check_ledger(ledger: Ledger, plan: Plan) -> None:
    """Refuse a ledger by which the plan's ε would be another one, or its ceiling none."""
    if (ledger.delta, ledger.adjacency) != (plan.delta, plan.adjacency):
        raise ConfigError(
            "ledger",
            f"δ = {ledger.delta:g}, {ledger.adjacency.value}",
            f"a ledger of the plan's δ = {plan.delta:g} and {plan.adjacency.value}: ε means nothing without them",
        )
    limit = plan.epsilon_limit
    if limit is not None and (ledger.ceiling is None or ledger.ceiling > limit):
        raise ConfigError(
            "ledger", f"ceiling {ledger.ceiling}", f"a ledger whose ceiling is at most the plan's, ε = {limit:g}"
        )


def _check_paid(released: DpEvent, charged: DpEvent) -> None:
    """What was released must cost no more than what was charged; they are computed apart, so this can only be a bug."""
    if isinstance(charged, NonPrivateDpEvent) or released == charged:
        return
    both = isinstance(released, GaussianDpEvent) and isinstance(charged, GaussianDpEvent)
    if not both or released.noise_multiplier < charged.noise_multiplier * (1 - 1e-9):
        raise AssayError(f"this step released {released} but only {charged} was charged; the run must not go on")
