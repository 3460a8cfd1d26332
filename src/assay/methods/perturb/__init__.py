"""AFRRS: noise on data and objective instead of gradients (`assay.methods.afrrs` cites the paper).

`relevance` says which features matter, `regions` groups similar ones, `inputs` adds noise to the features and
`objective` to the labels. Whatever draws noise states its event from the scale that it draws with.
"""

from assay.methods.perturb.inputs import InputNoise, local_event
from assay.methods.perturb.objective import LabelNoise, quadratic_loss, split_last
from assay.methods.perturb.regions import Regions, segment
from assay.methods.perturb.relevance import PUBLIC_MODEL, Propagation, Relevance, private_relevance, published_relevance

__all__ = [
    "PUBLIC_MODEL",
    "InputNoise",
    "LabelNoise",
    "Propagation",
    "Regions",
    "Relevance",
    "local_event",
    "private_relevance",
    "published_relevance",
    "quadratic_loss",
    "segment",
    "split_last",
]
