"""`nn.RNN`, `nn.LSTM` and `nn.GRU` by the rule of a linear layer: gates are recorded, the rest has no parameter.

Every gate is a linear map of the input plus a linear map of the state before it. The map of the input is one recorded
call for all positions. The gradient of its output is the gradient of the gates, and it gives both weights and both
biases: with the inputs for the one map, and with the states for the other. So no record needs a copy of a weight. torch
computes the whole layer in one function; here the same is computed position by position.

All options of torch's layers are covered: layers, directions, dropout between layers, projections, a given state, and
packed sequences. A packed sequence is padded first; at a padded position the state stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from assay.errors import UnsupportedModelError
from assay.gradients import products
from assay.gradients.rules import lstm
from assay.gradients.uses.base import Apart, Dense, LayerUse, Outer, Rank1, Use

KINDS = (nn.RNN, nn.LSTM, nn.GRU)


class Record(Protocol):
    """Runs a `TapeRule` on an input and records it."""

    def __call__(self, rule: Any, x: Tensor) -> Tensor:
        """The rule's output, the record first."""
        ...


def ruled(module: nn.Module) -> bool:
    """Whether `recur` computes what this module does: a class of torch's with its own forward and no other weight."""
    kind = next((kind for kind in KINDS if isinstance(module, kind)), None)
    return (
        kind is not None
        and type(module).forward is kind.forward
        and "forward" not in vars(module)
        and isinstance(module, nn.RNNBase)
        and {name for name, _ in module.named_parameters()} == {name for names in module._all_weights for name in names}
    )


def recur(
    module: nn.RNNBase,
    params: Mapping[str, Tensor],
    record: Record,
    quick: bool,
    x: Tensor | PackedSequence,
    hx: Tensor | tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor | PackedSequence, Tensor | tuple[Tensor, Tensor]]:
    """What `module.forward(x, hx)` computes, with the map of the inputs by `record`.

    Args:
        module: The layer.
        params: Its parameters, as the pass is to use them.
        record: Runs the map of the inputs.
        quick: Whether measurements may choose how to multiply.
        x: The inputs.
        hx: The state before the first position; zeros by default.

    Raises:
        UnsupportedModelError: The input has no record dimension.
    """
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x, batch_first=True)
        out, last = _layers(module, params, record, quick, padded, hx, lengths)
        sort = x.sorted_indices is not None
        packed = pack_padded_sequence(out, lengths, batch_first=True, enforce_sorted=not sort)
        return packed, last
    if x.dim() != 3:
        raise UnsupportedModelError(
            f"{type(module).__name__} was given input of shape {tuple(x.shape)} without a record dimension"
        )
    out, last = _layers(module, params, record, quick, x if module.batch_first else x.transpose(0, 1), hx, None)
    return out if module.batch_first else out.transpose(0, 1), last


def _layers(
    module: nn.RNNBase,
    params: Mapping[str, Tensor],
    record: Record,
    quick: bool,
    x: Tensor,
    hx: Tensor | tuple[Tensor, Tensor] | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
    """Outputs [records, positions, width] and last states, layer by layer."""
    directions = 2 if module.bidirectional else 1
    starts = _starts(module, x, hx)
    inside = None
    if lengths is not None:
        inside = (torch.arange(x.shape[1]).unsqueeze(1) < lengths).unsqueeze(2).to(x.device).unbind(0)
    last: list[tuple[Tensor, Tensor]] = []
    for layer in range(module.num_layers):
        outs = []
        for direction in range(directions):
            steps = _Steps(module, f"_l{layer}{'_reverse' * direction}", bool(direction), inside, quick)
            out, end = steps.run(params, record, x, starts[len(last)])
            outs.append(out)
            last.append(end)
        whole = outs[0] if directions == 1 else torch.cat(outs, 2)
        if layer < module.num_layers - 1:  # positions first, as torch does, so that the same numbers are drawn
            whole = F.dropout(whole, module.dropout, module.training)
        x = whole.transpose(0, 1)
    hidden = torch.stack([h for h, _ in last])
    return x, (hidden, torch.stack([c for _, c in last])) if isinstance(module, nn.LSTM) else hidden


def _starts(
    module: nn.RNNBase, x: Tensor, hx: Tensor | tuple[Tensor, Tensor] | None
) -> Sequence[tuple[Tensor, Tensor]]:
    """The first state and cell of every layer and direction; they are the same tensor where there is no cell."""
    count = module.num_layers * (2 if module.bidirectional else 1)
    if hx is None:
        h = x.new_zeros(len(x), module.proj_size or module.hidden_size)
        c = x.new_zeros(len(x), module.hidden_size)
        return [(h, c)] * count
    h, c = hx if isinstance(hx, tuple) else (hx, hx)
    if h.dim() != 3 or h.shape[:2] != (count, len(x)) or c.shape[:2] != (count, len(x)):
        raise UnsupportedModelError(
            f"{type(module).__name__} was given a state of shape {tuple(h.shape)} for {len(x)} records: "
            f"[{count}, {len(x)}, {module.proj_size or module.hidden_size}] was expected"
        )
    return list(zip(h.unbind(0), c.unbind(0), strict=True))


@dataclass(slots=True)
class _Steps:
    """One layer in one direction."""

    module: nn.RNNBase
    suffix: str
    backwards: bool
    inside: Sequence[Tensor] | None
    quick: bool

    def run(
        self, params: Mapping[str, Tensor], record: Record, x: Tensor, start: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Outputs [positions, records, width], and the last state and cell."""
        linear = products.linear if self.quick else F.linear
        gates = Gates(self.suffix, gru=isinstance(self.module, nn.GRU), linear=linear)
        given = record(gates, x)
        weight, bias = params[f"weight_hh{self.suffix}"], params.get(f"bias_hh{self.suffix}")
        if self._is_plain_lstm and lstm.applies(weight, given):
            out, h, c, gates.before = lstm.Steps.apply(given, weight, *start, self.backwards, self.quick)  # type: ignore[no-untyped-call]
            return out, (h, c)
        inputs = given.unbind(1)
        step = self._cell(weight.t(), bias, gates)
        order = range(len(inputs) - 1, -1, -1) if self.backwards else range(len(inputs))
        h, c = start
        before = [h] * len(inputs)
        outs: list[Tensor | None] = [None] * len(inputs)
        for t in order:
            before[t] = h.detach()
            new_h, new_c = step(inputs[t], h, c)
            if self.module.proj_size:
                new_h = record(Shrink(self.suffix), new_h)
            if self.inside is None:
                h, c = new_h, new_c
                outs[t] = h
            else:
                outs[t] = new_h * self.inside[t]
                h, c = torch.where(self.inside[t], new_h, h), torch.where(self.inside[t], new_c, c)
        gates.before = torch.stack(before, 1)
        return torch.stack([out for out in outs if out is not None]), (h, c)

    @property
    def _is_plain_lstm(self) -> bool:
        return isinstance(self.module, nn.LSTM) and not self.module.proj_size and self.inside is None

    def _cell(
        self, weight: Tensor, bias: Tensor | None, gates: Gates
    ) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
        """How one position goes: from the input's part of the gates, the state and the cell, to the next two."""
        module = self.module
        if isinstance(module, nn.LSTM):
            return lambda x, h, c: _lstm(torch.addmm(x, h, weight), c)
        if isinstance(module, nn.GRU):
            kept = gates.reset
            return lambda x, h, _: _gru(x, h @ weight if bias is None else torch.addmm(bias, h, weight), h, kept)
        activation = torch.tanh if module.nonlinearity == "tanh" else torch.relu

        def plain(x: Tensor, h: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            h = activation(torch.addmm(x, h, weight))
            return h, h

        return plain


def _lstm(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, 1)
    c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
    return o.sigmoid() * c.tanh(), c


def _gru(x: Tensor, hidden: Tensor, h: Tensor, kept: list[Tensor]) -> tuple[Tensor, Tensor]:
    width = h.shape[1]
    (xr, xn), (hr, hn) = x.split((2 * width, width), 1), hidden.split((2 * width, width), 1)
    r, z = (xr + hr).sigmoid().chunk(2, 1)
    kept.append(r.detach())
    n = torch.addcmul(xn, r, hn).tanh()
    h = torch.lerp(n, h, z)
    return h, h


_OF_A_GATE = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Joined:
    """Both weights and both biases of W_ih x + b_ih + W_hh h + b_hh: one linear map of x and h side by side.

    The factors change places: the weighted sum copies the first one, and x and h are narrower than the gates.
    """

    def __init__(self, g: Tensor, x: Tensor, h: Tensor) -> None:
        first = 1 if g.stride(0) < g.stride(1) else 0  # in memory
        both = torch.cat([x.transpose(0, first), h.transpose(0, first)], 2).transpose(0, first)
        self.weights, self._inputs = Outer(both, g), x.shape[2]
        self._bias = Dense(g.sum(1))

    def norm(self) -> Tensor:
        return self.sq_norm().sqrt_().unsqueeze(1)

    def sq_norm(self) -> Tensor:
        return self.weights.sq_norm().add_(self._bias.sq_norm(), alpha=2)

    def weighted_sums(self, weights: Tensor) -> Sequence[Tensor]:
        both, bias = self.weights.weighted_sum(weights).t(), self._bias.weighted_sum(weights)
        return both[:, : self._inputs].contiguous(), both[:, self._inputs :].contiguous(), bias, bias.clone()

    def apart(self) -> Sequence[Use]:
        x, g = self.weights.g, self.weights.x
        return Outer(g, x[..., : self._inputs]), Outer(g, x[..., self._inputs :]), self._bias, self._bias


@dataclass(slots=True)
class Gates:
    """A `TapeRule` for the gates of one layer in one direction: the map of the inputs, and what it shows of the rest.

    A gate is W_ih x + b_ih + W_hh h + b_hh, so the gradient of the recorded output is that of all four terms. The new
    gate of a GRU is W_in x + b_in + r (W_hn h + b_hn): there the second pair's gradient is r times the first's.
    """

    suffix: str
    gru: bool
    linear: Callable[..., Tensor] = F.linear
    before: Tensor = field(default_factory=lambda: torch.empty(0))
    """The state before each position, [records, positions, width]; known when the pass is over."""
    reset: list[Tensor] = field(default_factory=list)
    """The reset gates of a GRU, in the order of the steps."""

    def forward(self, module: nn.RNNBase, params: Any, x: Tensor) -> Tensor:  # noqa: ARG002
        """W_ih x + b_ih, and b_hh unless the layer is a GRU, which multiplies it."""
        bias = params.get(f"bias_ih{self.suffix}")
        if bias is not None and not self.gru:
            bias = bias + params[f"bias_hh{self.suffix}"]
        return self.linear(x, params[f"weight_ih{self.suffix}"], bias)

    def uses(self, module: nn.RNNBase, wanted: frozenset[str], x: Tensor, g: Tensor) -> tuple[Sequence[str], LayerUse]:
        """The uses of both weights and both biases."""
        gh = g
        if not self.gru and wanted.issuperset(names := [f"{name}{self.suffix}" for name in _OF_A_GATE]):
            return names, Joined(g, x, self.before.to(g.dtype))
        if self.gru:
            reset = self.reset[::-1] if self.suffix.endswith("_reverse") else self.reset
            r = torch.stack(reset, 1).to(g.dtype)
            gh = torch.cat([g[..., : 2 * module.hidden_size], g[..., 2 * module.hidden_size :] * r], 2)
        made: dict[str, Callable[[], Use]] = {
            f"weight_ih{self.suffix}": lambda: Outer(g, x),
            f"weight_hh{self.suffix}": lambda: Outer(gh, self.before.to(g.dtype)),
            f"bias_ih{self.suffix}": lambda: Dense(g.sum(1)),
            f"bias_hh{self.suffix}": lambda: Dense(gh.sum(1)),
        }
        names = [name for name in made if name in wanted]
        return names, Apart([made[name]() for name in names])

    def owns(self, name: str) -> bool:
        """Whether the recorded gradient is that of this parameter."""
        return name.endswith(self.suffix) and not name.startswith("weight_hr")


@dataclass(frozen=True, slots=True)
class Shrink:
    """A `TapeRule` for the projection of an LSTM's state at one position."""

    suffix: str

    def forward(self, module: nn.RNNBase, params: Any, x: Tensor) -> Tensor:  # noqa: ARG002
        """W_hr x."""
        return F.linear(x, params[f"weight_hr{self.suffix}"])

    def uses(self, module: nn.RNNBase, wanted: frozenset[str], x: Tensor, g: Tensor) -> tuple[Sequence[str], LayerUse]:  # noqa: ARG002
        """The use of a linear map without bias."""
        return [f"weight_hr{self.suffix}"], Apart([Rank1(g, x)])

    def owns(self, name: str) -> bool:
        """Whether the recorded gradient is that of this parameter."""
        return name == f"weight_hr{self.suffix}"
