"""Assay: differentially private training on PyTorch with an ε that is true.

    plan = assay.Plan.calibrated(epsilon=1, delta=1e-5, records=60_000, batch_size=512, epochs=10)
    result = assay.fit(model, train, plan=plan, test=test)      # one call
    step = assay.PrivateStep(model, plan)                       # or your own loop
    result = assay.train(assay.presets.settings("mnist", epsilon=1), out="runs/mnist")     # or by names
    assay.load("runs/mnist").predict("new.npz")                 # the model afterwards
    assay.audit.of_run("runs/mnist"), assay.attacks.of_run("runs/mnist"), assay.report.write("runs")

Everything else is in the modules named in docs/architecture.md.
"""

import os
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay import (
        attacks,
        audit,
        data,
        federated,
        inference,
        integrations,
        loggers,
        methods,
        models,
        presets,
        report,
        runs,
        studies,
    )
    from assay._util.figures import at_least, at_most
    from assay.accounting.budget import Budget
    from assay.accounting.epsilon import Adjacency
    from assay.errors import AssayError, BudgetSpentError, ConfigError, DataError, UnsupportedModelError
    from assay.inference.exporting import export
    from assay.inference.loading import TrainedModel, load
    from assay.inference.predicting import Predictions
    from assay.methods.plan import Plan
    from assay.runs.callbacks import Callback
    from assay.runs.result import Progress, Result
    from assay.training.fitting import fit, resume
    from assay.training.from_names import train
    from assay.training.options import Settings
    from assay.training.settings import Optimizer, Training
    from assay.training.step import PrivateStep
    from assay.training.tuning import choose

__version__ = version("assay-dp")

# The batches of Poisson sampling differ in size, and oneDNN compiles its kernels for every size. It keeps 1024. A CNN
# of six convolutions needs 39 for a size, so at batch 64 every fifth step would compile its kernels again, which takes
# a fifth of a step. A kernel takes some 20 KB. oneDNN reads this when it compiles its first.
if os.environ.keys().isdisjoint({"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"}):
    os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "8192"

__all__ = [
    "Adjacency",
    "AssayError",
    "Budget",
    "BudgetSpentError",
    "Callback",
    "ConfigError",
    "DataError",
    "Optimizer",
    "Plan",
    "Predictions",
    "PrivateStep",
    "Progress",
    "Result",
    "Settings",
    "TrainedModel",
    "Training",
    "UnsupportedModelError",
    "at_least",
    "at_most",
    "attacks",
    "audit",
    "choose",
    "data",
    "export",
    "federated",
    "fit",
    "inference",
    "integrations",
    "load",
    "loggers",
    "methods",
    "models",
    "presets",
    "report",
    "resume",
    "runs",
    "studies",
    "train",
]

_HOMES = {
    "assay._util.figures": ("at_least", "at_most"),
    "assay.errors": ("AssayError", "BudgetSpentError", "ConfigError", "DataError", "UnsupportedModelError"),
    "assay.methods.plan": ("Plan",),
    "assay.accounting.budget": ("Budget",),
    "assay.accounting.epsilon": ("Adjacency",),
    "assay.runs.callbacks": ("Callback",),
    "assay.runs.result": ("Progress", "Result"),
    "assay.training.step": ("PrivateStep",),
    "assay.training.fitting": ("fit", "resume"),
    "assay.training.settings": ("Optimizer", "Training"),
    "assay.training.from_names": ("train",),
    "assay.training.options": ("Settings",),
    "assay.training.tuning": ("choose",),
    "assay.inference.loading": ("TrainedModel", "load"),
    "assay.inference.predicting": ("Predictions",),
    "assay.inference.exporting": ("export",),
}


def __getattr__(name: str) -> Any:
    """Import a name or a package when it is first used, so that commands start without torch."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    try:
        return import_module(f"assay.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"assay.{name}":
            raise
        raise AttributeError(f"module 'assay' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    """The public names, imported or not, and the version."""
    return [*__all__, "__version__"]
