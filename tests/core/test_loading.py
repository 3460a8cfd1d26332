"""Records are fetched as a DataLoader user expects: collators, workers, dicts, and empty batches in all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import assay
from assay.data import Loading
from assay.data.apart import padded_less
from assay.data.records import Records
from assay.data.units import Unit
from assay.errors import ConfigError
from assay.randomness.streams import Seeded


class Crops(Dataset[tuple[Tensor, int]]):
    """Records that are drawn at random each time they are fetched, as a random crop is."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((3,), index / 40) + torch.rand(3), index % 2


class Sentences(Dataset[dict[str, Any]]):
    """Records of different lengths, as a tokenizer makes them."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> dict[str, Any]:
        length = 1 + index % 5
        return {"input_ids": [1 + index % 7] * length, "attention_mask": [1] * length, "labels": index % 2}


def padded(records: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A collator that pads to the longest record of the batch."""
    longest = max(len(one["input_ids"]) for one in records)
    batch = {
        name: torch.tensor([one[name] + [0] * (longest - len(one[name])) for one in records])
        for name in ("input_ids", "attention_mask")
    }
    return {**batch, "labels": torch.tensor([one["labels"] for one in records])}


class Bag(nn.Module):
    """A model that takes its inputs by name: the mean of the words that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(8, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        there = attention_mask[..., None].float()
        return self.head((self.words(input_ids) * there).sum(1) / there.sum(1))


def plan(records: int, batch_size: float = 8, steps: int = 6) -> assay.Plan:
    return assay.Plan(records=records, batch_size=batch_size, steps=steps, noise_multiplier=1.0, delta=1e-5)


def trained(dataset: Dataset[Any], model: nn.Module, loading: Loading, batch_size: float = 8) -> list[Tensor]:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    half = len(dataset) // 2  # type: ignore[arg-type]
    result = assay.fit(
        model,
        Subset(dataset, range(half)),
        plan=plan(half, batch_size),
        test=Subset(dataset, range(half, 2 * half)),
        training=assay.Training(seed=3, max_physical_batch=5),
        loading=loading,
    )
    assert result.record["result"]["test_loss"] is not None
    return [parameter.detach().clone() for parameter in result.model.parameters()]


def test_a_seeded_run_does_not_depend_on_the_number_of_workers() -> None:
    alone, together = (trained(Crops(), nn.Linear(3, 2), Loading(num_workers=workers)) for workers in (0, 2))
    assert all(map(torch.equal, alone, together))


def test_dict_batches_with_dynamic_padding_are_trained_and_measured() -> None:
    alone = trained(Sentences(), Bag(), Loading(collate_fn=padded))
    ahead = trained(Sentences(), Bag(), Loading(collate_fn=padded, num_workers=1, prefetch_factor=1))
    assert all(map(torch.equal, alone, ahead))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Crops(), Sentences()], ids=["tuples", "dicts"])
def test_empty_poisson_batches_are_steps_like_any_other(workers: int, dataset: Dataset[Any]) -> None:
    dicts = isinstance(dataset, Sentences)
    model = Bag() if dicts else nn.Linear(3, 2)
    rare = plan(len(dataset), batch_size=0.5, steps=12)  # type: ignore[arg-type]
    step = assay.PrivateStep(model, rare, randomness=Seeded(5))
    sizes = []
    for batch in step.batches(dataset, collate_fn=padded if dicts else None, num_workers=workers):
        x, y = ({k: v for k, v in batch.items() if k != "labels"}, batch["labels"]) if dicts else batch
        losses = F.cross_entropy(model(**x) if dicts else model(x), y, reduction="none")
        assert bool(losses.isfinite().all())
        assert step.backward(losses)
        assert all(
            bool(p.grad.isfinite().all()) and bool(p.grad.any()) for p in model.parameters() if p.grad is not None
        )
        sizes.append(len(y))
    step.close()
    assert len(sizes) == 12
    assert step.taken == 12


def test_the_same_records_are_drawn_with_and_without_workers() -> None:
    records = TensorDataset(torch.arange(50.0)[:, None], torch.arange(50))

    def seen(**how: Any) -> list[list[int]]:
        model = nn.Linear(1, 50)
        step = assay.PrivateStep(model, plan(50), randomness=Seeded(7))
        found = []
        for x, y in step.batches(records, **how):
            found.append(y.tolist())
            step.backward(F.cross_entropy(model(x), y, reduction="none"))
        step.close()
        return found

    together = torch.utils.data.default_collate
    assert seen() == seen(collate_fn=together) == seen(collate_fn=together, num_workers=2)


def test_a_collator_of_hugging_face_works_unchanged() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="[PAD]"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    collator = transformers.DataCollatorWithPadding(tokenizer)
    theirs, ours = (trained(Sentences(), Bag(), Loading(collate_fn=one)) for one in (collator, padded))
    assert all(map(torch.equal, theirs, ours))


@pytest.mark.parametrize(
    "wrong", [{"num_workers": -1}, {"num_workers": 1.5}, {"prefetch_factor": 0}, {"collate_fn": "default"}]
)
def test_what_a_loader_cannot_be_told_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Loading(**wrong)


def test_batches_that_are_no_pairs_are_refused_before_training() -> None:
    with pytest.raises(ConfigError, match="labels"):
        assay.fit(Bag(), Sentences(), plan=plan(30), loading=Loading(collate_fn=lambda records: {"input_ids": 1}))


def test_rows_of_persons_are_fetched_by_workers_as_without() -> None:
    whose = torch.arange(40) // 4
    unit = Unit(name="patient", persons=10)

    def run(workers: int) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        made = assay.Plan(records=10, batch_size=4, steps=5, noise_multiplier=1.0, delta=1e-3, unit=unit)
        training = assay.Training(seed=3, max_physical_batch=8)
        assay.fit(model, Crops(), plan=made, units=whose, training=training, loading=Loading(num_workers=workers))
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert all(map(torch.equal, run(0), run(2)))


def test_a_part_of_a_large_data_set_is_compared_by_its_own_records() -> None:
    """A record of a `Subset` is a view of the whole tensor, which a deep copy of the record would copy each time."""
    whole, seen = TensorDataset(torch.zeros(5000, 3), torch.zeros(5000, dtype=torch.int64)), []

    def collate(records: list[Any]) -> Any:
        seen.append(max(x.untyped_storage().nbytes() for x, _ in records))
        return torch.utils.data.default_collate(records)

    records = Records(Subset(whole, range(100)), loading=Loading(collate_fn=collate))
    assert padded_less(records, torch.arange(8), seed=0) == []
    assert seen
    assert max(seen) == 3 * 4
