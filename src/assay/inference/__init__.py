"""The model of a finished run, ready to use: loaded with its preparation, asked for predictions, exported.

`loading` rebuilds the model from the files of the run; `preparing` turns new rows, arrays and pictures into what it
takes; `predicting` holds the answers; `exporting` writes a program that runs without Assay.
"""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.inference.exporting import export
    from assay.inference.loading import TrainedModel, load
    from assay.inference.predicting import Predictions
    from assay.inference.preparing import Preparation

__all__ = ["Predictions", "Preparation", "TrainedModel", "export", "load"]

__getattr__ = lazy.exports(
    __name__,
    {
        "Predictions": "predicting",
        "Preparation": "preparing",
        "TrainedModel": "loading",
        "export": "exporting",
        "load": "loading",
    },
)
