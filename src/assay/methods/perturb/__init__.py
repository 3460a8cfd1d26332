"""AFRRS: noise on data and objective instead of gradients (`assay.methods.afrrs` cites the paper).

`relevance` says which features matter, `regions` groups similar ones, `inputs` adds noise to the features and
`objective` to the labels. Whatever draws noise states its event from the scale that it draws with.
"""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.methods.perturb.explain import PUBLIC_MODEL
    from assay.methods.perturb.inputs import InputNoise, local_event
    from assay.methods.perturb.objective import LabelNoise, quadratic_loss, split_last
    from assay.methods.perturb.regions import Regions, segment
    from assay.methods.perturb.relevance import Propagation, Relevance, private_relevance, published_relevance

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

__getattr__ = lazy.exports(
    __name__,
    {
        "PUBLIC_MODEL": "explain",
        **dict.fromkeys(("InputNoise", "local_event"), "inputs"),
        **dict.fromkeys(("LabelNoise", "quadratic_loss", "split_last"), "objective"),
        **dict.fromkeys(("Regions", "segment"), "regions"),
        **dict.fromkeys(("Propagation", "Relevance", "private_relevance", "published_relevance"), "relevance"),
    },
)
