"""Privacy bugs, each a small change to our own pipeline. None of them tells the accountant."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent
from torch import Tensor

from assay.accounting import budget as budgets
from assay.accounting.budget import Budget
from assay.accounting.ledger import Fits, Ledger
from assay.data.persons import row_hash
from assay.data.tables import cells, estimates
from assay.data.tables.columns import Column, Number
from assay.features import Finished
from assay.gradients.clipping import Flat
from assay.mechanisms.gaussian import Gaussian, gaussian_event
from assay.mechanisms.spectral import Spectral
from assay.mechanisms.types import Bounded, Private
from assay.methods.chain import Chain
from assay.methods.encode.mean import ClippedMean
from assay.methods.perturb.class_mean import ByClass
from assay.methods.plan import Plan
from assay.methods.selecting import Selection
from assay.randomness.generators import Hashed
from assay.randomness.streams import Blocks, OsSeeded, Randomness, Seeded
from assay.runs.directory import RunDirectory
from assay.training import estimating
from assay.training.meter import MeanLoss
from assay.training.step import PrivateStep

# --- clipping ---


@dataclass(frozen=True, kw_only=True)
class IgnoresC(Flat):
    """Ghost clipping whose factors are computed and never used."""

    def weights(self, norms: Tensor) -> Tensor:
        return torch.ones_like(norms)


@dataclass(frozen=True, kw_only=True)
class EachTensorAtC(Flat):
    """Every tensor clipped at C by itself, charged as if all together were."""

    def groups(self, layers: list[str]) -> list[int]:
        return list(range(len(layers)))


@dataclass(frozen=True, kw_only=True)
class MeanAtRadius(ClippedMean):
    """The mean of a batch clipped, charged as if one record moved it by the bound divided by the batch size."""

    @property
    def l2(self) -> float:
        return self.radius / self.size


@dataclass(frozen=True, kw_only=True)
class ForgetsBias(Chain):
    """Norms without the bias."""

    def clipped_sum(self, grads, groups, slots):
        whole = grads.per_record()
        norms = sum(
            (v.flatten(1).square().sum(1) for n, v in whole.items() if not n.endswith("bias")),
            torch.zeros(grads.records),
        ).sqrt()
        weights = self.clip.weights(norms.unsqueeze(1))
        return {n: torch.tensordot(weights[:, 0], v, 1) for n, v in whole.items()}, norms.unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class MicroBatchAtC(Chain):
    """Micro-batches charged as if one record moved a clipped average by C."""

    @property
    def l2(self) -> float:
        return self.clip.l2


@dataclass(frozen=True, kw_only=True)
class Augmented(Chain):
    """Four augmentations of every record. Right: averaged, then clipped. Wrong: each clipped, then added up."""

    wrong: bool
    views: int = 4

    def clipped_sum(self, grads, groups, slots):
        whole = grads.per_record()
        views = {n: torch.stack([v] * self.views) for n, v in whole.items()}
        each = {n: v.flatten(0, 1) if self.wrong else v.mean(0) for n, v in views.items()}
        norms = sum((v.flatten(1).square().sum(1) for v in each.values()), torch.zeros(1)).sqrt().unsqueeze(1)
        weights = self.clip.weights(norms)
        return {n: torch.tensordot(weights[:, 0], v, 1) for n, v in each.items()}, norms


# --- noise ---


@dataclass(frozen=True, kw_only=True)
class NoiseOnNoRank(Gaussian):
    """Every rank leaves the noise to another."""

    def release(self, grads: Bounded, stream) -> Private:
        return Private(grads.total, gaussian_event(self.multiplier), self.multiplier * grads.l2)


@dataclass(frozen=True, kw_only=True)
class NoiseOnEveryRank(Gaussian):
    """Four ranks add noise each. Right: a half of the standard deviation. Wrong: a fourth of it."""

    share: float

    def release(self, grads: Bounded, stream) -> Private:
        part = Gaussian(multiplier=self.multiplier * self.share)
        for _ in range(4):
            part.release(grads, stream)
        return Private(grads.total, gaussian_event(self.multiplier), self.multiplier * grads.l2)


@dataclass(frozen=True, kw_only=True)
class Reseeded(Gaussian):
    """The generator is seeded at the start of every step."""

    def release(self, grads: Bounded, stream) -> Private:
        return super().release(grads, Seeded(0).stream("noise", 0))


@dataclass(frozen=True, kw_only=True)
class RawToo(Gaussian):
    """The sum without noise is added to what is released (a second gradient accumulator)."""

    def release(self, grads: Bounded, stream) -> Private:
        raw = {name: value.clone() for name, value in grads.total.items()}
        private = super().release(grads, stream)
        return Private({n: v + raw[n] for n, v in private.value.items()}, private.event, private.noise_std)


@dataclass(frozen=True, kw_only=True)
class ChargedAtSigma(Spectral):
    """GReDP's own accounting: σ, whatever part of the noise is kept and however many layers there are."""

    def release(self, grads: Bounded, stream) -> Private:
        private = super().release(grads, stream)
        return Private(private.value, gaussian_event(self.multiplier), private.noise_std)


@dataclass(frozen=True, kw_only=True)
class LastCoefficientBare(Gaussian):
    """Noise in the frequency domain, with a slice that ends one coefficient early. Right: all of them."""

    leave: int

    def release(self, grads: Bounded, stream) -> Private:
        std = self.multiplier * grads.l2
        for value in grads.total.values():
            flat = value.view(-1)
            white = stream.normal(flat.shape, dtype=flat.dtype, device=flat.device)
            spectrum = torch.fft.rfft(white, norm="ortho")
            spectrum[len(spectrum) - self.leave :] = 0
            flat.add_(torch.fft.irfft(spectrum, n=len(flat), norm="ortho"), alpha=std)
        return Private(grads.total, gaussian_event(self.multiplier), std)


@dataclass(frozen=True, kw_only=True)
class InsignificantBare(Gaussian):
    """DP-FedAGS: coordinates below a threshold of the data's own are sent as they are."""

    part: float = 0.5

    def release(self, grads: Bounded, stream) -> Private:
        std = self.multiplier * grads.l2
        if grads.total:
            every = torch.cat([v.reshape(-1).abs() for v in grads.total.values()])
            least = every.quantile(self.part)
            for value in grads.total.values():
                noise = stream.normal(value.shape, dtype=value.dtype, device=value.device)
                value.add_(noise * (value.abs() >= least), alpha=std)
        return Private(grads.total, gaussian_event(self.multiplier), std)


@dataclass(frozen=True, kw_only=True)
class HalfPrecision(Gaussian):
    """Noise drawn in half precision."""

    def release(self, grads: Bounded, stream) -> Private:
        return super().release(grads, _Half(stream))


@dataclass(frozen=True)
class _Half:
    rest: object

    def normal(self, shape: Sequence[int], *, dtype, device) -> Tensor:
        return self.rest.normal(shape, dtype=dtype, device=device).half().to(dtype)


def standardised(grads: Bounded) -> Bounded:
    """The sum divided by its own standard deviation before the noise; the bound is not restated."""
    if not grads.total:
        return grads
    spread = torch.cat([v.reshape(-1) for v in grads.total.values()]).std()
    return Bounded({n: v / spread for n, v in grads.total.items()}, grads.l2)


# --- what stands around a run: its records and its files ---


def by_position(x, y, purpose: str, share: float):
    """`assay.data.split.drawn` by coins of the positions: one record less, and all that follow it have another's
    coin.
    """
    return np.random.RandomState(len(purpose)).random_sample(len(x)) < share


def force_that_forgets(directory: RunDirectory, spec) -> RunDirectory:
    """`--force` that deletes what an earlier run spent."""
    shutil.rmtree(directory.path)
    return RunDirectory.create(directory.path, spec)


class ThreeDigits(RunDirectory):
    """Numbers the ledgers of replaced runs by the first three digits of their names."""

    def _next_earlier(self, suffix):
        self.earlier.mkdir(exist_ok=True)
        taken = [int(path.name[:3]) for path in self.earlier.iterdir() if path.name[:3].isdecimal()]
        return self.earlier / f"{max(taken, default=0) + 1:03d}{suffix}"


def charged_so_far(_plan: Plan, ledger: Ledger) -> float:
    """The ε of a run that was stopped by hand: that of the steps it had taken."""
    return ledger.epsilon()


# --- the step ---


@dataclass(frozen=True, kw_only=True)
class PrivateDenominator(Chain):
    """Divides by the number of records that happened to be in the batch."""

    drawn: list[int]

    def clipped_sum(self, grads, groups, slots):
        self.drawn[:] = [grads.records]
        return super().clipped_sum(grads, groups, slots)

    def finish(self, released, expected_size, forms=None):
        return super().finish(released, float(self.drawn[0]), forms)


class SkipsEmptyBatches(PrivateStep):
    """An empty batch releases nothing."""

    def _release(self) -> None:
        if self._batch.total:
            super()._release()
            return
        self._pay(self.taken - self._origin)
        self.taken += 1
        for parameter in self.engine.parameters.values():
            parameter.grad = torch.zeros_like(parameter)


class Coupled(torch.nn.Module):
    """Batch normalisation by another name."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


# --- models, losses and hooks that the engine must refuse ---


class FilledByMean(torch.nn.Module):
    """Missing values become the mean of the batch. Right: a constant."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.isnan(), x.nanmean(0) if self.wrong else torch.zeros(()), x)


class MiddleCentred(torch.nn.Module):
    """All records but the first and the last lose their common mean. Right: each record loses its own."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        if not self.wrong:
            return x - x.mean(1, keepdim=True)
        return torch.cat([x[:1], x[1:-1] - x[1:-1].mean(0), x[-1:]]) if len(x) > 2 else x


def ranking(outputs: Tensor, targets: Tensor) -> Tensor:
    """Records of the last class are to score above those of the first."""
    scores = outputs[:, 0]
    pairs = ((targets[:, None] == 2) & (targets[None] == 0)).to(scores)
    missed = torch.relu(0.1 - (scores[:, None] - scores[None]))
    return (pairs * missed).sum(1) + scores.square()


class KeepsGradients(torch.nn.Module):
    """Adds up what the backward pass brings, as K-FAC does. Right: reads it and keeps nothing."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)
        self.register_buffer("total", torch.zeros(6))
        self.frozen = torch.nn.Parameter(torch.zeros(6), requires_grad=False)
        self.scale = 1.0
        self.how = how
        self.layer.register_full_backward_hook(self._keep)

    def _keep(self, _module: torch.nn.Module, _inputs: object, outputs: tuple[Tensor]) -> None:
        total = outputs[0].detach().sum(0)
        if self.how == "a buffer":
            self.total.add_(total)
        elif self.how == "a buffer's data":
            self.total.data.add_(total)
        elif self.how == "a frozen parameter":
            self.frozen.data.add_(total)
        elif self.how == "a trained parameter":
            self.layer.bias.data.add_(total)
        elif self.how == "an attribute":
            self.scale += float(total.norm())

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


class Begins(torch.nn.Module):
    """Looks at the records from the moment that `on` is set. Right: counts calls."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.on = how, False
        self.register_buffer("largest", torch.zeros(6))
        self.register_buffer("calls", torch.tensor(0))
        self.mean = 0.0
        self.last: Tensor | None = None

    def get_extra_state(self) -> object:
        return self.mean if self.how == "extra state" else None

    def set_extra_state(self, state: object) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "an attribute used in eval mode" and not self.training:
            return x - self.mean
        if not self.on:
            return x
        if self.how == "an observer":
            self.largest.copy_(torch.maximum(self.largest, x.detach().amax(0)))
        elif self.how in {"extra state", "an attribute used in eval mode"}:
            self.mean = float(x.mean())
        elif self.how == "batch statistics":
            x = torch.nn.functional.batch_norm(x, None, None, training=True)
        elif self.how == "counting":
            self.calls += 1
            self.last = x.detach()
        return x


# --- the ledger ---


class BelievesItsNoise(Ledger):
    """Takes what an entry says of its noise, whatever the plan of the run gives."""

    def check_fits(self, fits: Fits) -> None:
        pass


class BelievesItsLines(BelievesItsNoise):
    """Also takes the lines of its file for what was written, whatever their digests say."""

    def _unsealed(self, lines: list[bytes]) -> list[bytes]:
        return [line.rpartition(b', "digest"')[0] + b"}" for line in lines]


class ForgetsItsPath(Ledger):
    """Charges the file that it once opened, whatever has become of its name."""

    def _check_in_place(self) -> None:
        pass


# --- state: what must exist once ---


class AdvancesFirst(Blocks):
    """The place of the next rows is written down before they are drawn: a draw that fails leaves the old rows there."""

    def row(self, step, call, shape, dtype, device):
        kept = next(iter(self._kept.values()), None)
        if kept is not None and step >= kept.first + len(kept.rows):
            self._kept = {kind: replace(kept, first=kept.first + len(kept.rows)) for kind in self._kept}
            kept.stream.normal((len(kept.rows), *shape), dtype=dtype, device=device)
        return super().row(step, call, shape, dtype, device)


class GoesOnAfterErrors(PrivateStep):
    """An exception within a step is forgotten."""

    def _check_usable(self) -> None:
        self._unfinished = False
        super()._check_usable()


class SharedSource:
    """A source that says its numbers are to repeat, so that every step that gets it draws the same."""

    fingerprint = "shared"

    def __init__(self) -> None:
        self._rest = OsSeeded()

    def describe(self) -> str:
        return "for a test"

    def stream(self, purpose: str, step: int):
        return self._rest.stream(purpose, step)


class SameKeyAfterFork(OsSeeded):
    """A forked child draws what its parent draws."""

    __slots__ = ()

    def stream(self, purpose: str, step: int):
        return Hashed(hashlib.shake_256(self._key + f"{purpose} {step}".encode()))


class Copyable(PrivateStep):
    """A copy of a step is another step, with the same noise."""

    def __reduce_ex__(self, protocol):
        return object.__reduce_ex__(self, protocol)


class ManyLoops(PrivateStep):
    """Loops over the same step know nothing of each other."""

    @property
    def _loop(self) -> int:
        return 0

    @_loop.setter
    def _loop(self, _: int) -> None:
        pass


class SeedsOnce(PrivateStep):
    """torch's generators have secret states when the loop begins, and whatever the script gives them later."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self._masks is not None:
            self._masks.stop()
            self._masks = None


# --- budgets of several runs ---


class LooksBeforeItsTurn(Budget):
    """Whether a reservation fits is decided by what the file said when it was opened: two that open it at once both get
    the rest.
    """

    def __init__(self, *args, **kwargs) -> None:
        self._early = None
        super().__init__(*args, **kwargs)
        self._early = self.state()

    def reserve(self, event, **kwargs):
        early = self._early

        class Early(budgets.State):
            def fits(self, costs):
                return early.fits(costs)

        read = budgets.read_entries
        budgets.read_entries = lambda file: Early(**vars(read(file)))
        try:
            return super().reserve(event, **kwargs)
        finally:
            budgets.read_entries = read


class ForgetsSeeds(Budget):
    """Nobody asks whether another run of the budget has drawn the same noise."""

    def claim(self, token, draws, **kwargs) -> None:
        pass


class NeverEnds(Ledger):
    """Lets steps that were begun go on after the reservation was given back."""

    def end(self) -> None:
        pass


class GivesBackTwice(Budget):
    """What a run did not use is taken off once when it ends, and once more."""

    def settle(self, token, event, **kwargs) -> None:
        known = next(one for one in self.state().accounts if one.token == token)
        used = self.filter.costs(event, self.adjacency)
        less = np.maximum(used - (np.array(known.costs) - used), 0.0)
        costs = self.filter.costs
        object.__setattr__(self, "filter", _Costing(self.filter, less))
        try:
            super().settle(token, event, **kwargs)
        finally:
            self.filter = self.filter.real
        assert self.filter.costs == costs


class _Costing:
    def __init__(self, real, costs) -> None:
        self.real, self._costs = real, costs

    def costs(self, _event, _adjacency):
        return self._costs


class ChargesBeyondItsReservation(Ledger):
    """Steps are held against the run's own ceiling only."""

    @property
    def covers(self):
        return None

    @covers.setter
    def covers(self, _) -> None:
        pass


# --- persons ---


def clip_row_by_row(step: PrivateStep) -> None:
    """Every row of a person is clipped by itself and the person charged as one: rows are never folded into persons."""
    collect = step.engine.collect
    step.engine.collect = lambda losses, persons=1: collect(losses)  # type: ignore[method-assign, misc]


def least_rows_as_they_come(dataset, ids, most):
    """Of each person the rows with the least hash, of what they draw after all rows before them have drawn."""
    hashes = [row_hash(dataset[i]) for i in range(len(ids))]
    order = sorted(range(len(ids)), key=lambda i: (ids[i], hashes[i]))
    return [i for at, i in enumerate(order) if at < most or ids[order[at - most]] != ids[i]]


@property
def counts_rows(bundle):
    """Counts rows, also where persons are protected with all of theirs."""
    return len(bundle.train_x)


# --- columns of a table ---


class ListsEveryLevel(estimates.Levels):
    """Every level that a row has is released, as if it were public; only the noise on the counts is charged."""

    def released(self, noisy: Mapping[str, float]) -> tuple[str, ...]:
        return tuple(noisy)


def exact_bounds(counts: Sequence[float], noise: float) -> Column:
    """Bounds that are the outermost cells that any row is in, charged as if they came from the noisy counts."""
    there = [cells.NUMBERS[i] for i in range(len(cells.NUMBERS)) if counts[i] > 0]
    return Number(low=there[0][0], high=there[-1][1])


def same_noise_for_every_request(private, draft, columns, randomness, request):
    """A seed that gives every estimate of a table the same noise: two answers show the counts."""
    return estimating.release(private, draft, columns, randomness, "")


class NeverPays(Ledger):
    """A release before training that is made and not charged."""

    def pay_once(self, event: DpEvent) -> None:
        pass


class ForgetsEstimates(RunDirectory):
    """A run that deletes the charge of an estimate which was made in its directory, and for which it does not pay."""

    def set_estimate_aside(self) -> None:
        self.estimate_ledger.unlink(missing_ok=True)


class KeepsRows(RunDirectory):
    """A run that keeps what an estimate in its directory was asked for, a digest of the rows included."""

    def set_estimate_aside(self) -> None:
        self.earlier.mkdir()
        for path in (self.estimate_ledger, self.estimate):
            path.rename(self.earlier / f"001{path.suffix}")


class TellsNobody(Ledger):
    """Charges a reservation without a note of it in the budget, so that a copy of it may be charged, too."""

    @property
    def witness(self):
        return None

    @witness.setter
    def witness(self, _):
        pass


# --- steps that are kept or taken back ---


class ChargesTheAccepted(Plan):
    """Charges as many steps as are kept at most, and nothing for those that are taken back."""

    def steps_event(self, steps: int, start: int = 0) -> DpEvent:
        assert self.selection is not None
        assert self.selection.most is not None
        return super().steps_event(min(steps, self.selection.most), start)


class SharesCoins(Selection):
    """Tests a step with the coins that drew its batch."""

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        return self.sampler.draw(step, randomness)


# --- heads on features ---


def uncut_blocks(records, mean, norm):
    """Inputs for second moments, divided by the norm to which they should be cut and not cut to it."""
    x, y = records.all()[:2]
    yield (x.double() - mean.double()).flatten(1) / norm, y


@dataclass(frozen=True)
class FullShares(ByClass):
    """Class sums and class sizes with a full bound each, charged as one."""

    @property
    def shares(self) -> tuple[float, float]:
        return 1.0, 1.0


@dataclass(frozen=True)
class FittedToRecords(Finished):
    """A preconditioner fitted to the records themselves, for free."""

    def extract(self, x: Tensor) -> Tensor:
        computed = self.then.extract(x)
        return self.last.map_for(lambda _: computed, tuple(x.shape[1:]))(computed)


class SumsInFloat32(MeanLoss):
    """Adds up losses in float32, whose sums are rounded the more the larger they are."""

    sensitivity = 3.0

    def measure(self, losses, norms):
        return losses.clamp(0.0, self.bound).sum()
