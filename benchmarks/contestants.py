"""Who is measured, behind one interface: a private or plain training step on a batch that is already in memory.

A *step* is everything from there to moved parameters: forward, loss, backward, clipping, noise, optimizer. Drawing and
collating the batch belongs to no contestant's step; all of them get theirs by the same indexing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import assay
from assay import methods, models
from assay.data.sampling import FullBatch
from assay.gradients.clipping import ClipRule, Flat
from assay.methods import denoise, encode
from assay.randomness.rounded import Words
from assay.randomness.streams import OsSeeded, Stream, add_normal

CLIP = 1.0
PLAIN, ASSAY = "plain", "Assay"
_ENDLESS = 10**6  # more steps than any measurement takes


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model by name, the shape of its records and the batch size.

    How its kernels lie in memory is the same for all.
    """

    model: str
    shape: tuple[int, ...]
    batch: int
    classes: int = 10
    channels_last: bool = False
    layers: int = 4
    """Of a transformer."""

    @property
    def label(self) -> str:
        """For a table."""
        return f"{self.model}{', channels last' if self.channels_last else ''} ({self.batch})"

    @classmethod
    def from_json(cls, text: str) -> Task:
        """From `asdict` as JSON."""
        data = json.loads(text)
        return cls(**{**data, "shape": tuple(data["shape"])})

    def build(self) -> nn.Module:
        """The model, the same weights every time."""
        torch.manual_seed(0)
        if self.model == "transformer":
            return Transformer(self.shape[1], self.classes, layers=self.layers)
        if self.model == "lstm":
            return Recurrent(self.shape[1], 256, self.classes)
        if self.model in LANGUAGE:
            return Language(self.model, self.classes)
        if self.model == "lora":
            return with_lora(Transformer(self.shape[1], self.classes, layers=6, heads=8))
        model = models.build(self.model, input_shape=self.shape, classes=self.classes)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return model.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]

    def data(self) -> TensorDataset:
        """One batch of random records, the same every time."""
        source = torch.Generator().manual_seed(1)
        shape = (self.batch, *self.shape)
        words = self.model in LANGUAGE
        x = torch.randint(1, _WORDS, shape, generator=source) if words else torch.randn(shape, generator=source)
        return TensorDataset(x, torch.randint(self.classes, (self.batch,), generator=source))


class Transformer(nn.Module):
    """Layers of torch's own encoder, and a linear head on the average position."""

    def __init__(self, width: int, classes: int, *, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x).mean(1))
        return out


class Recurrent(nn.Module):
    """An LSTM, and a linear head on its last output. Opacus's contestants get `DPLSTM` in its place."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


_WORDS = 2000
LANGUAGE = {"bert": "Bert", "gpt2": "GPT2", "llama": "Llama"}
"""Hugging Face's names of language models."""


class Language(nn.Module):
    """A small language model of Hugging Face that classifies texts: four layers, 256 wide, random weights."""

    def __init__(self, kind: str, classes: int) -> None:
        super().__init__()
        import transformers  # takes seconds, and the other models do without

        library = LANGUAGE[kind]
        config = getattr(transformers, f"{library}Config")(
            vocab_size=_WORDS, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_labels=classes,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        config.update({"pad_token_id": 0, "intermediate_size": 1024})
        config.update({name: 0.0 for name in vars(config) if name.endswith(("dropout", "dropout_prob", "pdrop"))})
        self.inner = getattr(transformers, f"{library}ForSequenceClassification")(config)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(input_ids=x).logits
        return out


class Adapted(nn.Module):
    """A frozen linear layer with trainable factors of low rank beside it.

    Hu et al. 2022, "LoRA: Low-rank adaptation of large language models", arXiv:2106.09685.
    """

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(x) + self.up(self.down(x))
        return out


def with_lora(model: Transformer, rank: int = 8) -> Transformer:
    """The model frozen, with adapters beside the linear layers of its feed-forward blocks and a trainable head."""
    model.requires_grad_(False)
    for layer in model.encoder.layers:
        assert isinstance(layer, nn.TransformerEncoderLayer)
        layer.linear1, layer.linear2 = Adapted(layer.linear1, rank), Adapted(layer.linear2, rank)  # type: ignore[assignment]
    model.head.requires_grad_(True)
    return model


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Noise and learning rate. The rate is small: all contestants are to stay where their gradients look alike."""

    noise_multiplier: float = 1.0
    lr: float = 1e-3


NOISELESS = Setting(noise_multiplier=0.0, lr=0.0)
"""For comparing the clipped gradients themselves, which a step leaves in `.grad`."""


@dataclass(frozen=True)
class Contestant:
    """A model with its training step; every step needs the next of `batches`.

    `draws` counts the draws of random numbers so far, for a contestant that draws those of several steps at once.
    """

    model: nn.Module
    batches: Iterator[list[Tensor]]
    step: Callable[[Tensor, Tensor], None]
    draws: Callable[[], int] = lambda: 0

    def gradient(self) -> Tensor:
        """What the last step left in `.grad`, all parameters in one row, by their shapes: layers may be replaced."""
        ordered = sorted(self.model.parameters(), key=lambda p: tuple(p.shape))
        return torch.cat([p.grad.flatten() for p in ordered if p.grad is not None])


Maker = Callable[[nn.Module, TensorDataset, Setting], Contestant]


def sgd(model: nn.Module, setting: Setting) -> torch.optim.SGD:
    """The optimizer of every contestant."""
    return torch.optim.SGD(model.parameters(), lr=setting.lr)


def whole_batches(data: TensorDataset) -> Iterator[list[Tensor]]:
    """All records, time and again, gathered anew each time as `PrivateStep.batches` does."""
    index = torch.arange(len(data))
    while True:
        yield [t[index] for t in data.tensors]


def plain(model: nn.Module, data: TensorDataset, setting: Setting) -> Contestant:
    """Training without privacy."""
    optimizer = sgd(model, setting)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Contestant(model, whole_batches(data), step)


class _Counted(OsSeeded):
    """Assay's usual randomness, counting the draws of normal numbers. Those of several steps may come from one."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = 0

    def stream(self, purpose: str, step: int) -> Stream:
        return _CountedStream(super().stream(purpose, step), self)


@dataclass(slots=True)
class _CountedStream:
    inner: Stream
    owner: _Counted

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        self.owner.draws += 1
        return self.inner.normal(shape, dtype=dtype, device=device)

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        self.owner.draws += 1
        add_normal(values, std, self.inner)

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        return self.inner.laplace(shape, dtype=dtype, device=device)

    def uniform(self, n: int) -> Tensor:
        return self.inner.uniform(n)

    def integers(self, high: int, n: int) -> Tensor:
        return self.inner.integers(high, n)

    def words(self, n: int) -> Tensor:
        assert isinstance(self.inner, Words)
        return self.inner.words(n)


@dataclass(frozen=True, kw_only=True)
class Private:
    """Assay, through its public step, with a method and what is added to it."""

    method: methods.Method = field(default_factory=lambda: methods.get("dpsgd"))
    clip: ClipRule = field(default_factory=lambda: Flat(bound=CLIP))
    encode: tuple[str, ...] = ()
    denoise: tuple[str, ...] = ()
    exact: bool = False

    def __call__(self, model: nn.Module, data: TensorDataset, setting: Setting) -> Contestant:
        """A model with this step."""
        plan = assay.Plan(
            records=len(data),
            batch_size=len(data),
            steps=_ENDLESS,
            noise_multiplier=setting.noise_multiplier,
            delta=1e-5,
            clip=self.clip,
            sampling=FullBatch,
            method=self.method,
            encode=encode.parse_all(self.encode),
            denoise=denoise.parse_all(self.denoise),
            exact=self.exact,
        )
        randomness = _Counted()
        private_step = assay.PrivateStep(model, plan, randomness=randomness)
        optimizer = sgd(model, setting)

        def step(x: Tensor, y: Tensor) -> None:
            private_step.backward(F.cross_entropy(model(x), y, reduction="none"))
            optimizer.step()

        return Contestant(model, private_step.batches(data), step, lambda: randomness.draws)


private = Private()
"""DP-SGD."""
