"""Assay: differentially private training on PyTorch with an ε that is true.

    plan = assay.Plan.calibrated(epsilon=1, delta=1e-5, records=60_000, batch_size=512, epochs=10)
    result = assay.fit(model, train, plan=plan, test=test)      # one call
    step = assay.PrivateStep(model, plan)                       # or your own loop

Everything else is in the modules named in docs/architecture.md.
"""

from importlib.metadata import version

from assay.errors import AssayError, BudgetSpentError, ConfigError, DataError, UnsupportedModelError
from assay.optim import Optimizer
from assay.plan import Plan
from assay.privacy.accounting import Adjacency
from assay.step import PrivateStep
from assay.train import Result, Training, fit, resume

__version__ = version("assay-dp")

__all__ = [
    "Adjacency",
    "AssayError",
    "BudgetSpentError",
    "ConfigError",
    "DataError",
    "Optimizer",
    "Plan",
    "PrivateStep",
    "Result",
    "Training",
    "UnsupportedModelError",
    "fit",
    "resume",
]
