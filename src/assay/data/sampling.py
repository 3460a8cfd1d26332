"""The classes of all samplers, and `parse` for their names. `assay.data.samplers` has a file for each."""

from assay.data.samplers import SAMPLERS, Sampler, parse
from assay.data.samplers.cyclic import Cyclic
from assay.data.samplers.full import FullBatch
from assay.data.samplers.permuted import Permuted
from assay.data.samplers.poisson import Poisson
from assay.data.samplers.shuffled import Shuffled
from assay.data.samplers.truncated import TruncatedPoisson
from assay.data.samplers.without_replacement import WithoutReplacement

__all__ = [
    "SAMPLERS",
    "Cyclic",
    "FullBatch",
    "Permuted",
    "Poisson",
    "Sampler",
    "Shuffled",
    "TruncatedPoisson",
    "WithoutReplacement",
    "parse",
]
