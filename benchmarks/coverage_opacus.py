"""The layers that Opacus tests, with the options and sizes from which its tests draw theirs.

The ranges are those of `opacus/tests/grad_samples`; the draws are ours, a hundred for each of its tests, and those that
no layer accepts (groups that do not divide the channels) are left out, as there. Layers of Opacus itself take part
where it is installed.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from benchmarks.coverage_cases import Case

GROUP, DRAWS = "Opacus's own cases", 100
Inputs = Mapping[str, Tensor]


def _numbers(*shape: int) -> Callable[[], Inputs]:
    return lambda: {"x": torch.randn(*shape)}


def _words(most: int, *shape: int) -> Callable[[], Inputs]:
    return lambda: {"x": torch.randint(most, shape)}


def _second(inputs: Inputs) -> tuple[Any, ...]:
    """Records in the second dimension."""
    return (inputs["x"].transpose(0, 1),)


def _from_second(output: Any) -> Any:
    first = output[0] if isinstance(output, tuple) else output
    return first.transpose(0, 1)


def _convolution(kind: str, draw: random.Random) -> Case | None:
    channels = draw.choice([1, 3, 32])
    out = draw.choice([channels * 2, max(1, channels // 2)])
    records, options = draw.randint(0, 4), {"groups": draw.randint(1, 12 if kind == "Conv1d" else 16)}
    if kind == "Conv1d":
        sides: tuple[int, ...] = (draw.randint(6, 10),)
        options |= {"kernel_size": draw.randint(2, 3), "stride": draw.randint(1, 2), "dilation": draw.randint(1, 2)}
        options["padding"] = draw.choice([0, 1, 2, "same", "valid"])
    elif kind == "Conv2d":
        sides = (draw.randint(11, 17), draw.randint(11, 17))
        options |= {"kernel_size": draw.randint(2, 4), "stride": draw.randint(1, 2), "dilation": draw.randint(1, 3)}
        options["padding"] = draw.choice([0, 2, "same", "valid"])
    else:
        sides = (draw.randint(3, 6), draw.randint(6, 10), draw.randint(6, 10))
        options |= {"kernel_size": draw.choice([2, 3, (1, 2, 3)]), "stride": draw.choice([1, 2, (1, 2, 3)])}
        options |= {"padding": draw.choice([0, 2, (1, 2, 3), "same", "valid"]), "dilation": draw.choice([1, (1, 2, 2)])}
    uneven = channels % options["groups"] or out % options["groups"]
    if uneven or (options["padding"] == "same" and options["stride"] != 1):
        return None
    made = getattr(nn, kind)
    return _case(
        f"{kind} {options}", lambda: made(channels, out, **options), _numbers(records, channels, *sides), records
    )


def _case(name: str, build: Callable[[], nn.Module], inputs: Callable[[], Inputs], records: int, **others: Any) -> Case:
    return Case(group=GROUP, name=f"{name}, {records} records", build=build, inputs=inputs, records=records, **others)


def _attention(draw: random.Random) -> Case:
    from opacus.layers import DPMultiheadAttention

    records, length, heads, dim = draw.randint(1, 4), draw.randint(16, 20), draw.choice([1, 2]), 4
    options = {name: draw.random() < 0.5 for name in ("bias", "add_bias_kv", "add_zero_attn")}
    wide = {"kdim": dim, "vdim": dim} if draw.random() < 0.5 else {}

    def enter(inputs: Inputs) -> tuple[Any, ...]:
        return inputs["x"].transpose(0, 1).unbind(-1)

    build = lambda: DPMultiheadAttention(dim, heads, dropout=0.0, **options, **wide)  # noqa: E731
    name = f"DPMultiheadAttention {options | wide}"
    return _case(name, build, _numbers(records, length, dim, 3), records, enter=enter, leave=_from_second)


def _recurrent(draw: random.Random) -> Case:
    from opacus.layers import DPGRU, DPLSTM, DPRNN

    kind, records, length = draw.choice([DPRNN, DPGRU, DPLSTM]), draw.randint(1, 3), draw.randint(1, 3)
    width, hidden, first = draw.randint(4, 5), draw.randint(8, 10), draw.random() < 0.5
    options = {"num_layers": draw.choice([1, 2]), "bias": draw.random() < 0.5, "bidirectional": draw.random() < 0.5}
    packed, ordered = draw.random() < 0.5, draw.random() < 0.5
    lengths = torch.tensor([draw.randint(1, length) for _ in range(records)])
    lengths = lengths.sort(descending=True).values if ordered else lengths

    def inputs() -> Inputs:
        return {"x": torch.randn(records, length, width), "lengths": lengths}

    def enter(given: Inputs) -> tuple[Any, ...]:
        x = given["x"]
        if packed:
            return (pack_padded_sequence(x, given["lengths"], batch_first=True, enforce_sorted=False),)
        return (x if first else x.transpose(0, 1),)

    def leave(output: Any) -> Any:
        found = output[0]
        if isinstance(found, PackedSequence):
            return pad_packed_sequence(found, batch_first=True, total_length=length)[0]
        return found if first else found.transpose(0, 1)

    name = f"{kind.__name__} {options | {'batch_first': first, 'packed': packed}}"
    build = lambda: kind(width, hidden, batch_first=first, **options)  # noqa: E731
    return _case(name, build, inputs, records, enter=enter, leave=leave)


def _bag(draw: random.Random) -> Case:
    records, most, words, width = draw.randint(4, 8), draw.randint(3, 7), draw.randint(10, 32), draw.randint(10, 17)
    mode = draw.choice(["sum", "mean"])
    sizes = torch.tensor([draw.randint(1, most) for _ in range(records)])

    def inputs() -> Inputs:
        return {"x": torch.stack([torch.randperm(words)[:most] for _ in range(records)]), "sizes": sizes}

    def enter(given: Inputs) -> tuple[Any, ...]:
        parts = [row[:size] for row, size in zip(given["x"], given["sizes"], strict=True)]
        return torch.cat(parts), given["sizes"].cumsum(0) - given["sizes"]

    return _case(f"EmbeddingBag {mode}", lambda: nn.EmbeddingBag(words, width, mode=mode), inputs, records, enter=enter)


def _placed(first: bool) -> dict[str, Any]:
    return {} if first else {"enter": _second, "leave": _from_second}


def _embedding(draw: random.Random) -> Case:
    records, dims, words, width = draw.randint(0, 4), draw.randint(2, 4), draw.randint(2, 32), draw.randint(10, 17)
    shape = (records, draw.randint(1, 5), draw.randint(1, 4), draw.randint(1, 2))[:dims]
    first = draw.random() < 0.5
    name = f"Embedding of {dims} dimensions{'' if first else ', records second'}"
    return _case(name, lambda: nn.Embedding(words, width), _words(words, *shape), records, **_placed(first))


def _linear(draw: random.Random) -> Case | None:
    records, dims, width, bias = draw.randint(0, 4), draw.randint(2, 4), draw.randint(10, 17), draw.random() < 0.5
    first = draw.random() < 0.5
    if dims == 2 and not first:
        return None
    shape = (records, *(draw.randint(1, 4), draw.randint(1, 3))[: dims - 2], width)
    name = f"Linear of {dims} dimensions{'' if first else ', records second'}"
    return _case(name, lambda: nn.Linear(width, width + 2, bias=bias), _numbers(*shape), records, **_placed(first))


def _sequence_bias(draw: random.Random) -> Case:
    from opacus.layers import SequenceBias

    records, length, width = draw.randint(0, 4), draw.randint(10, 20), draw.randint(4, 8)
    first = draw.random() < 0.5
    name = f"SequenceBias{'' if first else ', records second'}"
    return _case(name, lambda: SequenceBias(width, first), _numbers(records, length, width), records, **_placed(first))


def _group_norm(draw: random.Random) -> Case | None:
    records, channels = draw.randint(0, 4), draw.randint(1, 8)
    groups = draw.choice([1, 4, channels])
    if channels % groups:
        return None
    sides = draw.randint(5, 10), draw.randint(4, 8)
    name = f"GroupNorm({groups}, {channels})"
    return _case(name, lambda: nn.GroupNorm(groups, channels), _numbers(records, channels, *sides), records)


def _instance_norm(dims: int, draw: random.Random) -> Case:
    records, channels = draw.randint(1, 4), draw.randint(1, 3)
    sides = (draw.randint(5, 10), draw.randint(4, 8), draw.randint(1, 4))[:dims]
    made = getattr(nn, f"InstanceNorm{dims}d")
    return _case(made.__name__, lambda: made(channels, affine=True), _numbers(records, channels, *sides), records)


def _norm(kind: str, draw: random.Random) -> Case | None:
    records, dims, over = draw.randint(1, 4), draw.randint(2, 4), draw.randint(1, 3)
    if over >= dims:
        return None
    sides = (draw.randint(1, 4), draw.randint(1, 3), draw.randint(5, 10))[4 - dims :]
    made, shape = getattr(nn, kind), list(sides[-over:])
    return _case(f"{kind} over {shape}", lambda: made(shape), _numbers(records, *sides), records)


_DRAWN: list[Callable[[random.Random], Case | None]] = [
    lambda draw: _convolution("Conv1d", draw),
    lambda draw: _convolution("Conv2d", draw),
    lambda draw: _convolution("Conv3d", draw),
    _bag,
    _embedding,
    _group_norm,
    lambda draw: _instance_norm(1, draw),
    lambda draw: _instance_norm(2, draw),
    lambda draw: _instance_norm(3, draw),
    lambda draw: _norm("LayerNorm", draw),
    _linear,
    lambda draw: _norm("RMSNorm", draw),
]
_OF_OPACUS: list[Callable[[random.Random], Case | None]] = [_attention, _recurrent, _sequence_bias]


def opacus_cases() -> Iterator[Case]:
    """A hundred draws for each of Opacus's tests of layers."""
    own = _OF_OPACUS if importlib.util.find_spec("opacus") else []
    for number, family in enumerate([*_DRAWN, *own]):
        draw, made = random.Random(number), 0
        while made < DRAWS:
            case = family(draw)
            if case is not None:
                made += 1
                yield case
