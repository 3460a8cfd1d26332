"""A sized loader over the batches of a `PrivateStep`: one epoch per iteration, as a DataLoader has it.

    loader = step.loader(train, num_workers=2)
    for epoch in range(10):
        for x, y in tqdm(loader):
            step.backward(F.cross_entropy(model(x), y, reduction="none"))
            optimizer.step()

ε does not depend on how it is used. It yields what `PrivateStep.batches` yields, and batches are counted where they are
paid for, in `backward`: whoever fetches the next batch before `backward` had the last one gets an error, and a batch
without its `backward` is never released. Worker processes fetch ahead, but which records they fetch is drawn here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from assay._util.figures import at_most
from assay.errors import BudgetSpentError

if TYPE_CHECKING:
    from assay.data.records import Loading
    from assay.training.step import PrivateStep


class EpochLoader:
    """Iterates over one epoch at a time, from where the step is to the end of that epoch.

    After a `break`, and when a run resumes in the middle of an epoch, the next iteration takes the rest of the epoch.
    So as many iterations as the plan has epochs take all its steps.

    Attributes:
        dataset: The records.
        batch_size: The expected size of a batch.
        collate_fn: What puts records together.
        num_workers: The processes that fetch records.
    """

    def __init__(
        self,
        step: PrivateStep,
        dataset: Dataset[Any],
        loading: Loading,
        draw: Callable[[int], Iterator[Any]],
        *,
        in_parts: bool,
    ) -> None:
        """Keep what an iteration needs.

        Args:
            step: The step that the batches are for.
            dataset: The records.
            loading: How they are fetched.
            draw: Gives the next batches, at most this many.
            in_parts: Whether a batch comes in parts.
        """
        self._step, self._draw, self._in_parts = step, draw, in_parts
        self.dataset, self.batch_size = dataset, step.plan.batch_size
        self.collate_fn, self.num_workers = loading.collate, loading.num_workers
        self._under_way: int | None = None

    def __len__(self) -> int:
        """The number of batches in the iteration under way, or else in the next one.

        Raises:
            TypeError: Batches come in parts (`max_physical_batch`). How many parts there will be depends on how many
                records are drawn, which must not be known ahead.
        """
        if self._in_parts:
            raise TypeError(
                "with max_physical_batch the number of parts in an epoch depends on how many records are drawn, so this"
                " loader has no length; give your progress bar or trainer the number of steps, plan.steps"
            )
        return self._left() if self._under_way is None else self._under_way

    def __iter__(self) -> Iterator[Any]:
        """The batches to the end of this epoch.

        Raises:
            BudgetSpentError: The plan or the budget allows no further step.
        """
        step = self._step
        count = self._left()
        if count == 0:
            raise BudgetSpentError(
                f"the budget is spent after {step.taken} steps: ε = {at_most(step.epsilon())} "
                f"(δ = {step.plan.delta:g}); there is no further epoch"
            )
        return self._epoch(count)

    def _epoch(self, count: int) -> Iterator[Any]:
        self._under_way = count
        try:
            yield from self._draw(count)
        finally:
            self._under_way = None

    def _left(self) -> int:
        """How many steps there are to the end of the epoch, the plan or the budget."""
        step, rate = self._step, self._step.plan.sampler.rate
        epoch = math.floor(step.taken * rate)
        while (end := round(epoch / rate)) <= step.taken:  # as many epochs have this many steps in a plan, too
            epoch += 1
        return max(0, min(end, step.limit) - step.taken)
