"""The models of the coverage table: layers and blocks of torch, and small Hugging Face models, plain and with adapters.

Every case builds a small model and four records. Hugging Face models come from configurations, with random weights:
nothing is downloaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

RECORDS, LENGTH, WIDTH, WORDS = 4, 6, 16, 60


def _by_name(inputs: Mapping[str, Tensor]) -> tuple[Any, ...] | Mapping[str, Tensor]:
    """What the model is called with: by position where there is one input called x."""
    return (inputs["x"],) if set(inputs) == {"x"} else inputs


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and how it is called; `inputs` have one row per record."""

    group: str
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Mapping[str, Tensor]]
    records: int = RECORDS
    enter: Callable[[Mapping[str, Tensor]], tuple[Any, ...] | Mapping[str, Tensor]] = _by_name
    """Turns rows into what the model is called with: moved, packed, or as they are."""
    leave: Callable[[Any], Any] = lambda output: output
    """Turns what the model returns into rows again."""

    def call(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
        """What the model makes of these rows."""
        given = self.enter(inputs)
        return self.leave(model(**given) if isinstance(given, Mapping) else model(*given))


class Calls(nn.Module):
    """A module that is called by keyword."""

    def __init__(self, module: nn.Module, forward: Callable[[nn.Module, Tensor], Any] | None = None) -> None:
        super().__init__()
        self.module, self.how = module, forward

    def forward(self, x: Tensor) -> Any:
        """What `how` computes; by default the module's own forward."""
        return self.module(x) if self.how is None else self.how(self.module, x)


class Own(nn.Module):
    """Parameters by name, and a function that computes with them."""

    def __init__(self, how: Callable[[Own, Tensor], Tensor], **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.how = how
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape) / 2))

    def forward(self, x: Tensor) -> Tensor:
        """What `how` computes."""
        return self.how(self, x)


class Listed(nn.Module):
    """Parameters in torch's own containers."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(WIDTH)) for _ in range(2)])
        self.maps = nn.ParameterDict(
            {"down": nn.Parameter(torch.randn(3, WIDTH)), "up": nn.Parameter(torch.randn(2, 3))}
        )

    def forward(self, x: Tensor) -> Tensor:
        """A product of small maps."""
        return F.linear(F.linear(x * self.scales[0] + self.scales[1], self.maps["down"]), self.maps["up"])


class Vision(nn.Module):
    """A class token, positions and layer scales beside ordinary layers, as in vision transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.scale = nn.Parameter(torch.rand(8))
        self.patches, self.norm, self.map = nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.positions
        h = h + self.scale * self.map(self.norm(h)).tanh()
        out: Tensor = self.head(h[:, 0])
        return out


class StandardConv(nn.Conv2d):
    """A convolution whose weight is standardised as in timm's `StdConv2d`."""

    def forward(self, x: Tensor) -> Tensor:
        """Standardise by a batch normalisation of the kernel, then convolve."""
        weight = F.batch_norm(
            self.weight.reshape(1, self.out_channels, -1), None, None, training=True, momentum=0.0, eps=1e-6
        ).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class GroupNormAct(nn.GroupNorm):
    """A group normalisation with an activation, as in timm."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, then activate."""
        return F.relu(F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps))


class Norm2d(nn.LayerNorm):
    """Layer normalisation over the channels of a map, as in ConvNeXt."""

    def forward(self, x: Tensor) -> Tensor:
        """Channels last, normalise, channels first."""
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class RootNorm(nn.Module):
    """The root mean square norm as Hugging Face writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """x / rms(x) · w."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Folded(nn.Module):
    """Positions folded into the batch before an ordinary layer, or frames of a video."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """One row for each position, then one for each record."""
        h = self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        out: Tensor = self.head(h.tanh().flatten(3).mean(3) if h.dim() > 3 else h.tanh()).flatten(1)
        return out


class Biases(nn.Module):
    """Relative positions from a table that all records share, added to the scores of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.q, self.k = nn.Embedding(2 * LENGTH, 2), nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Attention scores with a bias for each distance and head."""
        place = torch.arange(x.shape[1])
        bias = self.table(place[:, None] - place[None, :] + x.shape[1]).permute(2, 0, 1).unsqueeze(0)
        q, k = (layer(x).unflatten(2, (2, -1)).transpose(1, 2) for layer in (self.q, self.k))
        return (q @ k.mT + bias).softmax(-1)[..., 0].flatten(1)


def _packed(module: nn.Module, x: Tensor) -> Tensor:
    lengths = (x[:, 0, 0] > 0).long() * 2 + 3
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out: Tensor = pad_packed_sequence(module(packed)[0], batch_first=True, total_length=x.shape[1])[0]
    return out


def _weight_norm(layer: nn.Module) -> nn.Module:
    return parametrizations.weight_norm(layer)


def _rows() -> Mapping[str, Tensor]:
    return {"x": torch.randn(RECORDS, WIDTH)}


def _sequences() -> Mapping[str, Tensor]:
    return {"x": torch.randn(RECORDS, LENGTH, WIDTH)}


def _maps(channels: int = 4, side: int = 8) -> Mapping[str, Tensor]:
    return {"x": torch.randn(RECORDS, channels, side, side)}


def _frames() -> Mapping[str, Tensor]:
    return {"x": torch.randn(RECORDS, 3, 4, 8, 8)}


def _words() -> Mapping[str, Tensor]:
    return {"x": torch.randint(1, WORDS, (RECORDS, LENGTH))}


def _eval_norm() -> nn.Module:
    norm = nn.BatchNorm2d(4).eval()
    norm.running_mean, norm.running_var = torch.randn(4), torch.rand(4) + 0.5
    return nn.Sequential(nn.Conv2d(4, 4, 3), norm, nn.ReLU())


def _later(layer: nn.Module, width: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), layer, nn.Tanh())


Build = Callable[[], Any]
_LAYERS: list[tuple[str, Build, Callable[[], Mapping[str, Tensor]]]] = [
    ("Linear", lambda: nn.Linear(WIDTH, 5), _rows),
    ("Linear on sequences", lambda: nn.Linear(WIDTH, 5), _sequences),
    ("Bilinear", lambda: Calls(nn.Bilinear(WIDTH, WIDTH, 5), lambda m, x: m(x, x.flip(-1))), _rows),
    ("Bilinear on sequences", lambda: Calls(nn.Bilinear(WIDTH, WIDTH, 5), lambda m, x: m(x, x.flip(-1))), _sequences),
    ("Conv1d", lambda: nn.Conv1d(LENGTH, 4, 3, padding=1), _sequences),
    ("Conv2d", lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2), _maps),
    ("Conv2d, circular", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), _maps),
    ("ConvTranspose1d", lambda: nn.ConvTranspose1d(LENGTH, 4, 3, stride=2), _sequences),
    ("ConvTranspose2d", lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), _maps),
    ("ConvTranspose2d, dilated", lambda: nn.ConvTranspose2d(4, 6, 3, dilation=2), _maps),
    ("standardised Conv2d", lambda: StandardConv(4, 6, 3), _maps),
    ("weight_norm of Linear", lambda: _later(_weight_norm(nn.Linear(WIDTH, 5))), _sequences),
    ("weight_norm of Conv2d", lambda: _weight_norm(nn.Conv2d(4, 6, 3)), _maps),
    ("orthogonal Linear", lambda: _later(parametrizations.orthogonal(nn.Linear(WIDTH, 5))), _rows),
    ("LayerNorm", lambda: _later(nn.LayerNorm(WIDTH)), _sequences),
    ("LayerNorm over channels", lambda: Norm2d(4), _maps),
    ("RMSNorm", lambda: _later(nn.RMSNorm(WIDTH)), _sequences),
    ("RMSNorm, hand-written", lambda: _later(RootNorm()), _sequences),
    ("GroupNorm", lambda: nn.GroupNorm(2, 4), _maps),
    ("GroupNorm with activation", lambda: GroupNormAct(2, 4), _maps),
    ("InstanceNorm2d", lambda: nn.InstanceNorm2d(4, affine=True), _maps),
    ("BatchNorm2d in eval mode", _eval_norm, _maps),
    ("PReLU", lambda: _later(nn.PReLU()), _sequences),
    ("Embedding", lambda: nn.Embedding(WORDS, 5), _words),
    ("EmbeddingBag", lambda: nn.EmbeddingBag(WORDS, 5), _words),
    ("RNN", lambda: Calls(nn.RNN(WIDTH, 5, batch_first=True), lambda m, x: m(x)[0]), _sequences),
    (
        "LSTM",
        lambda: Calls(nn.LSTM(WIDTH, 5, 2, bidirectional=True, batch_first=True), lambda m, x: m(x)[0]),
        _sequences,
    ),
    ("GRU", lambda: Calls(nn.GRU(WIDTH, 5, batch_first=True), lambda m, x: m(x)[0]), _sequences),
    ("LSTM, the model itself", lambda: nn.LSTM(WIDTH, 5, 4, batch_first=True), _sequences),
    ("LSTM, packed sequences", lambda: Calls(nn.LSTM(WIDTH, 5, batch_first=True), _packed), _sequences),
    ("GRU, packed sequences", lambda: Calls(nn.GRU(WIDTH, 5, batch_first=True), _packed), _sequences),
    ("LSTMCell", lambda: Calls(nn.LSTMCell(WIDTH, 5), lambda m, x: m(x)[0]), _rows),
    (
        "MultiheadAttention",
        lambda: Calls(nn.MultiheadAttention(WIDTH, 2, batch_first=True), lambda m, x: m(x, x, x)[0]),
        _sequences,
    ),
    (
        "MultiheadAttention, extra keys",
        lambda: Calls(nn.MultiheadAttention(WIDTH, 2, batch_first=True, add_bias_kv=True), lambda m, x: m(x, x, x)[0]),
        _sequences,
    ),
    ("TransformerEncoderLayer", lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8, 0.0, batch_first=True), _sequences),
    ("class token, positions, layer scale", Vision, lambda: _maps(3)),
    ("parameter list and dictionary", Listed, _sequences),
    ("bare matrix", lambda: Own(lambda m, x: x @ m.w.t().exp() + m.b, w=(5, WIDTH), b=(5,)), _sequences),
    ("bare matrix by einsum", lambda: Own(lambda m, x: torch.einsum("bti,oi->bto", x, m.w), w=(5, WIDTH)), _sequences),
    ("positions cut to length", lambda: Own(lambda m, x: x + m.p[:, : x.shape[1]], p=(1, 9, WIDTH)), _sequences),
    (
        "queries learnt for all records",
        lambda: Own(lambda m, x: (m.q.unsqueeze(0).expand(len(x), -1, -1) @ x.mT).softmax(-1) @ x, q=(3, WIDTH)),
        _sequences,
    ),
    ("relative biases from a table", Biases, _sequences),
    ("positions folded into the batch", lambda: Folded(nn.Linear(WIDTH, 8)), _sequences),
    ("positions folded before a norm", lambda: Folded(nn.Sequential(nn.Linear(WIDTH, 8), RootNorm8())), _sequences),
    ("frames folded into the batch", lambda: Folded(nn.Sequential(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8))), _frames),
]


class RootNorm8(RootNorm):
    """The same for eight channels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))


def layers() -> list[Case]:
    """Layers and blocks."""
    return [Case(group="layers and blocks", name=name, build=build, inputs=inputs) for name, build, inputs in _LAYERS]


_SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 8,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attention_dropout": 0.0,
    "dropout": 0.0,
    "hidden_dropout": 0.0,
    "activation_dropout": 0.0,
    "classifier_dropout": 0.0,
    "dropout_rate": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_PICTURES: dict[str, Any] = {"image_size": 16, "patch_size": 4, "num_channels": 3}


def _text(records: int = RECORDS, length: int = LENGTH) -> Mapping[str, Tensor]:
    ids = torch.randint(3, WORDS, (records, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _both() -> Mapping[str, Tensor]:
    return {**_text(), "decoder_input_ids": torch.randint(3, WORDS, (RECORDS, LENGTH - 1))}


def _pixels(side: int = 16) -> Mapping[str, Tensor]:
    return {"pixel_values": torch.randn(RECORDS, 3, side, side)}


def _video() -> Mapping[str, Tensor]:
    return {"pixel_values": torch.randn(RECORDS, 4, 3, 16, 16)}


def _sound() -> Mapping[str, Tensor]:
    return {"input_values": torch.randn(RECORDS, 400)}


def _is_read_only(config: type, name: str) -> bool:
    return isinstance(getattr(config, name, None), property)


def hugging_face(kind: str, **settings: Any) -> nn.Module:
    """A small model of this class with random weights, in train mode without dropout."""
    import transformers

    made = getattr(transformers, kind)
    known = made.config_class
    own = known.attribute_map
    sizes = {
        name: size
        for name, size in _SIZES.items()
        if own.get(name, name) not in settings
        and (hasattr(known, name) or name in own)
        and not _is_read_only(known, name)
    }
    config = known(**{**sizes, "num_labels": 3, **settings})
    config.use_cache = False
    config._experts_implementation = "eager"
    model: nn.Module = made(config).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


_GQA = {"num_key_value_heads": 1}
_SWIN = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "window_size": 4,
    "drop_path_rate": 0.0,
}
_TWO_SIDES = {
    "d_model": WIDTH,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
_T5 = {"d_model": WIDTH, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
_MOE = {**_GQA, "num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

_MODELS: list[tuple[str, dict[str, Any], Callable[[], Mapping[str, Tensor]]]] = [
    ("BertForSequenceClassification", {}, _text),
    ("BertForMaskedLM", {}, _text),
    ("RobertaForSequenceClassification", {}, _text),
    ("DistilBertForSequenceClassification", {"dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}, _text),
    ("AlbertForSequenceClassification", {"embedding_size": 8}, _text),
    ("ElectraForSequenceClassification", {"embedding_size": 8}, _text),
    ("MPNetForSequenceClassification", {}, _text),
    ("DebertaForSequenceClassification", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, _text),
    (
        "DebertaV2ForSequenceClassification",
        {
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_buckets": 4,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
        _text,
    ),
    ("LongformerForSequenceClassification", {"attention_window": 4, "sep_token_id": 2}, lambda: _text(length=8)),
    ("ModernBertForSequenceClassification", {"global_attn_every_n_layers": 2, "local_attention": 4}, _text),
    ("FNetForSequenceClassification", {}, _text),
    ("XLNetForSequenceClassification", {"d_model": WIDTH, "n_layer": 2, "n_head": 2, "d_inner": 32}, _text),
    (
        "GPT2LMHeadModel",
        {
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 32,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        _text,
    ),
    (
        "GPTNeoForCausalLM",
        {
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "resid_dropout": 0.0,
            "embed_dropout": 0.0,
        },
        _text,
    ),
    ("GPTNeoXForCausalLM", {}, _text),
    (
        "GPTJForCausalLM",
        {
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": 2,
            "rotary_dim": 4,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        _text,
    ),
    ("OPTForCausalLM", {"ffn_dim": 32, "word_embed_proj_dim": WIDTH}, _text),
    ("BloomForCausalLM", {"n_layer": 2, "n_head": 2}, _text),
    ("FalconForCausalLM", {}, _text),
    ("LlamaForCausalLM", _GQA, _text),
    ("MistralForCausalLM", _GQA, _text),
    ("MixtralForCausalLM", _MOE, _text),
    ("Qwen2ForCausalLM", _GQA, _text),
    ("Qwen3ForCausalLM", _GQA, _text),
    ("Qwen3MoeForCausalLM", _MOE, _text),
    ("GemmaForCausalLM", _GQA, _text),
    ("Gemma2ForCausalLM", {**_GQA, "sliding_window": 4}, _text),
    ("PhiForCausalLM", _GQA, _text),
    ("Phi3ForCausalLM", _GQA, _text),
    ("OlmoForCausalLM", _GQA, _text),
    ("MambaForCausalLM", {"state_size": 4, "time_step_rank": 2}, _text),
    ("T5ForConditionalGeneration", _T5, _both),
    ("T5EncoderModel", _T5, _text),
    ("BartForConditionalGeneration", _TWO_SIDES, _both),
    ("MarianMTModel", _TWO_SIDES, _both),
    ("PegasusForConditionalGeneration", _TWO_SIDES, _both),
    ("ViTForImageClassification", _PICTURES, _pixels),
    ("DeiTForImageClassification", _PICTURES, _pixels),
    (
        "BeitForImageClassification",
        {**_PICTURES, "drop_path_rate": 0.0, "use_relative_position_bias": True, "layer_scale_init_value": 0.1},
        _pixels,
    ),
    ("Dinov2ForImageClassification", _PICTURES, _pixels),
    ("SwinForImageClassification", _SWIN, _pixels),
    ("Swinv2ForImageClassification", _SWIN, _pixels),
    (
        "ConvNextForImageClassification",
        {"patch_size": 4, "hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2, "drop_path_rate": 0.0},
        _pixels,
    ),
    (
        "ConvNextV2ForImageClassification",
        {"patch_size": 4, "hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2, "drop_path_rate": 0.0},
        _pixels,
    ),
    (
        "PoolFormerForImageClassification",
        {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "drop_path_rate": 0.0},
        lambda: _pixels(32),
    ),
    (
        "SegformerForImageClassification",
        {
            "hidden_sizes": [8, 8],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "num_attention_heads": [1, 2],
            "sr_ratios": [2, 1],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "mlp_ratios": [2, 2],
            "drop_path_rate": 0.0,
            "decoder_hidden_size": 8,
        },
        _pixels,
    ),
    (
        "PvtForImageClassification",
        {
            **_PICTURES,
            "image_size": 32,
            "hidden_sizes": [8, 8, 8, 8],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 1, 1],
            "sequence_reduction_ratios": [1, 1, 1, 1],
            "mlp_ratios": [1, 1, 1, 1],
            "drop_path_rate": 0.0,
        },
        lambda: _pixels(32),
    ),
    ("CLIPVisionModel", _PICTURES, _pixels),
    ("SiglipVisionModel", _PICTURES, _pixels),
    ("VideoMAEForVideoClassification", {**_PICTURES, "num_frames": 4}, _video),
    ("TimesformerForVideoClassification", {**_PICTURES, "num_frames": 4, "drop_path_rate": 0}, _video),
    (
        "Wav2Vec2ForSequenceClassification",
        {
            "conv_dim": [8, 8],
            "conv_kernel": [5, 3],
            "conv_stride": [4, 2],
            "num_feat_extract_layers": 2,
            "feat_extract_norm": "layer",
            "layerdrop": 0.0,
            "mask_time_prob": 0.0,
            "feat_proj_dropout": 0.0,
            "final_dropout": 0.0,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "classifier_proj_size": 8,
        },
        _sound,
    ),
]


def _mobile_vit() -> nn.Module:
    import transformers

    sizes = {"neck_hidden_sizes": [4, 8, 8, 8, 8, 8, 8], "hidden_sizes": [8, 8, 8], "expand_ratio": 1.0}
    from assay.models import compat

    config = transformers.MobileViTConfig(
        image_size=64,
        num_attention_heads=2,
        intermediate_size=16,
        mlp_ratio=1.0,
        hidden_dropout_prob=0.0,
        num_labels=3,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        **sizes,
    )
    model, _ = compat.replace_batchnorm(transformers.MobileViTForImageClassification(config).train(), "layer")
    return model


def _bert_with(kind: str, **settings: Any) -> nn.Module:
    """BERT with adapters."""
    import peft

    model = hugging_face("BertForSequenceClassification")
    return peft.get_peft_model(model, getattr(peft, kind)(task_type="SEQ_CLS", **settings)).train()


def _gpt2_with(kind: str, **settings: Any) -> nn.Module:
    import peft

    model = hugging_face(
        "GPT2LMHeadModel",
        n_embd=WIDTH,
        n_layer=2,
        n_head=2,
        n_positions=32,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return peft.get_peft_model(model, getattr(peft, kind)(task_type="CAUSAL_LM", **settings)).train()


def _own_words() -> Mapping[str, Tensor]:
    return _text()


def _biases_only() -> nn.Module:
    model = hugging_face("BertForSequenceClassification")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return model


_TARGETS: dict[str, Any] = {"target_modules": ["query", "value"]}
_ADAPTERS: dict[str, Callable[[], nn.Module]] = {
    "LoRA": lambda: _bert_with("LoraConfig", r=2, init_lora_weights=False, **_TARGETS),
    "rank-stabilised LoRA": lambda: _bert_with("LoraConfig", r=2, use_rslora=True, init_lora_weights=False, **_TARGETS),
    "LoRA on embeddings": lambda: _bert_with(
        "LoraConfig", r=2, init_lora_weights=False, target_modules=["word_embeddings", "query"]
    ),
    "DoRA": lambda: _bert_with("LoraConfig", r=2, use_dora=True, init_lora_weights=False, **_TARGETS),
    "IA3": lambda: _bert_with(
        "IA3Config", target_modules=["query", "value"], feedforward_modules=[], init_ia3_weights=False
    ),
    "AdaLoRA": lambda: _bert_with(
        "AdaLoraConfig", init_r=2, target_r=1, total_step=10, init_lora_weights=False, **_TARGETS
    ),
    "LoHa": lambda: _bert_with("LoHaConfig", r=2, init_weights=False, **_TARGETS),
    "LoKr": lambda: _bert_with("LoKrConfig", r=2, init_weights=False, **_TARGETS),
    "VeRA": lambda: _bert_with("VeraConfig", r=2, init_weights=False, **_TARGETS),
    "prompt tuning": lambda: _gpt2_with("PromptTuningConfig", num_virtual_tokens=3),
    "p-tuning": lambda: _gpt2_with("PromptEncoderConfig", num_virtual_tokens=3, encoder_hidden_size=8),
    "prefix tuning": lambda: _gpt2_with("PrefixTuningConfig", num_virtual_tokens=3),
    "prompt tuning of BERT": lambda: _bert_with("PromptTuningConfig", num_virtual_tokens=3),
    "BitFit": _biases_only,
}


def models() -> list[Case]:
    """Hugging Face models, and adapters of PEFT."""
    made = [
        Case(group="Hugging Face", name=kind, build=functools.partial(hugging_face, kind, **settings), inputs=inputs)
        for kind, settings, inputs in _MODELS
    ]
    made.append(
        Case(
            group="Hugging Face", name="MobileViTForImageClassification", build=_mobile_vit, inputs=lambda: _pixels(64)
        )
    )
    made += [Case(group="PEFT", name=name, build=build, inputs=_own_words) for name, build in _ADAPTERS.items()]
    return made
