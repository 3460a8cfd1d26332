"""The batches that a loop gets: this rank's share of the records that the sampler drew, in parts that fit memory.

Every record that was drawn is in exactly one part, and a micro-batch is never cut. If the rank has no record in a
batch, a stand-in comes in its place, which does not count. With exact noise all parts have the same size and are filled
up with stand-ins: a record's gradient must not depend, by a single bit, on how many others there are. Where persons are
sampled, the rows of a person stay in one part: they are clipped as one there, and nobody is in two parts. The records,
micro-batches and views of a step follow from its number and the randomness alone, however it is cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from assay.data.persons import Ids, UnitRecords
from assay.data.records import Key, Records, units_of
from assay.distributed.world import World
from assay.errors import ConfigError
from assay.gradients.uses.persons import Persons
from assay.methods.plan import Plan
from assay.randomness.streams import Randomness, Stream
from assay.training.augment import Augmentation


def unit_records(records: Records, ids: Ids | None, plan: Plan) -> Records:
    """The records as the plan's unit counts them.

    Args:
        records: The rows.
        ids: Whose each row is; None takes what the data set itself says.
        plan: Says who is protected.

    Returns:
        `records` themselves where a record is the unit.

    Raises:
        ConfigError: `ids` are missing or not asked for, or persons and rows are not as many as the plan says. On
            several ranks every rank must have them all: a person whose rows are on two ranks would be clipped twice.
    """
    unit = plan.unit
    if isinstance(records, UnitRecords):
        if records.unit != unit:
            raise ConfigError("dataset", str(records.unit), f"the unit of the plan, {unit or 'one record'}")
        return records
    ids = units_of(records.dataset) if ids is None else ids
    if unit is None:
        if ids is not None:
            accepted = (
                "a plan with a unit: this one protects single records, and so would these rows if they were loaded "
                "without one"
            )
            raise ConfigError("units", f"{len(ids)} ids", accepted)
        return records
    if ids is None:
        raise ConfigError("units", None, f"an id for each row: the plan protects {unit}")
    found = UnitRecords(records, ids, unit)
    if plan.may_lack_records and found.persons <= unit.persons and len(found) <= plan.records:
        return found
    if (found.persons, len(found)) != (unit.persons, plan.records):
        kept = "" if unit.whole else f", and {plan.records} rows when at most {unit.rows} of each are kept"
        raise ConfigError(
            "units",
            f"{found.persons} persons" + ("" if unit.whole else f" and {len(found)} rows"),
            f"the {unit.persons} persons that the plan was made for{kept}, all of them on every rank",
        )
    return found


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Some records of a batch, as places in the data set; without any, a stand-in fills an empty pass."""

    index: Tensor | None
    slots: Tensor | None
    """The micro-batch of each record, if there are any."""
    fill: int = 0
    """How many stand-ins follow, which do not count."""
    persons: Persons | None = None
    """Where persons are sampled, whom the rows belong to; `index` then names persons."""

    @property
    def padding(self) -> bool:
        """Whether it holds stand-ins only, which do not count."""
        return self.index is None

    def __len__(self) -> int:
        if self.persons is not None:
            return self.fill + self.persons.rows
        return self.fill + (0 if self.index is None else self.index.shape[0])


class Batch:
    """One step's batch. Sensitive: amplification relies on nobody knowing which records are in it."""

    def __init__(
        self,
        records: Records,
        index: Tensor,
        slots: Tensor | None,
        largest: int | None,
        augment: Augmentation | None,
        stream: Stream | None,
        *,
        fixed: bool = False,
        seeds: Stream | None = None,
    ) -> None:
        self._records, self._index, self._slots, self._augment, self._stream = records, index, slots, augment, stream
        self._size = largest if fixed else None
        self._counts = records.counts(index) if isinstance(records, UnitRecords) and records.unit.whole else None
        if self._counts is not None and largest is not None:
            self._cuts = _cuts_between_persons(self._counts, largest)
        else:
            self._cuts = _cuts(len(index), largest, slots) if len(index) else []
        # for what the data set itself draws: one seed for each part
        self._seeds = None if seeds is None or not self._cuts else seeds.integers(2**62, len(self._cuts)).tolist()
        self._at = 0
        self._source: Callable[[], Iterator[Any] | None] | None = None

    def __len__(self) -> int:
        """How many passes through the model it needs."""
        return max(1, len(self._cuts))

    def parts(self, passes: int) -> Iterator[BatchPart]:
        """Its parts, and padding up to this many passes."""
        slots = self._slots
        for start, stop in self._cuts:
            fill = 0 if self._size is None else self._size - (stop - start)
            persons = None if self._counts is None else Persons(self._counts[start:stop])
            yield BatchPart(self._index[start:stop], None if slots is None else slots[start:stop], fill, persons)
        for _ in range(len(self._cuts), passes):
            yield BatchPart(None, None if slots is None else slots.new_zeros(1), self._size or 1)

    def keys(self, fetched: Callable[[], Iterator[Any] | None]) -> Iterator[Key]:
        """What worker processes are told to fetch for it; `fetched` gives what they have fetched."""
        self._source = fetched
        for at, (start, stop) in enumerate(self._cuts):
            yield self._index[start:stop].tolist(), None if self._seeds is None else self._seeds[at]

    def gather(self, part: BatchPart) -> Any:
        """The records of a part, each as its views. Call it for the parts in order: they draw from one stream."""
        if part.index is None:
            batch = self._records.stand_ins(part.fill)
        elif part.fill:
            batch = self._records.filled(part.index, part.fill)
        else:
            batch = self._fetch(part.index)
        return batch if self._augment is None or self._stream is None else self._augment(batch, self._stream)

    def _fetch(self, index: Tensor) -> Any:
        """The records of the next part."""
        at, self._at = self._at, self._at + 1
        ahead = None if self._source is None else self._source()
        if ahead is not None:
            return next(ahead)
        return (
            self._records.gather(index) if self._seeds is None else self._records.gather_seeded(index, self._seeds[at])
        )


class Batches:
    """The batches of a plan from these records, step by step.

    No part has more than `largest` records, unless a micro-batch is larger.
    """

    def __init__(
        self,
        records: Records,
        plan: Plan,
        randomness: Randomness,
        world: World,
        largest: int | None,
        augment: Augmentation | None,
    ) -> None:
        if plan.exact and largest is None:
            raise AssertionError("exact noise needs parts of a fixed size")
        if plan.exact and records.loading.collate_fn is not None:
            raise ConfigError(
                "collate_fn",
                records.loading.collate_fn,
                "none with exact noise: a record must not depend on how others are padded",
            )
        self._records, self._plan, self._randomness, self._world = records, plan, randomness, world
        self._largest, self._augment = largest, augment
        lacking = plan.may_lack_records and len(records) < plan.records
        self._present = len(records) if lacking else plan.records
        self._share = world.share(records, self._present)

    def draw(self, step: int) -> Batch:
        """The batch of this step, counted from the start of this randomness."""
        index = self._drawn(step)
        slots = None
        if self._plan.micro_batch > 1:
            count = max(1, round(self._plan.batch_size / self._plan.micro_batch))
            slots, order = self._randomness.stream("micro", step).integers(count, len(index)).sort()
            index = index[order]
        # One stream for all parts of a batch, as secret as the noise: it would tell a record's place in the batch.
        stream = None if self._augment is None else self._randomness.stream("augment", step)
        seeds = self._randomness.stream("loading", step) if self._records.draws else None
        return Batch(
            self._records, index, slots, self._largest, self._augment, stream, fixed=self._plan.exact, seeds=seeds
        )

    def ahead(self, first: int, last: int) -> Iterator[Batch]:
        """The batches of these steps; where there are worker processes, they fetch records of later ones meanwhile.

        Which records those are is drawn in this process, a few batches ahead, and is the same as without workers.
        """
        drawn: deque[Batch] = deque()
        found: list[Iterator[Any]] = []

        def keys() -> Iterator[Key]:
            for step in range(first, last):
                batch = self.draw(step)
                drawn.append(batch)
                yield from batch.keys(lambda: found[0])

        # with exact noise parts are filled up, which this process does
        fetched = None if self._plan.exact else self._records.ahead(keys())
        if fetched is None:
            for step in range(first, last):
                yield self.draw(step)
            return
        found.append(fetched)
        # The loader is ahead of what was taken from it by at least one key. So the next batch is drawn by now, and with
        # it every empty one before it, for which nothing is fetched.
        for _ in range(first, last):
            yield drawn.popleft()

    def _drawn(self, step: int) -> Tensor:
        """This rank's share of the batch.

        Every rank draws for the whole data set and keeps its own records. With a seed this is the batch of one process.
        Without one every rank has another key, which gives the same distribution if records are drawn independently.
        """
        sampler = self._plan.sampler
        index = (
            sampler.draw(step, self._randomness)
            if sampler.independent
            else self._world.once(lambda: sampler.draw(step, self._randomness))
        )
        return self._share.local(index[index < self._present] if self._present < self._plan.records else index)


def _cuts_between_persons(counts: Tensor, largest: int) -> list[tuple[int, int]]:
    """Parts of at most `largest` rows, or of one person who has more."""
    cuts, start, rows = [], 0, 0
    for i, count in enumerate(counts.tolist()):
        if i > start and rows + count > largest:
            cuts.append((start, i))
            start, rows = i, 0
        rows += count
    return [*cuts, (start, len(counts))] if len(counts) else []


def _cuts(records: int, largest: int | None, slots: Tensor | None) -> list[tuple[int, int]]:
    """Parts of at most `largest` records; a micro-batch is never cut."""
    if largest is None or records <= largest:
        return [(0, records)]
    if slots is None:
        return [(i, min(i + largest, records)) for i in range(0, records, largest)]
    ends = [i + 1 for i in range(records - 1) if slots[i] != slots[i + 1]] + [records]
    cuts, start = [], 0
    for end, following in zip(ends, [*ends[1:], None], strict=True):
        if following is None or following - start > largest:
            cuts.append((start, end))
            start = end
    return cuts
