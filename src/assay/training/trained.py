"""Which records a model was trained on in this process: a second run on them would state its own ε alone."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn

from assay.data.records import Records
from assay.errors import ConfigError

_TRAINED: WeakKeyDictionary[nn.Module, tuple[list[tuple[int, int]], set[str]]] = WeakKeyDictionary()
"""Models as runs of this process have left them, and digests of the records that each was trained on."""


def check_untrained(model: nn.Module, records: Records) -> None:
    """Refuse a model that an earlier run of this process has trained on these records.

    Args:
        model: The model.
        records: The records.

    Raises:
        ConfigError: It was trained on them, and its weights have not changed since.
    """
    if (known := _trained_on(model)) and _digest(records) in known:
        raise ConfigError(
            "model",
            "one that an earlier run has trained on these records",
            "a model that was not: its weights hold what that run released, and ε would be that of this run alone. "
            "Make the model again, or put both runs under one budget",
        )


class TrainedOn:
    """Notes, once a run is over, which records its model was trained on.

    Args:
        model: The model, before the run.
        records: The records.
    """

    def __init__(self, model: nn.Module, records: Records) -> None:
        self._model, self._digests = model, _trained_on(model) | {_digest(records)}

    def end(self) -> None:
        """The run has taken a step, and leaves the model as it is now."""
        _TRAINED[self._model] = _state(self._model), self._digests


def _trained_on(model: nn.Module) -> set[str]:
    """Digests of the records that a model was trained on, unless its weights have changed since."""
    state, digests = _TRAINED.get(model, ([], set()))
    return digests if state == _state(model) else set()


def _state(model: nn.Module) -> list[tuple[int, int]]:
    """Changes with every write to a parameter."""
    return [(id(parameter), parameter._version) for parameter in model.parameters()]


def _digest(records: Records) -> str:
    return records.digest() if len(records) else ""
