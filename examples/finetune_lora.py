"""Fine-tune a language model privately with LoRA adapters, end to end: `python examples/finetune_lora.py [DIRECTORY]`

A small BERT is trained on public sentences about films (generated here, without privacy), then frozen. Adapters and a
copy of its head learn from private sentences about a clinic, and nothing else moves. Prints the accuracy before and
after, and the privacy statement.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import peft
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import assay

SUBJECTS = {
    "film": ["the plot", "the cast", "the music", "that scene", "the ending"],
    "clinic": ["the nurse", "the doctor", "my bed", "the food", "that ward"],
}
GOOD = {"film": ["great", "moving", "kind", "fine"], "clinic": ["kind", "clean", "great", "fine"]}
BAD = {"film": ["dull", "awful", "poor", "rude"], "clinic": ["rude", "dirty", "awful", "poor"]}
FILLERS = ["was", "seemed", "felt", "really", "rather", "to me", "again", "today", "and so on"]
LENGTH = 12


def sentences(topic: str, count: int, seed: int) -> tuple[list[str], list[int]]:
    """Made-up comments, and whether each is a good one."""
    draw = random.Random(seed)
    texts, labels = [], []
    for _ in range(count):
        label = draw.randrange(2)
        word = draw.choice((GOOD if label else BAD)[topic])
        parts = [draw.choice(SUBJECTS[topic]), *draw.sample(FILLERS, 2), word, draw.choice(FILLERS)]
        texts.append(" ".join(parts))
        labels.append(label)
    return texts, labels


# The vocabulary is a constant of the program. One collected from private records would be a release of its own.
VOCABULARY = {
    word: i
    for i, word in enumerate(
        dict.fromkeys(
            ["[pad]", *" ".join([*SUBJECTS["film"], *SUBJECTS["clinic"], *FILLERS]).split()]
            + [word for side in (GOOD, BAD) for words in side.values() for word in words]
        )
    )
}


def encoded(topic: str, count: int, seed: int) -> TensorDataset:
    """Comments as word numbers of one length, with their labels."""
    texts, labels = sentences(topic, count, seed)
    rows = [[VOCABULARY[word] for word in text.split()][:LENGTH] for text in texts]
    return TensorDataset(torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows]), torch.tensor(labels))


class Classifier(nn.Module):
    """A Hugging Face classifier that takes word numbers and gives logits, as `assay.fit` calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Tensor:
        """Logits; padding is masked, record by record."""
        logits: Tensor = self.model(input_ids=words, attention_mask=(words != 0).long()).logits
        return logits


def pretrained() -> nn.Module:
    """A small BERT that knows public sentences. In earnest: `from_pretrained`."""
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    words, labels = encoded("film", 640, seed=1).tensors
    network = Classifier(model).train()
    for start in range(0, 640, 16):
        optimizer.zero_grad()
        F.cross_entropy(network(words[start : start + 16]), labels[start : start + 16]).backward()
        optimizer.step()
    return model


def accuracy(model: nn.Module, records: TensorDataset) -> float:
    """The part of the records that the model tells right."""
    words, labels = records.tensors
    with torch.no_grad():
        return float((model.eval()(words).argmax(1) == labels).double().mean())


def finetuned(out: Path | None = None, seed: int | None = None) -> tuple[float, assay.Result]:
    """Adapters of rank 4 on queries and values, and the head, trained on 1,000 private comments at ε = 8.

    Also the accuracy before, which is that of the public model: no record that is trained on had a part in it. A `seed`
    fixes noise and sampling too: reproducible, and therefore not private.
    """
    torch.manual_seed(0)  # the start of the model, which is public; noise and sampling come from the system
    adapters = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"], task_type="SEQ_CLS")
    model = Classifier(peft.get_peft_model(pretrained(), adapters))
    plan = assay.Plan.calibrated(epsilon=8, delta=1e-4, records=1000, batch_size=100, epochs=4)
    test = encoded("clinic", 300, seed=3)
    before = accuracy(model, test)  # adapters begin as nothing: this is the public model
    result = assay.fit(
        model,
        encoded("clinic", 1000, seed=2),
        plan=plan,
        test=test,
        training=assay.Training(optimizer=assay.Optimizer(name="adam", lr=0.01), seed=seed),
        out=out,
        names={"model": "BERT with LoRA adapters", "data": "comments on a clinic", "unit": "one comment"},
    )
    return before, result


def main() -> None:
    """The command line."""
    before, result = finetuned(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    trained = sum(p.numel() for p in result.model.parameters() if p.requires_grad)
    print(f"accuracy {before:.1%} before, {result.accuracy:.1%} after")
    print(f"verified ε {result.epsilon:.2f}, {trained} parameters trained\n")
    print(result.statement)


if __name__ == "__main__":
    main()
