"""What a loop does with a batch, written down while it happens, so that it can be repeated with other records.

Between `batches` and `backward` a loop may do anything: change the records, call the model, weigh the losses. A `Tape`
is on torch's stack of function modes meanwhile. It sees every torch function that is called, and notes those whose
arguments come from the batch. A call of the model is one entry; what happens inside is the engine's concern.

A `Path` is what of it leads to the losses. It can be gone again with other rows in the batch. That changes nothing:
random numbers are those of the first time, and what is written in place is a copy.

A tape does not see what leaves torch: NumPy, `tolist`, Python's own numbers. A number that `item()` gave is followed
while it is handed on as it is. It sees one thread. Where the numbers of the batch are in memory is followed by a
`Spread` besides, which sees the kernels: backward passes, `torch.func`, autograd functions of the loop's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils import _python_dispatch as dispatch
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from assay.gradients.proof import calls
from assay.gradients.proof.path import Drawing, Entry, Path, Sliced, Slot, sent_back
from assay.gradients.proof.spread import Places, Spread, place_of

_DEPTH = 4  # of what holds the tensors of a batch
_MOST = 100_000  # calls; a loop that does more than that with one batch is not followed to its end
_TIMES = frozenset(
    ["mul", "mul_", "__rmul__", "multiply", "div", "div_", "__rdiv__", "__rtruediv__", "divide", "true_divide"]
)
_ABOUT = frozenset(("__len__", "size", "dim", "ndimension", "numel", "nelement"))  # about a tensor, not its numbers
_GRADIENT: Any = Tensor.grad
_WRITE_UNSEEN = frozenset(("batch_norm", "instance_norm"))  # running statistics, without a new version


class _Quiet(threading.local):
    """A context by itself: one that a generator makes takes longer, and every step enters it."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_error: object) -> None:
        self.depth -= 1


_quiet = _Quiet()


def quiet() -> AbstractContextManager[None]:
    """A context that no tape of this thread hears: what a private step does itself is not the loop's."""
    return _quiet


_Stack = tuple[Callable[[], int], Callable[[], Any], Callable[[Any], None]]
"""A stack of torch's: its length, and how a mode is taken off and put on."""
_FUNCTIONS: _Stack = (_len_torch_function_stack, _pop_mode, _push_mode)
_KERNELS: _Stack = (_len_torch_dispatch_stack, dispatch._pop_mode, dispatch._push_mode)


class _Place:
    """Puts a mode on one of torch's stacks, and takes it off; those that somebody put on it later stay."""

    def __init__(self, mode: Any, stack: _Stack) -> None:
        self._mode, self._stack = mode, stack
        self._above = 0  # modes that were put on the stack after this one
        self._there = False

    def leave(self) -> None:
        """Take the mode off."""
        length, pop, push = self._stack
        above = []
        while self._there and length() > 0 and (top := pop()) is not self._mode:
            above.append(top)
        self._above, self._there = len(above), False
        for mode in reversed(above):
            push(mode)

    def enter(self) -> None:
        """Put it where it was: whoever put one above it will take that one off again."""
        length, pop, push = self._stack
        above = [pop() for _ in range(min(self._above, length()))]
        for mode in (self._mode, *reversed(above)):
            push(mode)
        self._there = True


@dataclass(slots=True)
class _Known:
    """What slots stand for, while the loop runs."""

    slots: MutableMapping[Tensor, int] = field(default_factory=WeakTensorKeyDictionary)
    floats: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Numbers that `item()` gave, by identity."""
    constants: dict[int, Tensor] = field(default_factory=dict)
    """Tensors that are not made of the batch, and where they were first used."""
    from_batch: set[int] = field(default_factory=set)
    count: int = 0

    def new(self) -> int:
        self.count += 1
        return self.count - 1


class Tape(TorchFunctionMode):
    """Notes what is done with a batch from `start` to `stop`.

    Args:
        batch: What the loop gets.
        rows: How many rows a tensor of the batch has.
        model: Calls of it are single entries.
        copied: Gives a copy of the model, for repetitions; None where it cannot be copied.
        earlier: Where there is something that was made of earlier batches, which is followed as well.
    """

    def __init__(
        self,
        batch: Any,
        rows: int,
        model: nn.Module,
        copied: Callable[[], nn.Module | None],
        earlier: Places,
    ) -> None:
        super().__init__()
        self._earlier = earlier
        self._spread = Spread(earlier, lambda: _quiet.depth > 0)
        self._places = _Place(self, _FUNCTIONS), _Place(self._spread, _KERNELS)
        self.rows = rows
        self._model, self._copied = model, copied
        self._known, self._entries = _Known(), list[Entry]()
        self._left = _MOST
        self._batch: dict[int, Tensor] = {}
        for t in with_rows(batch, rows):
            self._batch[self._slot(t, from_batch=True)] = t.detach().clone()
            self._spread.mark([t])
        self.touched = False
        """Whether anything was done with the numbers of the batch."""
        self.blind = False
        """Whether the model was called, and never with anything that torch made of the batch."""
        self._running, self._hooks = False, list[Any]()
        self._drawing: dict[int, Drawing] = {}  # the generators that a function is given, before it draws
        self._outputs = dict[int, Any]()  # of the model: their places in the graph, which writes in place do not move
        self.last: frozenset[int] = frozenset()
        """The slots of the model's outputs from which no other was made; known with the losses."""
        self.sent_back = 0.0
        """How large a gradient the losses send back to these."""
        self.gradients = Places()
        """Gradients of the batch by weights, and weights moved by them, which a repetition cannot take again."""
        self.unseen = Places()
        """What was made of the batch by something that no torch function shows."""
        self.ended = False
        """Whether the losses are known."""
        self._wrote: str | None = None

    def weigh(self, losses: Tensor) -> None:
        """See what these losses send back, before their graph is used up."""
        nodes = {slot: None if isinstance(at, Tensor) else at.node for slot, at in self._outputs.items()}
        before = ends_of(nodes.values())
        last = {slot: at for slot, at in self._outputs.items() if (nodes[slot] or at) not in before}
        self.last, self.sent_back = frozenset(last), sent_back(losses, list(last.values()))
        self._outputs = {}

    def end_path(self) -> None:
        """The losses are known: from here on only what is written into memory matters."""
        self.ended, self._entries = True, []

    @property
    def made(self) -> Places:
        """Where there is something that was made of the batch, whoever made it."""
        return self._spread.made

    def written_into_model(self) -> str | None:
        """What of the model has held something that the loop made of a batch; None if nothing has."""
        self._wrote = self._wrote or next((name for name, t in self._held() if self._spread.holds(t)), None)
        return self._wrote

    def _held(self) -> Iterator[tuple[str, Tensor]]:
        for name, p in self._model.named_parameters():
            yield f"parameter {name}", p
            if p.grad is not None:
                yield f"the gradient of {name}", p.grad
        for name, b in self._model.named_buffers():
            yield f"buffer {name}", b

    @property
    def holds_rows(self) -> bool:
        """Whether the batch has tensors with a row for each record."""
        return bool(self._batch)

    def start(self) -> None:
        """Begin to listen."""
        # functions and not methods: a copy of the model has these hooks as well, and must not copy this object
        model = self._model
        begun: list[tuple[Any, calls.RandomState]] = []

        def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
            if module is model and self._running:
                self._leave()
                begun.append(((args, kwargs, self._attributes()), calls.random_state()))

        def end(module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
            if module is model and begun:
                given, state = begun.pop()
                if not begun and self._running:
                    self._note_call(given, output, state)
                    self._enter()

        self._hooks = [
            model.register_forward_pre_hook(begin, with_kwargs=True, prepend=True),
            model.register_forward_hook(end, with_kwargs=True, always_call=True),
        ]
        self._running = True
        self._enter()

    def stop(self) -> None:
        """Listen no longer."""
        if self._running:
            self._running = False
            for hook in self._hooks:
                hook.remove()
            self._leave()

    def _leave(self) -> None:
        """Take the modes off their stacks."""
        for place in self._places:
            place.leave()

    def _enter(self) -> None:
        """Put them where they were; once the losses are known, nobody will repeat what is done."""
        for place in self._places[self.ended :]:
            place.enter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and note the call."""
        kwargs = kwargs or {}
        self._left -= 1
        if not self._running or self._left < 0 or _quiet.depth:
            return func(*args, **kwargs)
        if func is Tensor.__iter__:  # it would hand out rows that nobody has seen
            return iter(self.__torch_function__(torch.unbind, types, args))
        given = calls.tensors((args, kwargs))
        if not given or any(map(torch._C._functorch.is_functorch_wrapped_tensor, given)):
            return func(*args, **kwargs)
        generators = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Generator)]
        self._drawing = {id(g): Drawing(g.get_state(), g.device) for g in generators}
        # somebody's own kind of tensor need not know what we ask of it
        with torch._C.DisableTorchFunctionSubclass():
            state, versions = calls.random_state(), [_version(t) for t in given]
        out = func(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            written = [t for t, version in zip(given, versions, strict=True) if _version(t) != version]
            if getattr(func, "__name__", "") in _WRITE_UNSEEN:
                written = given
            self._note(func, args, kwargs, out, state if calls.drawn_since(state) else None, written)
        self._drawing = {}
        return out

    def _attributes(self) -> dict[tuple[str, str], Any]:
        """What modules of the model hold that was made of a batch: by module and name. It is given to a call, too."""
        made = ((path, name, v) for path, m in self._model.named_modules() for name, v in vars(m).items())
        return {
            (path, name): v
            for path, name, v in made
            if (isinstance(v, Tensor) and self._spread.holds(v)) or (type(v) is float and id(v) in self._known.floats)
        }

    def _note_call(self, given: Any, output: Any, state: calls.RandomState) -> None:
        """Note a call of the model."""
        self.written_into_model()  # weights that are put back later have made losses by then
        if any(map(self._spread.holds, calls.tensors(given))):
            self._spread.mark(calls.tensors(output))
        seen = any(not self._is_constant(t) for t in calls.tensors(given))
        first = not any(entry.run is None for entry in self._entries)
        self.blind = not seen and (first or self.blind)
        self._note(None, given, {}, output, state)
        if seen:
            made = [t for t in calls.tensors(output) if t.requires_grad]
            self._outputs |= {self._known.slots[t]: t if t.grad_fn is None else get_gradient_edge(t) for t in made}

    def _slot(self, t: Tensor, *, from_batch: bool) -> int:
        number = self._known.slots[t] = self._known.new()
        if from_batch:
            self._known.from_batch.add(number)
        return number

    def _is_constant(self, t: Tensor) -> bool:
        return self._known.slots.get(t) not in self._known.from_batch

    def _note(
        self,
        run: Callable[..., Any] | None,
        args: Any,
        kwargs: Any,
        out: Any,
        state: calls.RandomState | None,
        written: Sequence[Tensor] = (),
    ) -> None:
        known, flat = self._known, pytree.tree_leaves(out)
        given, form = pytree.tree_flatten((args, kwargs))
        used = list(_ends(given))
        for a in used:
            if isinstance(a, Tensor) and a not in known.slots and a in self._earlier:
                known.constants[self._slot(a, from_batch=True)] = a
        if self._is_gradient_of_constants(run, args, kwargs):
            for t in filter(self._spread.holds, calls.tensors(out)):
                known.constants[self._slot(t, from_batch=True)] = t
                self.gradients.add(t)
            return
        depends = any(
            (isinstance(a, Tensor) and not self._is_constant(a)) or (type(a) is float and id(a) in known.floats)
            for a in used
        )
        name = getattr(run, "__name__", "")
        self.touched |= depends and name not in _ABOUT and (name != "__get__" or bool(calls.tensors(out)))
        views = any(isinstance(t, Tensor) and t._base is not None for t in flat)
        if not depends and not views and run is not None:
            return
        stored = list(map(self._stored, given))
        outputs = [self._made(value, depends=depends) for value in flat]
        if depends:
            for t in written:
                self._mark(t)
        if not written and all(o is None for o in outputs):
            return
        self._entries.append(
            Entry(
                run,
                stored,
                form,
                outputs,
                state,
                _autocast(),
                depends,
                torch.is_grad_enabled(),
                needs=frozenset(v.number for v in _ends(stored) if isinstance(v, Slot)),
                memory=frozenset(place_of(t) for t in (*used, *flat) if isinstance(t, Tensor)),
                writes=frozenset(map(place_of, written)),
                factors=[(name, float(a)) for a in args if name in _TIMES and isinstance(a, int | float)],
            )
        )

    def _is_gradient_of_constants(self, run: Any, args: Any, kwargs: Any) -> bool:
        """Whether this takes a gradient by what was there before the batch."""
        if run == _GRADIENT.__get__:
            of = args[:1]
        elif run is torch.autograd.grad:
            of = calls.tensors(args[1] if len(args) > 1 else kwargs["inputs"])
        else:
            return False
        slots, there = self._known.slots, self._known.constants
        return all(self._is_constant(t) or slots[t] in there for t in of)

    def _made(self, value: Any, *, depends: bool) -> int | None:
        """The slot of what a function returned."""
        if isinstance(value, Tensor):
            return self._slot(value, from_batch=depends)
        if type(value) is not float or not depends:
            return None
        number = self._known.new()
        self._known.floats[id(value)] = value, number
        self._known.from_batch.add(number)
        return number

    def _mark(self, t: Tensor) -> None:
        """What is written with something of the batch, and what it is a view of, is made of the batch from here on."""
        for one in (t, t._base):
            if one is not None:
                if one not in self._known.slots:
                    self._stored(one)
                self._known.from_batch.add(self._known.slots[one])

    def _stored(self, value: Any) -> Any:
        known = self._known
        if isinstance(value, Tensor):
            if value not in known.slots:
                number = self._slot(value, from_batch=False)
                known.constants[number] = value
                if value in self.made:  # a weight that the batch has trained by now, or who knows what
                    (self.gradients if value.is_leaf and value.requires_grad else self.unseen).add(value)
            return Slot(known.slots[value])
        if isinstance(value, slice):
            return Sliced((self._stored(value.start), self._stored(value.stop), self._stored(value.step)))
        if type(value) is float and id(value) in known.floats:
            return Slot(known.floats[id(value)][1])
        return self._drawing.get(id(value), value)

    def made_of_batch(self, t: Tensor) -> bool:
        """Whether this tensor was made of the batch, as far as torch shows."""
        return self._left >= 0 and not self._is_constant(t)

    def path_to(self, losses: Tensor) -> Path:
        """What these losses are made by; they must be made of the batch."""
        needed, memory = {self._known.slots[losses]}, set[int]()
        taken = []
        for entry in reversed(self._entries):
            if needed.isdisjoint(o for o in entry.outputs if o is not None) and memory.isdisjoint(entry.writes):
                continue
            needed |= entry.needs
            memory |= entry.memory
            taken.append(entry)
        slot, constants = self._known.slots[losses], self._known.constants
        return Path(slot, taken[::-1], self._batch, constants, self._model, self._copied)


def ends_of(nodes: Iterable[Any]) -> set[Any]:
    """What a graph has behind these nodes: other nodes, and leaves."""
    todo = [node for node in nodes if node is not None]
    seen, found = set(todo), set[Any]()
    while todo:
        parents = {parent for parent, _ in todo.pop().next_functions if parent is not None}
        found |= parents | {p.variable for p in parents if type(p).__name__ == "AccumulateGrad"}
        todo += parents - seen
        seen |= parents
    return found


def with_rows(batch: Any, rows: int) -> list[Tensor]:
    """The tensors of a batch that have a row for each record, each once."""
    found: dict[int, Tensor] = {id(t): t for t in _tensors_in(batch) if calls.by_record(t, rows)}
    return list(found.values())


def _tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """All tensors of a batch, whatever holds them."""
    if isinstance(value, Tensor):
        yield value
    elif depth < _DEPTH and not isinstance(value, str | bytes):
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for part in parts or (vars(value).values() if hasattr(value, "__dict__") else ()):
            yield from _tensors_in(part, depth + 1)


def _ends(values: Iterable[Any]) -> Iterator[Any]:
    """These values, with the ends of slices in their place: a slice may end at a number of the batch."""
    for value in values:
        if isinstance(value, slice):
            yield from (value.start, value.stop, value.step)
        elif isinstance(value, Sliced):
            yield from value.ends
        else:
            yield value


def _version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version


def _autocast() -> torch.dtype | None:
    """The precision of autocast, where it is on."""
    if not torch._C._is_any_autocast_enabled():
        return None
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
    return None
