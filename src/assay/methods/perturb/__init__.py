"""Perturbation of data and objective instead of gradients (AFRRS, afrrs.txt): which features matter (`relevance`), regions of
similar ones (`regions`), noise on the inputs (`inputs`) and on the objective's coefficients (`objective`).

Everything that draws noise states its event from the scale really drawn.
"""

from assay.methods.perturb.inputs import InputNoise, local_event
from assay.methods.perturb.objective import LabelNoise, NoisyObjective, StepNoise, quadratic_loss, split_last
from assay.methods.perturb.regions import Regions, segment
from assay.methods.perturb.relevance import PUBLIC_MODEL, Propagation, Relevance, private_relevance, published_relevance

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
