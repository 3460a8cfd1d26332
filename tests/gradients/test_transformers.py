"""Transformers as people train them: torch's own and Hugging Face's, whole, with adapters, or only in part."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.gradients.engine import Engine
from assay.gradients.rules.attention import ruled

from .oracle import Loss, agree, squared_error
from .sizes import allocated

WORDS, LENGTH, CLASSES = 60, 7, 3


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


def every_word(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.transpose(1, 2), target, reduction="none").mean(1)


class Logits(nn.Module):
    """A Hugging Face model called by keyword, padding masked; an output object becomes its logits."""

    def __init__(self, model: nn.Module, given: str = "input_ids", *, masked: bool = False) -> None:
        super().__init__()
        self.model, self.given, self.masked = model, given, masked

    def forward(self, x: Tensor) -> Tensor:
        more = (
            {"attention_mask": torch.cat([torch.ones_like(x[:, :2]), (x[:, 2:] > 8).long()], 1)} if self.masked else {}
        )
        out: Tensor = self.model(**{self.given: x}, **more).logits
        return out


def bert(kind: Any = transformers.BertForSequenceClassification, **settings: Any) -> Any:
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=CLASSES,
    )  # fmt: skip
    config._attn_implementation = settings.get("attention", "sdpa")
    return kind(config)


def gpt2(kind: Any = transformers.GPT2LMHeadModel, **settings: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=settings.get("words", WORDS), n_embd=16, n_layer=2, n_head=2, n_positions=16, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, num_labels=CLASSES, pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    return kind(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, max_position_embeddings=16, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def words(records: int = 4, length: int = LENGTH) -> Tensor:
    return torch.randint(1, WORDS, (records, length))


def classes(records: int = 4) -> Tensor:
    return torch.randint(0, CLASSES, (records,))


WHOLE: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "BERT classifier": (lambda: Logits(bert(), masked=True), cross_entropy),
    "BERT classifier, eager attention": (lambda: Logits(bert(attention="eager"), masked=True), cross_entropy),
    "BERT, masked words": (lambda: Logits(bert(transformers.BertForMaskedLM), masked=True), every_word),
    "GPT-2": (lambda: Logits(gpt2()), every_word),
    "GPT-2 classifier": (lambda: Logits(gpt2(transformers.GPT2ForSequenceClassification)), cross_entropy),
    "Llama": (lambda: Logits(llama()), every_word),
}


@pytest.mark.parametrize("name", WHOLE)
def test_every_parameter(name: str) -> None:
    make, loss = WHOLE[name]
    x = words()
    agree(make(), x, x.flip(1) if loss is every_word else classes(), loss, batched=False)


def test_vision() -> None:
    agree(Logits(vit(), "pixel_values"), torch.randn(4, 3, 8, 8), classes(), cross_entropy, batched=False)


@pytest.mark.parametrize("name", ["BERT classifier", "BERT, masked words", "GPT-2", "GPT-2 classifier"])
def test_no_layer_of_bert_and_gpt2_needs_copies_of_its_parameters(name: str) -> None:
    engine = Engine(WHOLE[name][0]())
    assert engine.expanded() == []


@pytest.mark.parametrize(
    ("make", "targets"),
    [
        (bert, ["query", "value"]),
        (lambda: gpt2(transformers.GPT2ForSequenceClassification), ["c_attn", "c_proj"]),
    ],
    ids=["BERT", "GPT-2"],
)
def test_adapters(make: Callable[[], Any], targets: list[str]) -> None:
    settings = peft.LoraConfig(r=2, target_modules=targets, task_type="SEQ_CLS", init_lora_weights=False)
    model = Logits(peft.get_peft_model(make(), settings))
    assert {n.split(".")[-2] for n, p in model.named_parameters() if p.requires_grad} == {"default"}
    agree(model, words(), classes(), cross_entropy, batched=False)


@pytest.mark.parametrize("name", ["BERT classifier", "BERT, masked words", "GPT-2"])
def test_biases_only(name: str) -> None:
    make, loss = WHOLE[name]
    model = make()
    for path, parameter in model.named_parameters():
        parameter.requires_grad_(path.endswith("bias"))
    x = words()
    agree(model, x, x.flip(1) if loss is every_word else classes(), loss, batched=False)


def test_last_layer_only() -> None:
    model = Logits(bert(), masked=True)
    model.requires_grad_(False)
    model.model.classifier.requires_grad_(True)
    agree(model, words(), classes(), cross_entropy, batched=False)


def _two_steps(model: nn.Module, losses: Callable[[], Tensor], **groups: Any) -> Any:
    """The allocations of a second step (forward, backward, norms, clipped sum); the first one proves the engine."""
    engine = Engine(model, **groups)
    for _ in range(2):
        with allocated() as sizes:
            grads = engine.collect(losses())
            weights = 1 / grads.norms([0] * grads.layers).clamp_min(1)
            grads.weighted_sum(weights, [0] * grads.layers)
    engine.detach()
    return sizes


def test_frozen_layers_get_no_gradient_computed() -> None:
    """With the last layer alone, the backward pass stops there; with adapters, no frozen weight gets a gradient."""
    model = bert().train()
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    x, y = words(), classes()
    inner: list[Tensor] = []
    model.bert.encoder.layer[1].register_forward_hook(lambda module, given, out: inner.append(out))
    _two_steps(model, lambda: cross_entropy(model(input_ids=x).logits, y))
    assert inner
    assert not any(out.requires_grad for out in inner)

    adapted = peft.get_peft_model(bert(), peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))
    weights = {(16, 16), (4, 16, 16), (32, 16), (WORDS, 16)}
    sizes = _two_steps(adapted, lambda: cross_entropy(adapted(input_ids=x).logits, y))
    assert not weights & set(sizes.shapes)
    whole = bert()
    assert weights & set(_two_steps(whole, lambda: cross_entropy(whole(input_ids=x).logits, y)).shapes)


@pytest.mark.parametrize("tied", [True, False])
def test_large_vocabulary_is_never_built_for_each_record(tied: bool) -> None:
    vocabulary, width, records, length = 50_000, 16, 8, 3

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.head = nn.Linear(width, vocabulary if tied else 5, bias=False)
            if tied:
                self.head.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.table(x) + self.places(torch.arange(x.shape[1])))
            return out

    model = Language()
    x = torch.randint(vocabulary, (records, length))
    y = x.flip(1) % model.head.out_features
    sizes = _two_steps(model, lambda: every_word(model(x), y))
    assert (vocabulary, width) in sizes.shapes  # the sum that is released
    output = records * length * model.head.out_features
    assert sizes.largest <= max(vocabulary * width, output) < records * vocabulary * width


def test_tied_table_of_gpt2_is_never_built_for_each_record() -> None:
    model, x = gpt2(words=20_000), words(8, 3)
    sizes = _two_steps(model, lambda: every_word(model(input_ids=x).logits, x))
    assert sizes.largest <= max(20_000 * 16, 8 * 3 * 20_000)


@pytest.mark.parametrize("measured", [True, False])
def test_sequences_short_and_long(measured: bool) -> None:
    """Few positions: no product of [records, out, in]. Many: no Gram matrix of [records, positions, positions]."""
    short = nn.Linear(96, 80)
    sizes = _two_steps(
        short, lambda: squared_error(short(torch.randn(6, 4, 96)), torch.zeros(6, 4, 80)), measured=measured
    )
    assert sizes.largest == max(6 * 4 * 96, 96 * 80)
    long = nn.Linear(6, 5)
    x = torch.randn(4, 300, 6)
    sizes = _two_steps(long, lambda: squared_error(long(x), torch.zeros(4, 300, 5)), measured=measured)
    assert sizes.largest <= 4 * 300 * 6


class Encoder(nn.Module):
    def __init__(self, mask: str, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
        self.inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        masks: dict[str, Any] = {}
        if "padding" in self.mask:
            masks["src_key_padding_mask"] = torch.cat([torch.zeros_like(x[:, :1, 0]) > 0, x[:, 1:, 0] > 0.5], 1)
        if "causal" in self.mask:
            masks |= {"mask": nn.Transformer.generate_square_subsequent_mask(x.shape[1]).to(x), "is_causal": True}
        if self.mask == "causal padding":  # torch wants both of one type
            masks["src_key_padding_mask"] = torch.zeros_like(x[..., 0]).masked_fill(
                masks["src_key_padding_mask"], float("-inf")
            )
        out: Tensor = self.inner(x, **masks)
        return out


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("mask", ["", "padding", "causal", "causal padding"])
def test_encoder(mask: str, norm_first: bool) -> None:
    agree(Encoder(mask, norm_first), torch.randn(4, 5, 8), batched=False)


def test_decoder_attends_to_two_inputs() -> None:
    class Translate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x[:, :3], x[:, 3:])
            return out

    agree(Translate(), torch.randn(4, 7, 8), batched=False)


@pytest.mark.parametrize("places", ["qkv", "qkk", "qqv", "qkq", "qqq twice", "qqq and qkv"])
def test_attention_of_any_inputs(places: str) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            assert ruled(self.attention)

        def forward(self, x: Tensor) -> Tensor:
            given = {"q": x, "k": 2 * x.flip(1), "v": x.tanh()}
            out: Tensor = self.attention(*[given[p] for p in places[:3]], need_weights=False)[0]
            if "twice" in places:
                out = out + self.attention(out, out, out)[0]
            if "and" in places:
                out = out + self.attention(x, given["k"], given["v"])[0]
            return out

    agree(Mixed(), torch.randn(4, 5, 8), batched=False)


@pytest.mark.parametrize("trained", ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"])
def test_attention_trained_in_part(trained: str) -> None:
    model = Encoder("", norm_first=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith(f"self_attn.{trained}"))
    agree(model, torch.randn(4, 5, 8), batched=False)


def test_attention_mask_for_each_record_and_head() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            mask = (x[:, :, 0] > 0.5)[:, None, None].expand(-1, 2, x.shape[1], -1).clone()
            mask[:, :, :, 0] = False
            out: Tensor = self.attention(x, x, x, attn_mask=mask.flatten(0, 1))[0]
            return out

    agree(Masked(), torch.randn(4, 5, 8), batched=False)


class Placed(nn.Module):
    """Words and their places; `shape` says how the places are given."""

    def __init__(self, shape: str, rows: int = 12) -> None:
        super().__init__()
        self.shape, self.words, self.places = shape, nn.Embedding(WORDS, 6), nn.Embedding(rows, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        index = torch.arange(x.shape[1])
        if self.shape == "[1, T]":
            index = index[None]
        if self.shape == "[1, T], repeated":
            index = index[None] // 2
        if self.shape == "[B, T]":
            index = index.expand(len(x), -1)
        out: Tensor = self.head((self.words(x) + self.places(index)).tanh())
        return out


@pytest.mark.parametrize("length", [5, 9, 8], ids=["", "as many as records", "as many as records in a later batch"])
@pytest.mark.parametrize("shape", ["[T]", "[1, T]", "[1, T], repeated", "[B, T]"])
def test_places_that_all_records_share(shape: str, length: int) -> None:
    agree(Placed(shape), words(9, length))


def test_places_with_a_single_record() -> None:
    model = Placed("[T]").double()
    engine = Engine(model)
    x = words(3, 5)
    alone = engine.collect(squared_error(model(x[:1]), torch.zeros(1, 5, 3))).per_record()
    together = engine.collect(squared_error(model(x), torch.zeros(3, 5, 3))).per_record()
    for name, values in alone.items():
        torch.testing.assert_close(values[0], together[name][0])


def test_few_places_and_as_few_records() -> None:
    """[4] could be four places or four records: it was made of nothing that the model was given, so it is places."""
    agree(Placed("[T]"), words(4, 4))


def test_a_table_for_records_and_for_places() -> None:
    class Both(Placed):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.words(x) + self.words(torch.arange(x.shape[1])[None]))
            return out

    agree(Both(""), words())


def test_places_used_otherwise_than_added() -> None:
    class Turned(Placed):
        def forward(self, x: Tensor) -> Tensor:
            scale = self.places(torch.arange(x.shape[1])).sum(0, keepdim=True)
            out: Tensor = self.head(self.words(x) * scale)
            return out

    agree(Turned(""), words(4, 6))


@pytest.mark.parametrize("frozen", [False, True])
def test_relative_positions_of_t5(frozen: bool) -> None:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0
    )
    x = words()

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.T5ForConditionalGeneration(config)
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(not frozen or "relative_attention_bias" not in name)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.model(input_ids=x, decoder_input_ids=x.flip(1)).logits
            return out

    agree(Biased(), x, x.flip(1), every_word, batched=False)


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_over_the_records_is_refused(batch_first: bool) -> None:
    """The commonest mistake: records first, and a layer that takes the first dimension for positions."""
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
    engine = Engine(model)
    x = torch.randn(4, 5, 8) if not batch_first else torch.randn(5, 4, 8).transpose(0, 1)
    losses = squared_error(model(x), torch.zeros(4, 5, 8))
    if batch_first:
        engine.collect(losses)
        return
    with pytest.raises(UnsupportedModelError):
        engine.collect(losses)


def test_hidden_mixing_inside_a_hugging_face_model_is_refused() -> None:
    model = bert()

    def centre(module: nn.Module, given: Any, out: Tensor) -> Tensor:
        return out - out.mean(0, keepdim=True).detach()  # out of autograd's sight

    model.bert.encoder.layer[0].output.register_forward_hook(centre)
    engine = Engine(model)
    with pytest.raises(UnsupportedModelError, match="mixes records"):
        engine.collect(cross_entropy(model(input_ids=words()).logits, classes()))


def test_layers_of_other_libraries_keep_their_own_forward() -> None:
    """A subclass of GPT-2's layer that computes something else is not taken for it."""

    class Twice(transformers.pytorch_utils.Conv1D):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = 2 * super().forward(x)
            return out

    model = nn.Sequential(Twice(3, 6), nn.Tanh(), transformers.pytorch_utils.Conv1D(2, 3))
    engine = Engine(model)
    assert len(engine.expanded()) == 1, "the whole layer, once for every record"
    engine.detach()
    for record in [(6,), (5, 6), (40, 6)]:
        agree(model, torch.randn(4, *record))


def test_batches_with_and_without_padding_are_exact_and_as_long_as_they_are_large() -> None:
    """Without padding T5 has no mask, and uses its relative biases in a way that the first batch did not show."""
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0, pad_token_id=0,
        eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config).double()
    plain = copy.deepcopy(model)
    engine = Engine(model)

    def losses(network: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        out = network(input_ids=ids, attention_mask=mask, decoder_input_ids=ids[:, :3])
        return out.logits.tanh().flatten(1).sum(1)

    for records, padded in ((4, True), (5, False), (4, False), (4, True), (1, False)):
        ids = torch.randint(2, 40, (records, 4))
        mask = torch.ones_like(ids)
        mask[0, -1] = 0 if padded else 1
        found = engine.collect(losses(model, ids, mask)).per_record()
        for i in range(records):
            alone = losses(plain, ids[i : i + 1], mask[i : i + 1]).sum()
            expected = torch.autograd.grad(alone, list(plain.parameters()))
            for (name, _), g in zip(plain.named_parameters(), expected, strict=True):
                torch.testing.assert_close(found[name][i], g, rtol=1e-9, atol=1e-9)
    engine.detach()
