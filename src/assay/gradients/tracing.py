"""Modules that use parameters by themselves, and layers that are called on what all records share.

`Tracing` runs both with shared tensors in place of parameters (`assay.gradients.rules.shared`). A module whose code has
no rule for this runs once for each record instead, from then on (`assay.gradients.rules.fallback`). Until the engine is
proven, all parameters are shared tensors while the model runs, so that code which reads the weight of another module is
found; afterwards only those that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.errors import UnsupportedModelError
from assay.gradients.inputs import Inputs
from assay.gradients.rules.attention import Projection
from assay.gradients.rules.fallback import PerRecordCall
from assay.gradients.rules.functions import ALONE, FUNCTIONS, by_record
from assay.gradients.rules.layers import ExpandRule, TapeRule, is_ordinary
from assay.gradients.rules.recurrent import Gates
from assay.gradients.rules.shared import Holder, Recorder, Shared, Source, Tracer, UnfitError, Uses, installed
from assay.gradients.units import Forwards, Traced, Unit, Units
from assay.gradients.uses.base import Use
from assay.gradients.uses.tables import SharedRows
from assay.models import compat

Expand = Callable[..., Any]
"""Runs a unit once for each record, with its arguments."""


def real(parameter: Any) -> Any:
    """The parameter that a shared tensor stands for; None for one that was computed."""
    return parameter.parameter if type(parameter) is Shared else parameter


def check_rows(path: str, args: Sequence[Any]) -> None:
    """Refuse arguments that all records share, for layers that need a row for each record.

    Raises:
        UnsupportedModelError: There is one; the message names the layer.
    """
    if any(type(t) is Shared for t in pytree.tree_leaves(args)):
        raise UnsupportedModelError(
            f"{path or 'the model'} computes with parameters of other layers in a way that gives no gradient for each "
            "record: expand them to all records before the call, or freeze them (requires_grad_(False))"
        )


class Tracing:
    """Runs traced modules and layers on constants, and knows which calls have constants.

    Args:
        model: The model.
        units: Its units.
        recorder: The engine's part.
        forwards: The forwards that the engine replaced.
        expand: Runs a module once for each record.
    """

    def __init__(self, model: nn.Module, units: Units, recorder: Recorder, forwards: Forwards, expand: Expand) -> None:
        self._model, self._recorder, self._forwards, self._expand = model, recorder, forwards, expand
        self.inputs = Inputs(model, recorder.proven)
        self._tracer = Tracer(recorder, FUNCTIONS, by_record, ALONE, self.inputs)
        self.traced = units.traced
        self.whole = False
        """Whether parameters are split over ranks: then traced modules run once for each record."""
        ruled: list[Unit[Any]] = [*units.taped, *units.expanded]
        ruled = [unit for unit in ruled if is_ordinary(unit.rule)] + [*units.attending, *units.recurring]
        self._layers: list[Holder] = [
            (unit.module._parameters, name, canonical) for unit in ruled for name, canonical in unit.names.items()
        ]
        self._layers += [holder for traced in units.traced for holder in traced.holders]
        self._every = self._layers
        self._own = dict(model.named_parameters())
        self._compiled = compat.compiled(model)
        self._stack: ExitStack | None = None
        self._hooks = self._hooked(model)

    def _hooked(self, model: nn.Module) -> list[Any]:
        def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
            if module is model and self._stack is None and torch.is_grad_enabled() and not self._forwards.suspended:
                self._begin(args, kwargs)

        def end(module: nn.Module, _args: Any, _output: Any) -> None:
            if module is model and not self._forwards.suspended:
                self._end()

        return [
            model.register_forward_pre_hook(begin, with_kwargs=True),
            # before anybody looks at the parameters again, and also if the model fails
            model.register_forward_hook(end, always_call=True, prepend=True),
        ]

    def _begin(self, args: Any, kwargs: Any) -> None:
        self.inputs.begin(args, kwargs)
        self._tracer.records = self.inputs.records
        self._stack = ExitStack()
        if self._compiled or self.whole:  # compiled graphs take neither function modes nor shared tensors
            return
        self._stack.enter_context(installed(self._tracer, self._layers, None))
        if not self._recorder.proven():
            self._stack.enter_context(self.inputs.marking())

    def _end(self) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    def stop(self) -> None:
        """Take the hooks off the model."""
        self._end()
        for hook in self._hooks:
            hook.remove()

    def settle(self) -> bool:
        """The engine is proven: watch only the layers whose parameters others read. Whether anything is left to do."""
        self._tracer.settle()
        self._layers = [holder for holder in self._layers if holder[2] in self._tracer.touched]
        return bool(self.traced or self._layers or self.inputs.several())

    def start_over(self, args: Any, kwargs: Any) -> None:
        """The call that has just begun is one of the first batch: its uses of parameters are decided again."""
        self._end()
        self._tracer.start_over()
        self.inputs.again = True
        self._layers = self._every
        self._begin(args, kwargs)

    def run(self, traced: Traced, *args: Any, **kwargs: Any) -> Any:
        """Call a module that uses parameters by itself."""
        unit = traced.unit
        if isinstance(unit.rule, PerRecordCall) and self._is_second(unit.module, args, kwargs):
            unit.rule.locate(unit.module, args, kwargs, self.inputs.records)
            traced.once_each = True
        if traced.once_each or self.whole:
            return self._expand(unit, *args, **kwargs)
        try:
            with (
                self._tracer.within(self._rows(unit, args, kwargs)),
                installed(self._tracer, traced.holders, unit.module),
            ):
                out = unit.module.forward(*args, **kwargs)
            if unit.module is self._model and any(type(t) is Shared for t in pytree.tree_leaves(out)):
                raise UnfitError([], "the model returns it")
            return out
        except UnfitError as error:
            if error.final or (unit.module is not self._model and unit.module not in error.owners):
                raise
        check_rows(unit.path, (*args, kwargs))
        traced.once_each = True
        return self._expand(unit, *args, **kwargs)

    def _is_second(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a module is called with the records in the second dimension, or a later one. The proof checks it."""
        records = self.inputs.records
        if self._recorder.proven() or not records:
            return False
        maps = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim() > 2]
        if not maps:
            return False
        sizes = {t.shape[0] for t in maps}  # several, or none that rows of all records would have
        says = getattr(module, "batch_first", None) is False or len(sizes) > 1 or any(s % records for s in sizes)
        return says and maps[0].shape[1] == records and all(records in t.shape[1:] for t in maps)

    def _rows(self, unit: Unit[ExpandRule], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """How many rows stand for the records in this call: a multiple of the records if some are folded."""
        records = self.inputs.records
        try:
            rows = unit.rule.records(unit.module, args, kwargs)
        except UnsupportedModelError:  # called without tensors
            return records
        return rows if not records or (rows and rows % records == 0) else records

    def is_constant(self, unit: Unit[TapeRule], x: Tensor) -> bool:
        """Whether a layer is called on what all records share.

        Raises:
            UnsupportedModelError: It is, and its rule has no way for that.
        """
        if isinstance(unit.rule, Gates):
            return False
        found = type(x) is Shared or self.inputs.constant(unit.path, x)
        if found and not isinstance(unit.rule, Projection) and not is_ordinary(unit.rule):
            raise UnsupportedModelError(
                f"{unit.path} is called on a tensor of shape {tuple(x.shape)} that all records share, which its rule "
                "does not cover: expand the tensor to all records, or freeze the layer (requires_grad_(False))"
            )
        return found

    def is_called_with_others(self, unit: Unit[Any]) -> bool:
        """Whether a layer is called with something else in place of its parameters (`torch.func.functional_call`).

        Raises:
            UnsupportedModelError: It is, and its rule has no way for that.
        """
        held = unit.module._parameters
        if self.whole or all(real(held.get(n)) is self._own[c] for n, c in unit.names.items() if n in held):
            return False
        if not is_ordinary(unit.rule) or isinstance(unit.module, nn.EmbeddingBag):
            raise UnsupportedModelError(
                f"{unit.path} ({type(unit.module).__name__}) is called with other weights than its own "
                "(torch.func.functional_call), which gives no gradient for each record: call it as it is, or compute "
                "with torch.nn.functional in the module that makes the weights"
            )
        return True

    def states(self, given: Any) -> Any:
        """The arguments of a recurrent layer, where a first state that all records share has a row for each of them.

        The records are second in a state. All its rows are computed alike, so a record's gradient is pulled back
        through the first one: the proof compares what comes of it with autograd's.
        """

        def rows(t: Any) -> Any:
            if type(t) is not Shared or t.dim() != 3 or t.shape[1] != self._tracer.records:
                return t
            if not self._recorder.proven() and not torch.equal(t.value, t.value[:, :1].expand_as(t.value)):
                return t  # refused: each record has a state of its own, by its place in the batch
            first: Any = t[:, :1]
            return self._tracer.copies(first).squeeze(2).transpose(0, 1)

        return pytree.tree_map(rows, given)

    def on_constant(self, unit: Unit[TapeRule], x: Tensor) -> Any:
        """Call a layer on what all records share: the result is shared."""
        tracer, module = self._tracer, unit.module
        if isinstance(module, nn.Embedding) and type(x) is not Shared:
            return self._looked_up(unit, module, x)
        params: dict[str, Any] = {}
        for name, held in module._parameters.items():
            p = real(held)
            params[name] = tracer.parameter(unit.names[name], p, None) if name in unit.names else p
        if type(x) is not Shared:
            x = tracer.shared(x, ())
        return unit.rule.forward(module, params, x)

    def _looked_up(self, unit: Unit[TapeRule], module: nn.Embedding, index: Tensor) -> Shared:
        """Rows of a table that all records use: gradients are kept for these rows only."""
        proven, weight = self._recorder.proven(), real(module.weight)
        table = weight.detach() if proven else self._recorder.stand_in(weight)
        rows = F.embedding(index, table, module.padding_idx)
        rows = rows.requires_grad_() if proven else rows
        name, flat = unit.names["weight"], index.reshape(-1)

        def uses(use: Use) -> Uses:
            g = use.per_record()
            g = g.reshape(len(g), len(flat), -1)
            if module.padding_idx is not None:
                g = g.masked_fill((flat == module.padding_idx).unsqueeze(1), 0.0)
            return [(name, SharedRows(flat, g, module.num_embeddings))]

        return self._tracer.shared(rows, (Source(rows, name, uses, None),))

    def once_each(self) -> Sequence[nn.Module]:
        """The traced modules that run once for each record."""
        return [traced.unit.module for traced in self.traced if traced.once_each or self.whole]
