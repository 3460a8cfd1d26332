"""Methods: one file per method. The registry finds a file that defines `METHOD`; nothing else needs an edit.

`assay._util.registry` says how to add a method from outside this package.
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
    """The fields that a user may set."""
    varying_noise: ClassVar[bool] = False
    """Whether its claim holds for noise that changes over a run."""

    name: str
    """Its name in `--method` and in records."""
    summary: str
    """One line: what it does, and who published it."""
    soundness: str
    """One line: whether the published form is sound, and if not, why."""
    optimizer: str = "sgd"
    """The paper's optimizer, which is the default of the command line."""
    variant: str = "sound"
    """`sound`: noise is relative to what one record can really change, and a target ε is a verified one. `published`:
    the paper's algorithm to the letter, and a target ε is a claimed one.
    """

    @property
    def clip(self) -> ClipRule:
        """The default clipping rule."""
        return Flat(0.5)

    @property
    def layers(self) -> int | None:
        """The number of layers that it clips separately; None if that does not matter or is not known yet."""
        return None

    @property
    def needs_layers(self) -> bool:
        """Whether it clips layers separately and does not know yet how many there are."""
        return False

    @abstractmethod
    def chain(self, plan: Plan, noise_multiplier: float) -> Chain:
        """The step.

        Args:
            plan: the plan that it belongs to.
            noise_multiplier: that of the gradient's noise; a plan may give a share of a step's privacy to other
            releases.

        Raises:
            ConfigError: the plan's settings do not fit the method.
        """

    @abstractmethod
    def claimed(self, plan: Plan) -> float:
        """ε by the paper's formula or accountant, at the plan's δ, for the noise that the plan really adds."""

    def stage(self, plan: Plan) -> Stage | None:  # noqa: ARG002
        """What is released before the first step (`assay.methods.stage`), if anything."""
        return None

    def for_layers(self, layers: list[str]) -> Method:  # noqa: ARG002
        """The method for a model with these layers.

        Raises:
            ConfigError: it was set up for another number of layers.
        """
        return self

    def for_model(self, model: nn.Module) -> Method:
        """The method with everything that it must know about the model."""
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
    """Refuse a variant that does not exist.

    Raises:
        ConfigError: names those that do.
    """
    if value not in VARIANTS:
        raise ConfigError("variant", value, "one of " + ", ".join(VARIANTS))
