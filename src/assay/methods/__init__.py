"""Methods: one file a paper's method. A file that defines `METHOD` is found by itself; nothing else needs an edit.

`assay._util.registry` tells how a method from outside this package is added.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay._util.method_registry import MethodRegistry
from assay.errors import ConfigError
from assay.gradients.clip_rules.flat import Flat
from assay.mechanisms.types import ClipRule

if TYPE_CHECKING:
    from torch import nn

    from assay.methods.chain import Chain
    from assay.methods.plan import Plan
    from assay.methods.stage import Stage

VARIANTS = ("sound", "published")


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """How one step works, and what its paper would claim for a run of such steps. A frozen dataclass.

    A method defines `chain` and `claimed`. Everything else has a default.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """Which of its fields a user may set."""
    varying_noise: ClassVar[bool] = False
    """Whether its claim holds for noise that changes over a run."""

    name: str
    """What it is called."""
    summary: str
    """One line: what it does, and whose it is."""
    soundness: str
    """One line: is the published form sound, and if not, why not."""
    optimizer: str = "sgd"
    """The optimizer the paper uses; the default of the command line."""
    variant: str = "sound"
    """`sound`: noise is relative to what one record can really move, and a target ε is a verified one. `published`: the
    paper's algorithm to the letter, and a target ε is a claimed one.
    """

    @property
    def clip(self) -> ClipRule:
        """The clipping rule it is used with unless another is given."""
        return Flat(0.5)

    @property
    def layers(self) -> int | None:
        """How many layers it clips one by one; None where that does not matter or is not known yet."""
        return None

    @property
    def needs_layers(self) -> bool:
        """Whether it clips layer by layer and does not know yet how many there are."""
        return False

    @abstractmethod
    def chain(self, plan: Plan, noise_multiplier: float) -> Chain:
        """The step. `noise_multiplier` is what the gradient's own noise must have (a plan may give part of a step's
        privacy away).
        """

    @abstractmethod
    def claimed(self, plan: Plan) -> float:
        """ε by the paper's own formula or accountant, at the plan's δ, for the noise that the plan really adds."""

    def stage(self, plan: Plan) -> Stage | None:  # noqa: ARG002
        """What is released before the first step (`assay.methods.stage`), if anything."""
        return None

    def for_layers(self, layers: list[str]) -> Method:  # noqa: ARG002
        """The method for a model with these layers; refused where it was set up for another number of them."""
        return self

    def for_model(self, model: nn.Module) -> Method:
        """The method with all that it must know of the model."""
        from assay.models.layers import trainable_layers

        return self.for_layers(trainable_layers(model))


METHODS: MethodRegistry[Method] = MethodRegistry("method", Method, __name__)  # type: ignore[type-abstract]
available = METHODS.available
"""Every method by name."""
get = METHODS.with_options
"""The method of a name with the given options: `get("NAME", option=value)`."""
options = METHODS.options
"""The options of a method that differ from their defaults: `get(method.name, **options(method)) == method`."""


def check_variant(value: str) -> None:
    """Refuse a variant that does not exist."""
    if value not in VARIANTS:
        raise ConfigError("variant", value, "one of " + ", ".join(VARIANTS))
