"""Tiny models and records of every kind that people fine-tune, built from configurations: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from assay import Plan

WORDS, CLASSES = 40, 3
Record = dict[str, Any]
PLAN = Plan(records=24, batch_size=8, steps=3, noise_multiplier=1.0, delta=1e-3)


def arguments(folder: Path, **settings: Any) -> Any:
    given = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "optim": "sgd"}
    given |= {"learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "logging_steps": 1}
    return transformers.TrainingArguments(
        output_dir=str(folder), **{**given, "per_device_train_batch_size": 64, **settings}
    )


def _drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def words(length: int, seed: int) -> Tensor:
    return torch.randint(2, WORDS, (length,), generator=_drawn(seed))


def bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=CLASSES,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def roberta() -> Any:
    config = transformers.RobertaConfig(
        vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=CLASSES,
        pad_token_id=0,
    )  # fmt: skip
    return transformers.RobertaForTokenClassification(config)


def gpt2(kind: Any = transformers.GPT2LMHeadModel) -> Any:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=8, n_layer=1, n_head=2, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=1, num_labels=CLASSES,
    )  # fmt: skip
    return kind(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=16, max_position_embeddings=16, tie_word_embeddings=True, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    for name, parameter in model.named_parameters():  # all records share the indices of this table
        parameter.requires_grad_("relative_attention_bias" not in name)
    return model


def vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
        num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def sentence(i: int) -> Record:
    """A sentence with a class."""
    return {"input_ids": words(3 + i % 4, i), "labels": i % CLASSES}


def tagged(i: int) -> Record:
    """A sentence with a class for each word; every third word has none."""
    ids = words(3 + i % 4, i)
    return {"input_ids": ids, "labels": torch.where(torch.arange(len(ids)) % 3 == 2, -100, ids % CLASSES)}


def text(i: int) -> Record:
    """A text to continue; its first words are a prompt that is not learnt."""
    ids = words(4 + i % 4, i)
    return {"input_ids": ids, "labels": torch.where(torch.arange(len(ids)) < 1 + i % 2, -100, ids)}


def packed(i: int) -> Record:
    """Two texts in one row: positions begin again, and no word is predicted across the seam."""
    first, second = words(3 + i % 2, i), words(5 - i % 2, 100 + i)
    labels = torch.cat([first, second])
    labels[[0, len(first)]] = -100
    places = torch.cat([torch.arange(len(first)), torch.arange(len(second))])
    return {"input_ids": torch.cat([first, second]), "labels": labels, "position_ids": places}


def translated(i: int) -> Record:
    return {"input_ids": words(3 + i % 4, i), "labels": words(2 + i % 3, 50 + i)}


def image(i: int) -> Record:
    return {"pixel_values": torch.randn(3, 8, 8, generator=_drawn(i)), "labels": i % CLASSES}


def padded(records: list[Record]) -> Record:
    """A collator: pads words with 0, labels with -100, and masks what it padded."""
    batch: Record = {}
    for name in records[0]:
        values = [torch.as_tensor(record[name]) for record in records]
        if name == "pixel_values" or values[0].dim() == 0:
            batch[name] = torch.stack(values)
            continue
        with_ = -100 if name == "labels" else 0
        batch[name] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=with_)
    if "input_ids" in batch and "position_ids" not in batch:
        batch["attention_mask"] = (batch["input_ids"] != 0).long()
    return batch


KINDS: dict[str, tuple[Callable[[], Any], Callable[[int], Record]]] = {
    "BERT, classes": (bert, sentence),
    "RoBERTa, classes of words": (roberta, tagged),
    "GPT-2, continued texts": (gpt2, text),
    "Llama, packed texts": (llama, packed),
    "T5, translations": (t5, translated),
    "ViT, images": (vit, image),
}


def records(of: Callable[[int], Record], count: int = 24, first: int = 0) -> list[Record]:
    return [of(i) for i in range(first, first + count)]
