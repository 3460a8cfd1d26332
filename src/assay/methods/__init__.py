"""Methods: one file per method. The registry finds a file that defines `METHOD`; nothing else needs an edit.

`assay._util.registry` says how to add a method from outside this package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from assay._util.registry import MethodRegistry
from assay.errors import ConfigError, one_of
from assay.gradients.clip_rules import ClipRule
from assay.gradients.clip_rules.flat import Flat

if TYPE_CHECKING:
    from torch import nn

    from assay.methods.chain import Chain
    from assay.methods.plan import Plan
    from assay.methods.selecting import Selection
    from assay.methods.stage import Stage

VARIANTS = ("sound", "published")


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """How one step works, and what its paper would claim for a run of such steps. A frozen dataclass.

    A method defines `chain` and `claimed`. Everything else has a default.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """The fields that a user may set."""
    VARIANTS: ClassVar[tuple[str, ...]] = VARIANTS
    """The variants that it has, if `variant` is one of its options."""
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
    the paper's algorithm as its text describes it, and a target ε is a claimed one. `authors`: the same as the authors'
    public code does it, where that differs from the text.
    """

    @property
    def published(self) -> bool:
        """Whether a target ε is a claimed one: the paper's algorithm, as its text or its authors' code has it."""
        return self.variant != "sound"

    @property
    def clip(self) -> ClipRule:
        """The default clipping rule."""
        return Flat(0.5)

    @property
    def layers(self) -> int | None:
        """The number of layers that it clips separately; None if that does not matter or is not known yet."""
        return None

    @property
    def by_tensor(self) -> bool:
        """Whether `layers` counts tensors: a weight and its bias are two."""
        return False

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

    def selection(self, plan: Plan) -> Selection | None:  # noqa: ARG002
        """The test that decides after each step whether it is kept (`assay.methods.selecting`), if there is one."""
        return None

    def model_for(self, input_shape: tuple[int, ...]) -> str | None:  # noqa: ARG002
        """The model to train on records of this shape if none is named: one that the method needs, or its paper's.

        Args:
            input_shape: the shape of one record.

        Returns:
            A name of `assay.models`, or None for the default of the command line.
        """
        return None

    def for_layers(self, layers: list[str]) -> Method:  # noqa: ARG002
        """The method for a model with these layers.

        Raises:
            ConfigError: it was set up for another number of layers.
        """
        return self

    def for_model(self, model: nn.Module) -> Method:
        """The method with everything that it must know about the model."""
        from assay.models.compat import trainable_layers

        return self.for_layers(trainable_layers(model))


METHODS: MethodRegistry[Method] = MethodRegistry("method", Method, __name__)  # type: ignore[type-abstract]
available = METHODS.available
"""Every method by name."""
get = METHODS.with_options
"""The method of a name with the given options: `get("NAME", option=value)`."""
options = METHODS.options
"""The options of a method that differ from their defaults: `get(method.name, **options(method)) == method`."""


def check_variant(value: str, known: Sequence[str] = VARIANTS) -> None:
    """Refuse a variant that is not among the known ones.

    Raises:
        ConfigError: names those that do.
    """
    if value not in known:
        raise ConfigError("variant", value, one_of(value, known))


def method_of(
    name: str,
    variant: str | None,
    noise_form: str | None,
    groups: int | None,
    typed: Sequence[str] | None,
) -> Method:
    """The method of this name with the given options.

    Args:
        name: a name that `available` lists.
        variant: "sound" or "published"; some methods also have "authors".
        noise_form: the form of the noise, for methods in the frequency domain.
        groups: the number of layers that are clipped separately.
        typed: further options as texts `key=value`.

    Raises:
        ConfigError: there is no such method, it does not take an option, or one is given twice.

    >>> method_of("lssgd", "published", None, None, ["sigma=2"]).sigma
    2.0
    """
    return get(name, **given_once(typed, {"variant": variant, "noise_form": noise_form, "groups": groups}))


def given_once(typed: Sequence[str] | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options: texts `key=value`, together with those that have a flag of their own.

    Raises:
        ConfigError: an option is given twice, or is not `key=value`.

    >>> given_once(["sigma=2"], {"variant": "published", "groups": None})
    {'sigma': '2', 'variant': 'published'}
    """
    given: dict[str, str] = {}
    for text in typed or []:
        key, equals, value = text.partition("=")
        if not equals or key in given:
            raise ConfigError("option", text, "key=value, each key once")
        given[key] = value
    named = {key: value for key, value in flags.items() if value is not None}
    for key in given.keys() & named.keys():
        raise ConfigError("option", f"{key}={given[key]}", "an option given once: its own flag was used too")
    return given | named
