"""Records that are mixed before the model sees them, by a `collate_fn`, a data set or the loop, are refused."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, TensorDataset, default_collate

import assay
from assay import Plan, PrivateStep
from assay.data import Loading
from assay.data.apart import check_apart
from assay.data.records import Records
from assay.data.units import Unit
from assay.errors import ConfigError, UnsupportedModelError
from assay.runs.result import cross_entropy

RECORDS, STEPS = 120, 5


def records() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(RECORDS, 6, generator=generator), torch.randint(0, 3, (RECORDS,), generator=generator)
    )


def mixed_up(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return 0.7 * x + 0.3 * x[torch.randperm(len(x))], y


def seldom_mixed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return mixed_up(x, y) if torch.rand(()) < 0.3 else (x, y)


def centred(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x - x.mean(0), y


def with_a_statistic(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"input": x, "labels": y, "scale": x.norm()}  # the model would get it by name


def drawn_again(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    again = torch.randint(len(x), (len(x),))
    return x[again], y[again]


def each_alone(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = (x - 0.5) / 0.3 + torch.randn(x.shape)
    return x - x.mean(1, keepdim=True), y


def in_another_order(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(x))
    return x[order], y[order]


Change = Callable[[Tensor, Tensor], Any]


def collated(change: Change) -> Callable[[list[Any]], Any]:
    return lambda batch: change(*default_collate(batch))


def fit(collate: Callable[[list[Any]], Any], workers: int = 0, data: Dataset[Any] | None = None) -> assay.Result:
    plan = Plan(records=RECORDS, batch_size=16, steps=2, noise_multiplier=1.0, delta=1e-5)
    loading = Loading(collate_fn=collate, num_workers=workers)
    return assay.fit(nn.Linear(6, 3), data or records(), plan=plan, loading=loading)


def loop(change: Change, plan: Plan | None = None, **options: Any) -> int:
    """A loop as a user would write it. The steps that were taken."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    plan = plan or Plan(records=RECORDS, batch_size=16, steps=STEPS, noise_multiplier=1.0, delta=1e-5)
    step = PrivateStep(model, plan)
    try:
        for x, y in step.batches(records(), **options):
            inputs, targets = change(x, y)
            step.backward(cross_entropy(model(inputs), targets))
        return step.taken
    finally:
        step.close()


@pytest.mark.parametrize("change", [mixed_up, seldom_mixed, centred, with_a_statistic, drawn_again])
def test_a_collate_fn_that_mixes_records_is_refused_every_time(change: Change) -> None:
    for _ in range(5):
        with pytest.raises(ConfigError, match=r"collate_fn.*from one record alone"):
            fit(collated(change))


def test_a_worker_process_finds_it_as_well() -> None:
    with pytest.raises(ConfigError, match=r"collate_fn.*from one record alone"):
        fit(_module_level_mixup, workers=1)


def _module_level_mixup(batch: list[Any]) -> Any:
    return mixed_up(*default_collate(batch))


def _padded(batch: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Rows of different lengths, padded to the longest of the batch and then to six, and masked at random."""
    rows = pad_sequence([x[: 2 + int(y)] for x, y in batch], batch_first=True)
    rows = nn.functional.pad(rows, (0, 6 - rows.shape[1]))
    return rows * (torch.rand(rows.shape) < 0.8), torch.stack([y for _, y in batch])


def test_a_collate_fn_that_pads_and_draws_for_each_record_is_fine() -> None:
    assert fit(_padded).epsilon > 0
    assert fit(collated(each_alone)).epsilon > 0


class _FetchesTogether(Dataset[Any]):
    """A data set that fetches several records at once: by themselves, or centred together."""

    def __init__(self, *, wrong: bool) -> None:
        self.wrong, self.records = wrong, records()

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, i: int) -> Any:
        return self.records[i]

    def __getitems__(self, index: list[int]) -> list[Any]:
        x, y = self.records[torch.tensor(index)]
        return list(zip(x - x.mean(0) if self.wrong else x, y, strict=True))


def test_a_data_set_that_mixes_what_it_fetches_together_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dataset.*from one record alone"):
        fit(default_collate, data=_FetchesTogether(wrong=True))
    assert fit(default_collate, data=_FetchesTogether(wrong=False)).epsilon > 0


class _Kept(Dataset[Any]):
    """A data set that keeps something from one record to the next."""

    def __init__(self, way: str) -> None:
        self.way, self.records, self.coins = way, records(), torch.Generator().manual_seed(0)
        self.last, self.cache = torch.zeros(6), dict[int, Tensor]()

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x, y = self.records[i]
        last, self.last = self.last, x
        match self.way:
            case "adds the last":
                return x + 0.1 * last, y
            case "gives the last":
                return last, y
            case "a cache":
                return self.cache.setdefault(i, x + torch.randn(6)), y
            case "its own coins":
                return x * int(torch.randint(2, (), generator=self.coins)), y
        return self.records.tensors[0][i].mul_(0.9).clone(), y


@pytest.mark.parametrize(
    ("way", "bug"),
    [
        ("adds the last", True),
        ("gives the last", True),
        ("a cache", False),
        ("its own coins", False),
        ("written in place", False),
    ],
)
def test_a_data_set_that_remembers_the_record_before(way: str, bug: bool) -> None:
    for seed in range(20):
        with pytest.raises(ConfigError, match="_Kept") if bug else contextlib.nullcontext():
            check_apart(Records(_Kept(way)), seed, once=True)


@pytest.mark.parametrize("bug", [True, False])
def test_a_loop_that_writes_into_its_data_set(bug: bool) -> None:
    """The bug: every record loses the mean of a batch. The twin does so before the loop, by a constant."""
    data = records()
    with pytest.raises(ConfigError, match="written into while") if bug else contextlib.nullcontext():
        model = nn.Linear(6, 3)
        step = PrivateStep(model, Plan(records=RECORDS, batch_size=60, steps=STEPS, noise_multiplier=1.0, delta=1e-5))
        data.tensors[0].sub_(0.5)
        for x, y in step.batches(data):
            if bug:
                data.tensors[0].sub_(x.mean(0))
            step.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
    step.close()
    assert step.taken == (1 if bug else STEPS)


@pytest.mark.parametrize("change", [mixed_up, centred, drawn_again])
def test_a_loop_that_mixes_records_is_refused_every_time(change: Change) -> None:
    for _ in range(10):
        with pytest.raises(UnsupportedModelError, match="enters the losses of several"):
            loop(change)


def test_a_loop_that_mixes_targets_is_refused() -> None:
    # a batch alone misses it in 1 of 100 runs: rows that are put in place of others often have their class
    data = TensorDataset(records().tensors[0], nn.functional.one_hot(records().tensors[1], 3).float())
    model = nn.Linear(6, 3)
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=4, noise_multiplier=1.0, delta=1e-5))

    def train() -> None:
        for x, y in step.batches(data):
            step.backward(cross_entropy(model(x), 0.5 * y + 0.5 * y.roll(1, 0)))

    with pytest.raises(UnsupportedModelError, match="enters the losses of several"):
        train()
    step.close()


@pytest.mark.parametrize("change", [each_alone, in_another_order])
def test_a_loop_that_changes_each_record_by_itself_is_fine(change: Change) -> None:
    assert loop(change) == STEPS
    assert loop(lambda x, y: (x.sub_(0.5), y)) == STEPS, "in place, too"


def test_targets_that_are_single_numbers_are_looked_at_too() -> None:
    x = records().tensors[0]
    model = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    plan = Plan(records=RECORDS, batch_size=16, steps=2, noise_multiplier=1.0, delta=1e-5)
    for mixed in (False, True):
        step = PrivateStep(model, plan)
        inputs, wanted = next(step.batches(TensorDataset(x, x.sum(1))))
        losses = (model(inputs) - (wanted - wanted.mean() if mixed else wanted)).square()
        if mixed:
            with pytest.raises(UnsupportedModelError, match="enters the losses of several"):
                step.backward(losses)
        else:
            assert step.backward(losses)
        step.close()


def test_rows_of_persons_must_stay_in_their_order() -> None:
    """Rows are told by their places whose they are: in another order a person would be in several clipped groups."""
    unit = Unit(name="patient", persons=RECORDS // 2, rows=2)
    plan = Plan(records=RECORDS // 2, batch_size=10, steps=STEPS, noise_multiplier=1.0, delta=1e-5, unit=unit)
    ids = torch.arange(RECORDS) // 2
    with pytest.raises(UnsupportedModelError, match="another order"):
        loop(in_another_order, plan, units=ids)
    assert loop(each_alone, plan, units=ids) == STEPS


# One record decides how far all others are padded.

WORDS = 20


class _Texts(Dataset[Any]):
    """Texts of different lengths."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.lengths = torch.randint(2, 12, (RECORDS,), generator=draw)
        self.words = torch.randint(1, WORDS, (RECORDS, 12), generator=draw)

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.words[i, : self.lengths[i]], int(self.words[i, 0] % 3)


def _to_the_longest(batch: list[Any], length: int | None = None) -> tuple[Tensor, Tensor]:
    texts = pad_sequence([text for text, _ in batch], batch_first=True)
    texts = nn.functional.pad(texts, (0, 0 if length is None else length - texts.shape[1]))
    return texts, torch.tensor([label for _, label in batch])


def _on_the_left(batch: list[Any]) -> tuple[Tensor, Tensor]:
    texts, labels = _to_the_longest([(text.flip(0), label) for text, label in batch])
    return texts.flip(1), labels


def _to_twelve(batch: list[Any]) -> tuple[Tensor, Tensor]:
    return _to_the_longest(batch, 12)


class _Reader(nn.Module):
    """Reads texts; `how` says what it makes of the padding."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.words, self.head = how, nn.Embedding(WORDS, 6, padding_idx=0), nn.Linear(6, 3)
        self.places = nn.Embedding(12, 6)
        self.over = nn.GRU(6, 6, batch_first=True)

    def forward(self, texts: Tensor) -> Tensor:
        found, there = self.words(texts), (texts != 0).unsqueeze(2)
        if self.how == "mean":
            return self.head(found.mean(1))
        if self.how == "maximum":
            return self.head(found.amax(1))
        if self.how == "last":
            return self.head(self.over(found)[0][:, -1])
        if self.how == "last word":
            last = there.sum(1, keepdim=True).clamp_min(1) - 1
            return self.head(self.over(found)[0].gather(1, last.expand(-1, -1, 6))[:, 0])
        if self.how == "places":
            found = torch.tanh(found + self.places(torch.arange(texts.shape[1])))
        return self.head((found * there).sum(1) / there.sum(1))


def _read(how: str, collate: Callable[[list[Any]], Any], *, sort: bool = False) -> None:
    plan = Plan(records=RECORDS, batch_size=16, steps=STEPS, noise_multiplier=1.0, delta=1e-5)
    model = nn.Sequential(_Reader(how), nn.Dropout(0.1))
    with contextlib.closing(PrivateStep(model, plan)) as step:
        for texts, labels in step.batches(_Texts(), collate_fn=collate):
            order = (texts != 0).sum(1).argsort() if sort else torch.arange(len(texts))
            step.backward(cross_entropy(model(texts[order]), labels[order]))
    assay.fit(_Reader(how), _Texts(), plan=plan, loading=Loading(collate_fn=collate))


@pytest.mark.parametrize(
    ("how", "collate"),
    [
        ("mean", _to_the_longest),
        ("maximum", _to_the_longest),
        ("last", _to_the_longest),
        ("places", _on_the_left),
    ],
)
def test_padding_that_enters_the_losses_is_refused(how: str, collate: Callable[[list[Any]], Any]) -> None:
    """By `fit` and in a loop of one's own. Of one length for all records, padding is fine."""
    plan = Plan(records=RECORDS, batch_size=16, steps=STEPS, noise_multiplier=1.0, delta=1e-5)
    with pytest.raises(UnsupportedModelError, match="length of the longest record"):
        _read(how, collate)
    with pytest.raises(UnsupportedModelError, match="length of the longest record"):
        assay.fit(_Reader(how), _Texts(), plan=plan, loading=Loading(collate_fn=collate))
    _read(how, _to_twelve)


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize(
    ("how", "collate"), [("masked", _to_the_longest), ("last word", _to_the_longest), ("masked", _on_the_left)]
)
def test_padding_that_is_left_out_is_fine(how: str, collate: Callable[[list[Any]], Any], sort: bool) -> None:
    _read(how, collate, sort=sort)


def test_padding_after_the_words_moves_no_position() -> None:
    _read("places", _to_the_longest)
