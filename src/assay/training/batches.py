"""The batches that a loop gets: this rank's share of the records that the sampler drew, in parts that fit memory.

Every record that was drawn is in exactly one part, and a micro-batch is never cut. If the rank has no record in a
batch, it gets one record of zeros that does not count. With exact noise all parts have the same size and are filled up
with such records: a record's gradient must not depend, by a single bit, on how many others there are. The records,
micro-batches and views of a step follow from its number and the randomness alone, however it is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from assay.data.records import Records
from assay.distributed.world import World
from assay.methods.plan import Plan
from assay.randomness.streams import Randomness, Stream
from assay.training.augment import Augmentation


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Some records of a batch, as places in the data set; without any, one record of zeros fills an empty pass."""

    index: Tensor | None
    slots: Tensor | None
    """The micro-batch of each record, if there are any."""
    fill: int = 0
    """How many records of zeros follow, which do not count."""

    @property
    def padding(self) -> bool:
        """Whether it holds records of zeros only, which do not count."""
        return self.index is None

    def __len__(self) -> int:
        return self.fill + (0 if self.index is None else len(self.index))


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
        fixed: bool = False,
    ) -> None:
        self._records, self._index, self._slots, self._augment, self._stream = records, index, slots, augment, stream
        self._size = largest if fixed else None
        self._cuts = _cuts(len(index), largest, slots) if len(index) else []

    def __len__(self) -> int:
        """How many passes through the model it needs."""
        return max(1, len(self._cuts))

    def parts(self, passes: int) -> Iterator[BatchPart]:
        """Its parts, and padding up to this many passes."""
        slots = self._slots
        for start, stop in self._cuts:
            fill = 0 if self._size is None else self._size - (stop - start)
            yield BatchPart(self._index[start:stop], None if slots is None else slots[start:stop], fill)
        for _ in range(len(self._cuts), passes):
            yield BatchPart(None, None if slots is None else slots.new_zeros(1), self._size or 1)

    def gather(self, part: BatchPart) -> Any:
        """The records of a part, each as its views. Call it for the parts in order: they draw from one stream."""
        if part.index is None:
            batch = self._records.zeros(part.fill)
        elif part.fill:
            batch = self._records.filled(part.index, part.fill)
        else:
            batch = self._records.gather(part.index)
        return batch if self._augment is None or self._stream is None else self._augment(batch, self._stream)


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
        self._records, self._plan, self._randomness, self._world = records, plan, randomness, world
        self._largest, self._augment = largest, augment
        self._share = world.share(len(records), plan.records)

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
        return Batch(self._records, index, slots, self._largest, self._augment, stream, self._plan.exact)

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
        return self._share.local(index)


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
