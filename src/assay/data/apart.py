"""Whether records stay apart on their way into a batch: what a row is made of must not depend on the other records.

Clipping bounds what a record does through its own row. A `collate_fn` that mixes records (mixup, CutMix, centring by
the batch's mean) lets a record into other rows as well, and ε would be too small. The model cannot show that: it sees
rows that are mixed already. So the function itself is called on some records, and again with others in place of a
random half of them, with the same random numbers. The rows of the half that stayed must be what they were, up to
padding. This is repeated with other random numbers, because a function may mix now and then.

`__getitems__` of a data set, which fetches several records at once, is compared with fetching them one by one. And a
data set may remember: some records are fetched after one other record and after another one. What one record gives must
not tell which it was. Where it changes by itself (random numbers of the data set's own), nothing can be compared.

What cannot be shown: mixing that begins later in a run, faint dependences (relative 1e-5), and objects that are neither
tensors, arrays, numbers, texts, lists, dicts nor have attributes of these kinds.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.utils import _pytree as pytree
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate

from assay.data.records import Collate, Records, seeded, tensors_of
from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.data.bundle import DataBundle

_RECORDS = 32  # half of them in a batch, the others in their place
_TRIALS, _SECONDS = 64, 0.3  # mixing in one call of ten is missed once in a thousand times
_LEAST = 8  # trials, however long they take
_LOOKS, _COINS = 12, 24
_DEPTH = 8
_ALONE = 8  # records that are each put in all places of a batch, of which the shortest is compared


def check_apart(records: Records, seed: int, *, once: bool) -> None:
    """Refuse a `collate_fn` or a data set by which a record enters the row of another, or is drawn as several.

    Rows of tensors (`Records.plain`) need no check. Where worker processes fetch the records, one of them makes the
    check: a data set may open its files in the process that asks first, and workers must not inherit them.

    Args:
        records: The records.
        seed: Chooses the records that are looked at, and what is drawn.
        once: Whether no record may be there twice; where persons are protected, all of a person's rows count as one.

    Raises:
        ConfigError: Records are mixed, or one is there twice.
    """
    dataset, loading = records.dataset, records.loading
    if once:
        _check_once_each(dataset)
    if len(dataset) < 2:  # type: ignore[arg-type]
        return
    comparison = _Comparison(dataset, loading.collate, seed)
    if loading.num_workers:
        found = next(iter(DataLoader(comparison, batch_size=None, num_workers=1, generator=torch.Generator())))
    else:
        found = comparison[0]
    if found:
        field, path = found
        name = getattr(loading.collate, "__name__", type(loading.collate).__name__)
        raise ConfigError(
            field,
            name if field == "collate_fn" else type(dataset).__name__,
            f"one that makes {path} from one record alone. Here it changes with other records, of the batch or fetched "
            "before (mixup, CutMix, centring, a statistic of the batch, a memory), so one record would enter the "
            "gradients of several, and ε would be too small. Use constants, or change each record by itself in the "
            "data set",
        )


def _check_once_each(dataset: Dataset[Any]) -> None:
    """Refuse a `Subset` or `ConcatDataset` of torch that holds a record several times, as oversampling does.

    Such a record is drawn as often as several, and ε would be that of one.
    """
    if not isinstance(dataset, Subset | ConcatDataset):
        return
    sources: dict[int, int] = {}
    origin = _origin(dataset, sources)
    found, times = np.unique(origin, axis=0, return_counts=True)
    if times.size and times.max() > 1:
        again = found[times.argmax()]
        raise ConfigError(
            "dataset",
            type(dataset).__name__,
            f"every record once. Here record {again[1]} is there {times.max()} times, and would count as one. Take out "
            "the copies, weigh its loss instead, or give `units`, which make all its copies one person",
        )


def check_tested(train: Records, test: Records, field: str = "test") -> None:
    """Refuse test records that are training records: what is measured on them is released without noise.

    One record in a hundred may be in both, or four for each copy inside one of them: some data sets hold copies.

    Args:
        train: The training records; those that are not tensors are compared by 512 of them.
        test: The test records.
        field: What the caller calls them.

    Raises:
        ConfigError: More of them are in both.
    """
    ours, theirs = train.marks(512), test.marks(512)
    known = set(ours)
    common = sum(mark in known for mark in theirs)
    copies = len(ours) - len(known) + len(theirs) - len(set(theirs))
    if ours and common > max(0.01 * len(theirs) * len(ours) / len(train), 4 * copies):
        raise ConfigError(
            field,
            f"{common} of {len(theirs)} records that are training records",
            "other records: accuracy and loss on them are exact, and no ε covers that. The training loss is released "
            "with noise, as `train_loss` in the history",
        )


def check_parts(bundle: DataBundle) -> DataBundle:
    """Refuse a data set that came with a test part of its own, if that part holds training records.

    Args:
        bundle: The data set; what a hash of each record has split needs no check.

    Returns:
        The data set.

    Raises:
        ConfigError: As `check_tested`.
    """
    check_tested(Records(bundle.train), Records(bundle.test))
    return bundle


def _origin(dataset: Any, sources: dict[int, int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """For each record the data set that it comes from, by number, and its place there."""
    if isinstance(dataset, Subset):
        return _origin(dataset.dataset, sources)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_origin(one, sources) for one in dataset.datasets])
    size, first = len(dataset), 0
    key: Any = id(dataset)
    if (tensors := tensors_of(dataset)) is not None and tensors[0].dim() and tensors[0].stride(0):
        rows = tensors[0]  # several data sets may be made of one tensor, or of slices of it
        first, rest = divmod(int(rows.storage_offset()), rows.stride(0))
        key = rows.untyped_storage().data_ptr(), rows.stride(0), rest
    number = sources.setdefault(key, len(sources))
    return np.stack([np.full(size, number), first + np.arange(size)], 1)


class _Comparison(Dataset[Any]):
    """Its only item is what depends on several records: ("collate_fn" or "dataset", the place), or ()."""

    def __init__(self, dataset: Dataset[Any], collate: Collate, seed: int) -> None:
        self._dataset, self._collate, self._seed = dataset, collate, seed

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> tuple[str, str] | tuple[()]:
        coins = np.random.default_rng(self._seed)
        size = len(self._dataset)  # type: ignore[arg-type]
        index = [int(i) for i in coins.choice(size, min(size, _RECORDS), replace=False)]
        if (path := self._fetched_after(index[:_LOOKS], coins)) is not None:
            return "dataset", path
        if self._collate is default_collate and not hasattr(self._dataset, "__getitems__"):
            return ()
        records = [self._alone(i, self._seed) for i in index]
        if (path := self._fetched_together(index, records)) is not None:
            return "dataset", path
        if self._collate is not default_collate and (path := self._put_together(records, coins)) is not None:
            return "collate_fn", path
        return ()

    def _alone(self, i: int, seed: int) -> Any:
        together = getattr(self._dataset, "__getitems__", None)
        with seeded(seed):
            return self._dataset[i] if together is None else together([i])[0]

    def _fetched_after(self, index: list[int], coins: np.random.Generator) -> str | None:
        """A record that tells which one was fetched before it; one that changes by itself cannot be compared."""

        def after(before: int, one: int) -> Any:
            self._alone(before, self._seed)
            return self._alone(one, self._seed)

        for one, *two in zip(index[0::3], index[1::3], index[2::3], strict=False):
            first, second = _copied([after(before, one) for before in two])
            if _difference(first, second) is None or _difference(first, after(two[0], one)) is not None:
                continue
            # Both may have been chance. Records that do not look back repeat these coins less than once in 10^7 times.
            told = coins.integers(2, size=_COINS).tolist()
            if all(_difference((first, second)[coin], after(two[coin], one)) is None for coin in told):
                return "a record"
        return None

    def _fetched_together(self, index: list[int], records: list[Any]) -> str | None:
        """A record that is another one when it is fetched with others; random ones cannot be compared."""
        together = getattr(self._dataset, "__getitems__", None)
        if together is None or _difference(records[0], self._alone(index[0], self._seed + 1)) is not None:
            return None
        with seeded(self._seed):
            fetched = list(together(index))
        return next(("a record" for a, b in zip(records, fetched, strict=True) if _difference(a, b) is not None), None)

    def _put_together(self, records: list[Any], coins: np.random.Generator) -> str | None:
        size = max(2, len(records) // 2)
        own, others = records[:size], records[size:] or records[:1]
        began = time.monotonic()
        for trial in range(_TRIALS):
            if trial >= _LEAST and time.monotonic() - began > _SECONDS:
                break
            place = coins.permutation(size)
            kept, replaced = place[: size // 2].tolist(), place[size // 2 :].tolist()
            changed = list(own)
            for k, at in enumerate(replaced):
                # Every other time the same records change places: their padding stays what it is.
                changed[at] = others[k % len(others)] if trial % 2 == 0 else own[replaced[k - 1]]
            (before, _), (after, drew) = (self._collated(list(one), self._seed + trial) for one in (own, changed))
            for path, a, b in _rows(before, after, size, kept):
                if (difference := _difference(a, b)) is None or (drew and difference == "shape"):
                    continue  # a mask that is drawn for another shape is another mask
                return path
        return None

    def _collated(self, records: list[Any], seed: int) -> tuple[Any, bool]:
        """A batch, and whether random numbers were drawn. Some functions change the records that they get."""
        with seeded(seed):
            before = _drawn_so_far()
            batch = self._collate(_copied(records))
            return batch, _drawn_so_far() != before


class Padded(NamedTuple):
    """Some records, padded as a batch among longer ones and among themselves."""

    among_all: Any
    among_some: Any
    """The rows of the others are copies of the rows that stayed."""
    kept: list[int]
    """The rows that stayed."""


def padded_less(records: Records, index: Tensor, seed: int) -> list[Padded]:
    """A batch of these records, and the same with less padding: some records are there again in the others' places.

    Args:
        records: Where they come from; an index names one row.
        index: The records of the batch.
        seed: Chooses the records, and what is drawn.

    Returns:
        The comparison that keeps a half, if a half has less padding, and the one that keeps the shortest of a few
        records. Nothing where nothing is padded, or where rows differ by more than padding (masks that are drawn).
    """
    order = np.random.default_rng(seed).permutation(len(index)).tolist()
    if (half := len(order) // 2) == 0:
        return []
    before = _batch(records, index, list(range(len(order))), seed)
    halves, singles = (order[:half], order[half:]), [[one] for one in order[:_ALONE]]
    found = []
    for several in (halves, singles):
        shorter: list[tuple[float, Any, list[int]]] = []
        for kept in several:
            after = _batch(records, index, [i if i in kept else kept[i % len(kept)] for i in range(len(order))], seed)
            pairs = list(_rows(before, after, len(order), kept))
            if any(_difference(a, b) is not None for _, a, b in pairs):
                return []
            sizes = [(getattr(a, "shape", None), getattr(b, "shape", None)) for _, a, b in pairs]
            if any(a != b for a, b in sizes):
                shorter.append((sum(b.numel() for _, b in sizes if b is not None) / len(kept), after, kept))
        if shorter:
            _, after, kept = min(shorter, key=lambda one: one[0])
            found.append(Padded(records.placed(before), records.placed(after), kept))
    return found


def _batch(records: Records, index: Tensor, places: list[int], seed: int) -> Any:
    """The records at these places of `index`, put together."""
    dataset, together = records.dataset, getattr(records.dataset, "__getitems__", None)
    with seeded(seed):
        if together is not None:
            found = list(together(index[places].tolist()))
        else:  # in one order, for a data set may draw
            each = [dataset[i] for i in index.tolist()]
            found = [each[place] for place in places]
        return records.loading.collate(_copied(found))


def _copied(records: list[Any]) -> list[Any]:
    """Copies of records. Of a tensor that is a part of a larger one (a row of a `TensorDataset`) only the part."""
    alone = {
        id(leaf): leaf.clone()
        for leaf in pytree.tree_leaves(records)
        if type(leaf) is Tensor and not leaf.requires_grad and leaf.layout == torch.strided
    }
    return copy.deepcopy(records, alone)


def _drawn_so_far() -> tuple[Any, ...]:
    state: Any = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), state[1].tobytes(), state[2]


def _rows(a: Any, b: Any, size: int, kept: list[int], path: str = "", depth: int = 0) -> Iterator[tuple[str, Any, Any]]:
    """Pairs that must be alike: the rows of the records that stayed, and what has no rows."""
    a, b = _plain(a), _plain(b)
    here = path or "the batch"
    if isinstance(a, Mapping) and isinstance(b, Mapping) and depth < _DEPTH:
        for key in a:
            if key in b:
                yield from _rows(a[key], b[key], size, kept, f"{path}[{key!r}]", depth + 1)
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and depth < _DEPTH and not _one_each(a, size):
        for k, (one, other) in enumerate(zip(a, b, strict=False)):
            yield from _rows(one, other, size, kept, f"{path}[{k}]", depth + 1)
    elif _has_rows(a, size) and _has_rows(b, size):
        for row in kept:
            yield f"each row of {here}", a[row], b[row]
    else:
        yield here, a, b


def _plain(value: Any) -> Any:
    """Arrays as tensors, packed sequences as padded ones, objects as dicts of their attributes."""
    if isinstance(value, PackedSequence):
        return list(pad_packed_sequence(value, batch_first=True))
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor | Mapping | list | tuple | str | bytes | int | float | complex | type(None)):
        return value
    return dict(vars(value)) if hasattr(value, "__dict__") else value


def _has_rows(value: Any, size: int) -> bool:
    if isinstance(value, Tensor):
        return value.dim() > 0 and len(value) == size
    return isinstance(value, list | tuple) and len(value) == size


def _one_each(values: list[Any] | tuple[Any, ...], size: int) -> bool:
    """Whether a list has an item for each record, and is not a list of columns that have rows themselves."""
    return len(values) == size and not all(_has_rows(_plain(value), size) for value in values)


def _difference(a: Any, b: Any) -> str | None:
    """How two values differ: "value", or "shape" where the shapes do too; None where they are alike up to padding."""
    a, b = _plain(a), _plain(b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.dim() != b.dim() or a.dtype != b.dtype:
            return "value"
        if a.shape == b.shape:
            return None if _close(a, b) else "value"
        common = [min(m, n) for m, n in zip(a.shape, b.shape, strict=True)]
        first = tuple(slice(n) for n in common)
        last_a, last_b = (tuple(slice(m - n, m) for m, n in zip(t.shape, common, strict=True)) for t in (a, b))
        return None if _close(a[first], b[first]) or _close(a[last_a], b[last_b]) else "shape"
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return _first(_difference(a[key], b[key]) for key in a if key in b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return _first(_difference(one, other) for one, other in zip(a, b, strict=False))
    if isinstance(a, str | bytes | int | float | complex | type(None)):
        return None if a == b or (a != a and b != b) else "value"
    return None


def _first(differences: Iterator[str | None]) -> str | None:
    return next((found for found in differences if found is not None), None)


def _close(a: Tensor, b: Tensor) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    return torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-7, equal_nan=True) if a.numel() else True
