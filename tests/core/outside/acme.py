"""A package that is not assay: one thing of each kind, and nothing of assay edited."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay.accounting.events import PROBABILITY, Accountant
from assay.attacks import Scores
from assay.data.catalog import DatasetInfo
from assay.data.sampling import Sampler
from assay.federated.methods.fedavg import FedAvg
from assay.gradients.clipping import ClipRule
from assay.methods.dpsgd import DPSGD
from assay.report.elements import section
from assay.report.html import tag
from assay.report.sections import Section


@dataclass(frozen=True)
class TwiceDrawn(DpEvent):
    """A release from the records that were drawn twice in a row."""

    first: float
    second: float
    event: DpEvent


@dataclass(frozen=True, kw_only=True)
class OfTwiceDrawn(Accountant):
    """Independent draws are one draw with the product of their chances."""

    def terms(self, event, adjacency, parts):
        yield from parts(PoissonSampledDpEvent(event.first * event.second, event.event))


ACCOUNTANT = OfTwiceDrawn(
    name="acme-twice", event=TwiceDrawn, numbers={"first": PROBABILITY, "second": PROBABILITY}, inner="event"
)


@dataclass(frozen=True)
class Twice(Sampler):
    """Each record flips two coins in each step, and enters the batch if both say so."""

    name: ClassVar[str] = "acme-twice"

    def draw(self, step, randomness):
        stream = randomness.stream("sample", step)
        first, second = (stream.uniform(self.records) < self.rate**0.5 for _ in range(2))
        return torch.nonzero(first & second).flatten()

    def compose(self, event, steps):
        return SelfComposedDpEvent(TwiceDrawn(self.rate**0.5, self.rate**0.5, event), steps)

    def at_least(self, event, steps):
        return self.compose(event, steps)

    def describe(self):
        return "acme sampling: two coins for each record"


@dataclass(frozen=True)
class Soft(ClipRule):
    """C · g/(‖g‖ + C), which is shorter than C."""

    name: ClassVar[str] = "acme-soft"

    bound: float = 1.0

    @property
    def l2(self):
        return self.bound

    def weights(self, norms):
        return self.bound * (1 - 1e-5) / (norms + self.bound)


@dataclass(frozen=True, kw_only=True)
class AcmeSGD(DPSGD):
    """DP-SGD under another name, with an option."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("mood",)

    name: str = "acme-sgd"
    summary: str = "Acme SGD: DP-SGD with a mood"
    mood: str = "good"


METHOD = AcmeSGD()


@dataclass(frozen=True, kw_only=True)
class AcmeAverage(FedAvg):
    """DP-FedAvg under another name."""

    name: str = "acme-average"
    summary: str = "Acme averaging"


FEDERATED = AcmeAverage()


def read(info, contents):
    """Two clouds of points."""
    y = np.arange(info.train_records + info.test_records) % 2
    x = np.random.default_rng(0).normal(size=(len(y), 4)).astype(np.float32) + y[:, None].astype(np.float32)
    train, test = slice(info.train_records), slice(info.train_records, None)
    return (x[train], y[train].astype(np.int64)), (x[test], y[test].astype(np.int64))


DATASET = DatasetInfo(
    name="acme-clouds",
    description="two clouds of points",
    unit="one point",
    train_records=200,
    test_records=40,
    shape=(4,),
    classes=2,
    notes="Points are used as they are.",
    read=read,
)


class Guess:
    """Scores records by their first coordinate."""

    name = "acme-guess"
    summary = "looks at the first coordinate"
    needs = ()

    def score(self, setting):
        found = setting.evaluated
        scores = [np.array([float(x[0]) for x, _ in part]) for part in (found.members, found.nonmembers)]
        return Scores(members=scores[0], nonmembers=scores[1], calibration="nothing")


ATTACK = Guess()

SECTION = Section(
    name="acme",
    order=5,
    render=lambda page: section("acme", "Seen by Acme", tag("p", f"{len(page.found.finished)} runs")),
)
