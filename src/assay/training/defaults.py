"""What a run trains with where nobody says anything: the one place for Python and the command line.

The clipping rule and the optimizer are the method's (`assay.methods.Method`). This module imports nothing, so that
help comes at once.
"""

from __future__ import annotations

METHOD = "dpsgd"
EPSILON = 1.0
DELTA = 1e-5
EPOCHS = 15.0
OPTIMIZER = "sgd"
LR = {"sgd": 0.7, "adam": 0.002, "adamw": 0.002}
MOMENTUM = {"sgd": 0.9, "adam": 0.0, "adamw": 0.0}
SCHEDULE = "linear"
BATCH = 1024
TABLE_BATCH = 4096  # linear models gain from large batches
SHARE = 8  # a batch is at most one part in this many of the records
