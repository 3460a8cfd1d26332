"""Perturbation of data and objective instead of gradients (AFRRS, afrrs.txt): which features matter (`relevance`), regions of
similar ones (`regions`), noise on the inputs (`inputs`) and on the objective's coefficients (`objective`).

Everything that draws noise states its event from the scale really drawn.
"""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.methods.perturb.explain import PUBLIC_MODEL
    from assay.methods.perturb.inputs import InputNoise, local_event
    from assay.methods.perturb.objective import LabelNoise, NoisyObjective, StepNoise, quadratic_loss, split_last
    from assay.methods.perturb.regions import Regions, segment
    from assay.methods.perturb.relevance import Propagation, Relevance, private_relevance, published_relevance

__all__ = [
    "PUBLIC_MODEL",
    "InputNoise",
    "LabelNoise",
    "NoisyObjective",
    "Propagation",
    "Regions",
    "Relevance",
    "StepNoise",
    "local_event",
    "private_relevance",
    "published_relevance",
    "quadratic_loss",
    "segment",
    "split_last",
]

__getattr__ = lazy.exports(
    __name__,
    {
        "PUBLIC_MODEL": "explain",
        **dict.fromkeys(("InputNoise", "local_event"), "inputs"),
        **dict.fromkeys(("LabelNoise", "NoisyObjective", "StepNoise", "quadratic_loss", "split_last"), "objective"),
        **dict.fromkeys(("Regions", "segment"), "regions"),
        **dict.fromkeys(("Propagation", "Relevance", "private_relevance", "published_relevance"), "relevance"),
    },
)
