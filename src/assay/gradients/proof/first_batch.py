"""What the engine proves about the user's model: all of it before anything is released, a part on random later batches.

1. Separation: the summed losses of a random half of the records have gradient zero with respect to the other records'
   activations. With respect to their own they have the same gradient as the sum of all losses. This fails for layers
   and losses that mix records: batch statistics, attention across the batch, a ranking, a hook that scales gradients by
   the batch. It fails for models whose first dimension is not the record, too.
2. Isolation (`assay.gradients.proof.isolation`): the outputs of a random half of the records do not change when the
   others are replaced, or when there are more or fewer. This fails if records are mixed where autograd does not see it:
   before the first trainable layer, or in detached batch statistics. It fails if the forward pass stores what it saw.
3. Stillness: neither pass writes into a parameter, the backward pass writes into no buffer, and after it the model
   computes what it did before.
4. Completeness: the per-record gradients add up to autograd's own gradient of the summed loss. With a secret weight for
   each record they add up to that of the weighted loss, so each belongs to its record. Stand-ins replace the parameters
   here, so nothing reaches a parameter's own `.grad` or a hook on it. A parameter that the losses do reach is used
   outside the module that owns it.
5. Enclosure: the loss reaches nothing trainable outside the model, whose gradient would be released without noise.

The choices come from the run's own randomness: without it, nobody can tell which records are compared, or when. Every
batch is checked for 5, for writes that versions show, and for modules that were added or changed their mode
(`assay.gradients.proof.inspector`).

A loss may mix records by numbers without gradients (weights by the batch's counts), which its values do not show. Code
that has the loss function itself can check that with `losses.separate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from assay.errors import UnsupportedModelError
from assay.gradients.chosen import owners
from assay.gradients.inputs import Layout, possible
from assay.gradients.proof import calls, isolation
from assay.gradients.proof.calls import SPLITS, Call, Coins, splits
from assay.gradients.proof.graph import Graph, reaches, used_outside
from assay.gradients.proof.isolation import mixes, writes
from assay.gradients.proof.rows import Where, opened
from assay.gradients.record_grads import RecordGrads
from assay.gradients.uses.persons import Persons


def not_first(path: str, shape: Sequence[int], records: int) -> str:
    """The message for a tensor whose first dimension is not the record."""
    return (
        f"{path or 'the model'} works on a tensor of shape {tuple(shape)} while the loss has {records} records: "
        "the first dimension must be the record (batch_first=True), one loss value each"
    )


def _mixes_back(path: str) -> str:
    return (
        f"the backward pass mixes records: what reaches {path or 'the model'} for some records' losses depends on the "
        "losses of the others (a hook or a function of its own that scales gradients by the batch). Per-record "
        "clipping cannot bound that"
    )


NO_RECORDS = (
    "the losses have no row for each record, or come from tensors in which the records are not first: put the record "
    "dimension first (batch_first=True)"
)


def _alike(some: Tensor, of_all: Tensor | None, layout: Layout, mine: Tensor) -> bool:
    """Whether these records have the same gradient by themselves as among all."""
    records = len(mine)
    if of_all is None:
        return False
    return calls.close(layout.by_record(some, records)[mine], layout.by_record(of_all, records)[mine])


def _groups(sizes: Sequence[int]) -> list[list[int]]:
    """The outputs in order, in groups whose gradients are held at once: none much larger than the largest output."""
    most = max(_SMALL_GROUP, *sizes)
    groups: list[list[int]] = []
    size = 0
    for i in range(len(sizes) - 1, -1, -1):  # gradients reach the last outputs first
        if not groups or size + sizes[i] > most:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += sizes[i]
    return groups


_SMALL_GROUP = 1 << 21  # numbers, 8 MB
SMALL_OUTPUT = 1 << 16
"""Numbers in an output that may be kept: until the losses are there, or as a leaf until the step ends."""
_COMPARED = 2  # halves of the records whose gradients are compared with those of all
_FAINT = 1e-5  # of how much the losses differ from each other
_FAINT_BATCHES = 16  # may show nothing but rounding; then the loop is refused: what is never proven may be wrong
_ATTRIBUTED = 1e-3  # a gradient that belongs to another record is off by far more; layers may compute in float32


def _apart_from(
    totals: Mapping[str, Tensor], expected: Mapping[str, Tensor], scale: float, low: torch.dtype, within: float = 0.0
) -> Iterable[str]:
    """The parameters whose sums differ by more than rounding, and `within` of their norm, from autograd's."""
    for name, total in totals.items():
        theirs = expected.get(name)
        gap = total if theirs is None else total - theirs
        least = 1e3 * torch.finfo(gap.dtype).eps if within == 0 else 1e-6
        rounding = max(least, 8 * torch.finfo(low).eps) * scale
        if float(gap.norm()) > rounding + within * float(total.norm()):
            yield name


def place_of(output: Tensor, whole: bool = False) -> Tensor | GradientEdge:
    """An output, or its place in the graph. A view is kept whole: what is written into its base moves its place."""
    return output if whole or output.grad_fn is None or output._is_view() else get_gradient_edge(output)


@dataclass(frozen=True, slots=True)
class _Seen:
    """An output of a module, or its place in the graph: a large one need not live until the losses are there."""

    path: str
    place: Tensor | GradientEdge
    shape: torch.Size
    dtype: torch.dtype
    version: int

    @classmethod
    def of(cls, path: str, output: Tensor) -> _Seen:
        """What is kept of an output."""
        return cls(path, place_of(output, output.numel() <= SMALL_OUTPUT), output.shape, output.dtype, output._version)

    @property
    def left_alone(self) -> bool:
        """Whether nothing has changed it in place, as far as that is known."""
        return isinstance(self.place, Tensor) and self.place._version == self.version


class Proof:
    """Collects what a forward pass shows, and checks it.

    Args:
        model: The model.
        copied: Gives a copy of the model as it is, sharing its parameters.
        coins: Where random choices come from.
        where: Where the records are in the arguments, as far as earlier batches have shown it.
        full: Check everything, as on the first batch, or a part.
    """

    def __init__(
        self, model: nn.Module, copied: Callable[[], nn.Module | None], coins: Coins, where: Where, *, full: bool = True
    ) -> None:
        self._model, self._copied, self._coins, self._where, self.full = model, copied, coins, where, full
        self._seen: list[_Seen] = []
        self._own: set[int] = set()  # of these, the per-record parameters
        self.layouts: dict[str, Layout] = {}
        """Where the records are in the outputs of each module; known after `before`."""
        self.left_alone: frozenset[str] = frozenset()
        """The modules whose outputs nothing has changed in place; known after `before`."""
        self.lowest_precision = torch.float64
        """The coarsest arithmetic met: completeness can hold no more precisely than that. Known after `before`."""
        self.known: Mapping[str, Layout] | None = None
        """Where they are by an earlier proof, if there was one: no other layout will do."""
        self._calls: list[Call] = []
        self._begun: list[tuple[Any, Any, calls.RandomState, dict[str, Tensor], nn.Module | None]] = []
        self._parameters: dict[str, Tensor] = {}
        self._buffers: dict[str, Tensor] = {}
        self._used: list[Call] = []
        self._faint = 0.0  # gradients that are in all no more than the rounding of such losses
        self._told_nothing = 0  # how many batches had no others
        self._single = False  # whether a single record has shown that the model remembers nothing
        self._weighed: tuple[Tensor, dict[str, Tensor]] | None = None  # weights, and autograd's gradients with them

    def saw(self, path: str, output: Tensor, *, second: bool = True) -> None:
        """Remember a recorded output, or (with `second` off) per-record parameters, whose rows are the records'."""
        if not second:
            self._own.add(len(self._seen))
        self._seen.append(_Seen.of(path, output))

    def _left_alone(self) -> frozenset[str]:
        changed = {one.path for one in self._seen if not one.left_alone}
        return frozenset(one.path for one in self._seen) - changed

    def _forget_outputs(self) -> None:
        self._seen, self._own = [], set()

    def forget(self) -> None:
        """Free the graph."""
        self._forget_outputs()
        self._calls, self._begun, self._used = [], [], []
        self._parameters, self._buffers = {}, {}

    def begin(self, args: Any, kwargs: Any) -> None:
        """The whole model is about to be called: remember what is needed to call it again."""
        model = self._model
        self._parameters = calls.copied(model.named_parameters())
        buffers, before = calls.copied(model.named_buffers()), self._copied()
        self._begun = [(args, kwargs, calls.random_state(), buffers, before)]

    def check_buffers(self) -> None:
        """Refuse buffers that a pass record by record has filled."""
        for name, b in self._model.named_buffers():
            if torch._C._functorch.is_functorch_wrapped_tensor(b):
                raise UnsupportedModelError(writes(f"buffer {name}"))

    def end(self, output: Any) -> None:
        """The whole model was called."""
        self.check_buffers()
        if not self._begun:
            return
        args, kwargs, state, buffers, before = self._begun.pop()
        self._check_parameters("forward")
        self._calls.append(
            Call(
                args=args,
                kwargs=kwargs,
                random_state=state,
                buffers=buffers,
                output=output,
                before=before,
                values=[t.detach().clone() for t in calls.tensors(opened(output))],
                drew=calls.drawn_since(state),
                wrote=calls.changed(buffers, self._model.named_buffers()),
            )
        )

    def _check_parameters(self, during: str) -> None:
        if not self._parameters:  # the model was not called
            return
        for name in sorted(calls.changed(self._parameters, self._model.named_parameters())):
            raise UnsupportedModelError(writes(f"parameter {name}", during))

    def before(self, losses: Tensor, graph: Graph) -> None:
        """Check separation and isolation, which need the graph but not the engine's backward pass."""
        self._buffers = calls.copied(self._model.named_buffers())
        known = losses.detach().double().nan_to_num(0, 0, 0)  # a constant in all losses changes no gradient
        self._faint = _FAINT * float((known - known.mean()).abs().sum())
        self._separation(losses, graph)
        self._check_still()
        reached = any(graph.holds(one.place) for one in self._seen)
        self.left_alone, self.lowest_precision = self._left_alone(), self._lowest_precision()
        self._forget_outputs()  # which nothing else needs, before more is called
        if len(losses) > 1 or not self._single:
            self._isolation(len(losses), graph, reached=reached)

    def after(self) -> None:
        """Check that the backward pass has not changed the model."""
        self._check_still()
        if self.full:
            for call in self._used:
                now = self._copied()
                if now is not None:
                    isolation.check_unmoved(call, now)

    def _check_still(self) -> None:
        """Refuse a backward pass that wrote into a parameter, or into a buffer that the forward pass does not write."""
        self._check_parameters("backward")
        wrote = {name for call in self._calls for name in call.wrote}
        for name in sorted(calls.changed(self._buffers, self._model.named_buffers()) - wrote):
            raise UnsupportedModelError(writes(f"buffer {name}", "backward"))

    def _isolation(self, records: int, graph: Graph, *, reached: bool) -> None:
        self._used = [call for call in self._calls if any(map(graph.holds, calls.tensors(call.output)))]
        if not self._used and reached:
            raise UnsupportedModelError(isolation.OUT_OF_SIGHT)
        for call in self._used:
            used = frozenset(i for i, t in enumerate(calls.tensors(call.output)) if graph.holds(t))
            call = replace(call, used=used)
            isolation.check(call, self._model, records, self._coins, self._where, full=self.full)
            # a record of zeros shows nothing
            self._single |= any(bool((t != 0).any()) for t in calls.tensors((call.args, call.kwargs)))

    def _lowest_precision(self) -> torch.dtype:
        return max((one.dtype for one in self._seen), key=lambda d: torch.finfo(d).eps, default=torch.float64)

    def _separation(self, losses: Tensor, graph: Graph) -> None:
        records = len(losses)
        reached = [i for i, one in enumerate(self._seen) if graph.holds(one.place)]
        seen = [self._seen[i] for i in reached]
        if not seen:
            return
        layouts = [self._possible(i, records) for i in reached]
        # with secret weights, contributions of two records cannot cancel
        weights = (0.5 + self._coins.uniform(records)).to(losses)

        masks = splits(records, self._coins, SPLITS if self.full else 1) if records > 1 else []
        halves = [half.to(losses.device) for mask in masks for half in ((mask, ~mask) if self.full else (mask,))]
        halves = halves or [torch.ones(records, dtype=torch.bool, device=losses.device)]
        unlike: list[set[Layout]] = [set() for _ in seen]  # layouts by which a half's gradients are not those of all
        for group in _groups([one.shape.numel() for one in seen]):

            def gradients(of: Tensor, group: Sequence[int] = group) -> list[Tensor | None]:
                some: Sequence[Any] = [seen[i].place for i in group]
                return list(torch.autograd.grad((losses * of).sum(), some, retain_graph=True, allow_unused=True))

            together = gradients(weights)
            for number, mine in enumerate(halves):
                found = gradients(weights * mine)
                for at, i in enumerate(group):
                    g, found[at] = found[at], None  # so that it is gone when the next half's are computed
                    if g is None:
                        continue
                    layout = layouts[i]
                    layout[:] = [way for way in layout if not reaches(way.by_record(g, records), ~mine)]
                    if layout and number < _COMPARED:
                        unlike[i] |= {way for way in layout if not _alike(g, together[at], way, mine)}
                    del g
        if left := [i for i, layout in enumerate(layouts) if not layout]:
            self._check_chosen(losses, weights, halves, [reached[i] for i in left])
            for i in left:
                layouts[i].append(Layout.CHOSEN)
        paths = [one.path for one in seen]
        self._settle(paths, layouts)
        for path, ways, wrong in zip(paths, layouts, unlike, strict=True):
            if ways[0] in wrong:
                raise UnsupportedModelError(_mixes_back(path))

    def _check_chosen(self, losses: Tensor, weights: Tensor, halves: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """Refuse rows that are not those of single records, in recorded outputs with these numbers.

        Raises:
            UnsupportedModelError: A row belongs to several records, or the tensor has no rows.
        """
        seen = [self._seen[number] for number in numbers]
        if own := [one.path for number, one in zip(numbers, seen, strict=True) if number in self._own]:
            raise UnsupportedModelError(mixes(own[0] or "the model"))
        places: Sequence[Any] = [one.place for one in seen]
        records = len(losses)

        def gradients(of: Tensor) -> Sequence[Tensor]:
            return torch.autograd.grad(
                (losses * of).sum(), places, retain_graph=True, allow_unused=True, materialize_grads=True
            )

        found = owners(losses, places) if all(one.shape for one in seen) else [None] * len(seen)
        for one, whose in zip(seen, found, strict=True):
            if whose is None:
                first = possible(tuple(one.shape), records)
                raise UnsupportedModelError(
                    mixes(one.path or "the model") if first else not_first(one.path, one.shape, records)
                )
        together = gradients(weights)
        for mine in halves:
            for one, whose, g, of_all in zip(seen, found, gradients(weights * mine), together, strict=True):
                assert whose is not None
                inside = mine.to(whose.device)[whose.clamp_min(0)] & (whose >= 0)
                if reaches(g, ~inside):
                    raise UnsupportedModelError(mixes(one.path or "the model"))
                if not calls.close(g[inside], of_all[inside]):
                    raise UnsupportedModelError(_mixes_back(one.path))

    def _possible(self, number: int, records: int) -> list[Layout]:
        """The layouts that a recorded tensor can have by its shape; only the known one, once the engine is proven."""
        path, shape = self._seen[number].path, self._seen[number].shape
        found = possible(tuple(shape), records, second=number not in self._own)
        if self.known is not None:
            found = [way for way in found if way is self.known.get(path, Layout.FIRST).within(shape, records)]
        return found

    def _settle(self, paths: Sequence[str], layouts: Sequence[list[Layout]]) -> None:
        """Decide where the records are for each module: in all its outputs in the same dimension.

        Raises:
            UnsupportedModelError: There is no such dimension.
        """
        ways: dict[str, list[Layout]] = {}
        chosen = {path for path, layout in zip(paths, layouts, strict=True) if Layout.CHOSEN in layout}
        for path, layout in zip(paths, layouts, strict=True):
            layout[:] = [Layout.CHOSEN] if path in chosen else layout
            ways[path] = [way for way in ways.get(path, layout) if way in layout]
        for path, layout in zip(paths, layouts, strict=True):
            if not ways[path]:
                raise UnsupportedModelError(
                    f"{path or 'the model'} is called with the records in different dimensions: put them first in "
                    "every call"
                )
            layout[:] = ways[path]
            self.layouts[path] = layout[0]

    def weigh(
        self,
        losses: Tensor,
        views: int | Persons,
        parameters: Mapping[str, nn.Parameter],
        stand_ins: Mapping[int, Tensor],
    ) -> None:
        """Have autograd compute the gradient with a secret weight for each record, for `compare`.

        Args:
            losses: One loss per row.
            views: Which rows belong to one record, as for `Engine.collect`.
            parameters: The trained parameters.
            stand_ins: What stands for each of them in this pass.
        """
        named = {name: stand_ins[id(p)] for name, p in parameters.items() if id(p) in stand_ins}
        if not named:
            return
        weights = 0.5 + self._coins.uniform(len(views) if isinstance(views, Persons) else len(losses) // views)
        rows = weights.repeat_interleave(views.counts.cpu() if isinstance(views, Persons) else views)
        found = torch.autograd.grad(
            (losses * rows.to(losses)).sum(), list(named.values()), retain_graph=True, allow_unused=True
        )
        self._weighed = weights, {name: g for name, g in zip(named, found, strict=True) if g is not None}

    def _shows_nothing(self, scale: float, expected: Mapping[str, Tensor]) -> bool:
        """Whether all gradients of a batch are rounding, and few batches were like that."""
        theirs = math.sqrt(sum(float(g.double().square().sum()) for g in expected.values()))
        self._told_nothing += 1
        return max(scale, theirs) <= self._faint and self._told_nothing <= _FAINT_BATCHES

    def compare(self, grads: RecordGrads, expected: Mapping[str, Tensor], low: torch.dtype) -> bool:
        """Whether completeness holds; False if this batch cannot tell.

        It cannot if a gradient is not finite, or if all are rounding (a student that is its own teacher at first).

        Raises:
            UnsupportedModelError: It does not hold, or the losses depend on no trainable parameter.
        """
        if not expected:
            raise UnsupportedModelError(
                "these losses depend on no trainable parameter of the model: they were computed without it, or without "
                "its own forward"
            )
        norms = grads.norms([0] * grads.layers)
        if grads.nonfinite:
            return False
        scale = float(norms.sum())
        for name in _apart_from(grads.total(torch.ones_like(norms)), expected, scale, low):
            if self._shows_nothing(scale, expected):
                return False
            raise UnsupportedModelError(used_outside(name))
        if self._weighed is not None:
            weights, weighed = self._weighed
            found = grads.total(weights.to(norms).view(norms.shape))
            for name in _apart_from(found, weighed, scale, low, within=_ATTRIBUTED):
                if self._shows_nothing(scale, expected):
                    return False
                raise UnsupportedModelError(
                    f"the gradients of single records for parameter {name} are not autograd's, although their sum is: "
                    "the layer's rows do not belong to the records that they seem to belong to. Put the record "
                    "dimension first"
                )
        return True
