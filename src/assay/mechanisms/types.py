"""The few types that carry the privacy argument.

Sensitive values exist only as `Bounded`: a sum over records together with the most that one record can move it.
A `Mechanism` turns it into `Private`: a released value together with the event that states its cost. Whatever is
`Private` may be used for anything at no cost. The object that adds the noise states the event, and the sampler that
draws the batch states the amplification. Nobody types a sample rate into an accountant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from dp_accounting.dp_event import DpEvent

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Stream

Grads: TypeAlias = "Mapping[str, Tensor]"
"""One tensor for each parameter name."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """Sensitive: a sum over records, never a mean. One record that is added or removed moves it by at most `l2`."""

    total: Grads
    l2: float


@dataclass(frozen=True, slots=True)
class Private:
    """Released: the value, its cost before amplification by sampling, and the standard deviation of its noise."""

    value: Grads
    event: DpEvent
    noise_std: float


class Encoder(Protocol):
    """A step between clipping and noise. It maps a bounded sum to a bounded sum and states the new bound."""

    def __call__(self, grads: Bounded) -> Bounded:
        """Encode the sum; the result's `l2` must hold for the encoded sum."""
        ...


class Mechanism(Protocol):
    """Adds the noise and states what the release costs."""

    @property
    def white(self) -> bool:
        """Whether the noise is independent and of equal standard deviation in all coordinates."""
        ...

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """The noisy sum. The event follows from the noise that was added and the bound that `grads` states."""
        ...


@runtime_checkable
class OnParameters(Protocol):
    """A mechanism whose noise depends on the current parameters, which are released already."""

    def on(self, parameters: Grads) -> Mechanism:
        """The mechanism for a model with these parameters."""
        ...


class Denoiser(Protocol):
    """Post-processing of a released gradient, already divided by the expected batch size. It costs no privacy."""

    name: ClassVar[str]
    """Its name in `--denoise` and in records."""
    needs_white: ClassVar[bool]
    """Whether it relies on noise that is independent and of standard deviation `noise_std` in every coordinate."""
    keeps_white: ClassVar[bool]
    """Whether that still holds afterwards."""

    def __call__(self, grads: Grads, noise_std: float) -> Grads:
        """Denoise the gradients; `noise_std` is the standard deviation of the noise in each coordinate."""
        ...


class SideQuery(Protocol):
    """A number released beside the gradient, from the same batch. It takes a share of the step's privacy."""

    share: float

    @property
    def sensitivity(self) -> float:
        """The most that one record can move the sum by."""
        ...

    def measure(self, losses: Tensor, norms: Tensor) -> Tensor:
        """The sum over the records of a batch, or of a part of it: parts are added up."""
        ...

    def receive(self, noisy: float, expected_size: float) -> None:
        """Take the released sum."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Something that changes from step to step and must survive a restart. Only released values may enter the state."""

    def state(self) -> dict[str, Any]:
        """JSON-able state."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""
        ...
