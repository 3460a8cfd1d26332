"""Methods: one file a paper's method. A file that defines `METHOD` is found by itself; nothing else needs an edit."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from assay._util import registry
from assay.errors import ConfigError
from assay.models.layers import trainable_layers

if TYPE_CHECKING:
    from torch import nn

    from assay.methods.chain import Chain
    from assay.methods.plan import Plan
    from assay.methods.stage import Stage

VARIANTS = ("sound", "published")


class Method(Protocol):
    """How one step works, and what its paper would claim for a run of such steps. A frozen dataclass.

    Two more functions are optional: `stage(plan)` gives what is released before the first step (`assay.methods.stage`), `of_model(model)`
    the method with what it must know of a model. `varying_noise = True` says that its claim holds for noise that falls over a run.
    """

    OPTIONS: ClassVar[tuple[str, ...]]
    """Which of its fields a user may set."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def summary(self) -> str:
        """One line: what it does, and whose it is."""
        ...

    @property
    def soundness(self) -> str:
        """One line: is the published form sound, and if not, why not."""
        ...

    @property
    def optimizer(self) -> str:
        """The optimizer the paper uses; the default of the command line."""
        ...

    @property
    def clip(self) -> str:
        """The clipping rule it is used with unless another is given."""
        ...

    @property
    def variant(self) -> str:
        """`sound`: noise is relative to what one record can really move, and a target ε is a verified one. `published`: the
        paper's algorithm to the letter, and a target ε is a claimed one.
        """
        ...

    def chain(self, plan: Plan, noise_multiplier: float) -> Chain:
        """The step. `noise_multiplier` is what the gradient's own noise must have (a plan may give part of a step's
        privacy away).
        """
        ...

    def claimed(self, plan: Plan) -> float:
        """ε by the paper's own formula or accountant, at the plan's δ, for the noise that the plan really adds."""
        ...


@functools.cache
def available() -> dict[str, Method]:
    """Every method by name."""
    return registry.found(__name__, __path__)


def get(name: str, **options: Any) -> Method:
    """The method of this name, with its options set; texts are read as the numbers that an option asks for."""
    return registry.chosen(available(), name, options)


def options(method: Method) -> dict[str, Any]:
    """The options that differ from the method's own defaults: `get(method.name, **options(method)) == method`."""
    return registry.changed(available(), method, method.name)


def for_layers(method: Method, layers: list[str]) -> Method:
    """The method with its number of separately clipped layers, taken from the model; refused where another was given."""
    if "groups" not in type(method).OPTIONS:
        return method
    given: int | None = method.groups  # type: ignore[attr-defined]
    if given is not None and given != len(layers):
        raise ConfigError("groups", given, f"{len(layers)}: the model has {len(layers)} layers with parameters")
    return get(method.name, **{**options(method), "groups": len(layers)})


def for_model(method: Method, model: nn.Module) -> Method:
    """The method with all that it must know of the model."""
    known = for_layers(method, trainable_layers(model))
    of_model = getattr(known, "of_model", None)
    adapted: Method = known if of_model is None else of_model(model)
    return adapted


def stage_of(method: Method, plan: Plan) -> Stage | None:
    """What the method releases before the first step, if anything."""
    make = getattr(method, "stage", None)
    made: Stage | None = None if make is None else make(plan)
    return made


def check_variant(value: str) -> None:
    """Refuse a variant that does not exist."""
    if value not in VARIANTS:
        raise ConfigError("variant", value, "one of " + ", ".join(VARIANTS))
