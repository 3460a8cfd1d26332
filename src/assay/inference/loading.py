"""The trained model of a finished run, from its files alone: no records are needed, and nothing is unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay import features as features_package
from assay import models
from assay.data import folders
from assay.data.split import SplitRule
from assay.data.tables.schema import as_schema
from assay.data.task import Task
from assay.errors import AssayError, ConfigError
from assay.inference.predicting import Predictions, answers
from assay.inference.preparing import Preparation
from assay.models.circulant import replace_linear
from assay.models.inputs import adapt_as
from assay.models.torchvision import adopt
from assay.runs.directory import RunDirectory
from assay.runs.reading import statement_of
from assay.runs.schema import is_by_name
from assay.training.inputs import load as load_data

_AT_ONCE = 512
_CHANGEABLE = ("model", "features", "circulant", "inputs", "task", "target")  # `assay tune` may choose them


class TrainedModel(nn.Module):
    """A trained model with its preparation, in eval mode.

        model = assay.load("runs/ward")
        model(x)                                   # the scores of prepared records, a tensor
        model.predict("new.csv").values            # classes, by name

    Attributes:
        network: The model as it was trained; it takes what `features` makes of a record.
        preparation: How new records are prepared.
        features: What is computed from a prepared record first, if the run was trained on features.
        task: What is predicted; None where the run did not note it.
        record: What `record.json` says, ε included.
        directory: The run.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        preparation: Preparation,
        features: features_package.Features | None,
        task: Task | None,
        record: Mapping[str, Any],
        directory: RunDirectory,
    ) -> None:
        super().__init__()
        self.network, self.preparation, self.features, self.task = network, preparation, features, task
        self.record, self.directory = dict(record), directory
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The scores of prepared records [B, *shape]: [B, outputs]."""
        found = self.network(x if self.features is None else self.features.extract(x.float()).float())
        scores = getattr(found, "logits", found)
        if not isinstance(scores, Tensor):
            raise AssayError(f"{self.directory.path}: the model returned a {type(found).__name__}, not a tensor")
        return scores

    def predict(self, records: object, *, batch_size: int = _AT_ONCE) -> Predictions:
        """What the model says about new records.

        The guarantee of the run is about its training records. It says nothing about `records`: keep the answers as
        carefully as the records themselves.

        Args:
            records: A path, a DataFrame, a list of dicts, an array...; see `Preparation.prepare`.
            batch_size: How many records go through the model at once.

        Returns:
            Probabilities and classes, or numbers, for each record.

        Raises:
            DataError: The records cannot be read or prepared; the message names file, row and column.
            ConfigError: They are of a kind or a shape that this model cannot take.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError("batch_size", batch_size, "a whole number, 1 or above")
        prepared = self.preparation.prepare(records)
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        with torch.no_grad():
            scores = torch.cat([self(x.to(device)).float().cpu() for x in prepared.x.split(batch_size)])
        if scores.dim() == 1:
            scores = scores[:, None]
        task = self._task_of(scores)
        return Predictions(
            task=task, array=answers(scores, task).numpy(), labels=prepared.labels, called=prepared.called
        )

    def _task_of(self, scores: Tensor) -> Task:
        outputs = scores.shape[1] if scores.dim() == 2 else None
        if self.task is not None and outputs == self.task.outputs:
            return self.task
        if self.task is None and outputs is not None and outputs > 1:
            return Task.of_classes(outputs)
        raise ConfigError(
            "task",
            f"a model with outputs of shape {tuple(scores.shape)}",
            "a run that notes what it predicts: give `task` to assay.fit, or to assay.load",
        )

    @property
    def statement(self) -> str:
        """The privacy statement of the run, after its files were checked against each other.

        Raises:
            AssayError: A file is missing or damaged, or its ledger gives a larger ε than the statement says.
        """
        return statement_of(self.directory.path)

    @property
    def epsilon(self) -> float:
        """The verified ε of the run, for its training records."""
        return float(self.record["epsilon"]["verified"])


def load(
    run: Path | str, *, model: nn.Module | None = None, task: Task | None = None, data_dir: Path | str | None = None
) -> TrainedModel:
    """Load the model of a finished run, ready to use.

    Its files are compared with their SHA-256 in the record. Weights are read as safetensors: no code in a file is run.

    Args:
        run: The directory of a finished run, central or federated.
        model: The architecture, for a run made from Python with a model that has no name. Its weights are replaced.
        task: What is predicted, for a run that did not note it.
        data_dir: Where data sets are. Only runs of earlier versions need it, which did not note the shape of a record.

    Returns:
        The model with its preparation, in eval mode.

    Raises:
        ConfigError: It is not the directory of a run, or the run's model has no name and `model` is not given.
        AssayError: The run is unfinished, or a file is missing or damaged. The message names file and field.
    """
    directory = RunDirectory.open(Path(run))
    record = directory.read_record()
    directory.check_files(record, directory.spec.name, directory.model.name)
    spec = directory.read_spec()
    names = _names(spec["names"], record)
    tensors = directory.read_model(record)
    by_name = is_by_name(spec)
    if model is None and not by_name:
        raise _nameless(directory)
    inputs = _inputs(names, data_dir) if by_name else {}
    network = _built(names, inputs) if model is None else model
    _fill(network, tensors, directory)
    if task is None:
        task = _task(names, inputs, directory)
    return TrainedModel(
        network,
        preparation=_preparation(names, inputs, directory),
        features=None if names.get("features") is None else features_package.parse(names["features"]),
        task=task,
        record=record,
        directory=directory,
    )


def _names(noted: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json says, and in its place what the record says of settings that `assay tune` chose."""
    chosen = {key: record[key] for key in _CHANGEABLE if record.get(key) is not None}
    return {**noted, **{key: value for key, value in chosen.items() if (key, value) != ("model", "unnamed")}}


def _inputs(names: Mapping[str, Any], data_dir: Path | str | None) -> dict[str, Any]:
    """The shapes of a record and of the model's input, and the number of outputs."""
    noted = names.get("inputs") or {}
    if noted.keys() >= {"record", "model", "outputs"}:
        return dict(noted)
    known = data_dir if data_dir is not None else names.get("data_dir")
    bundle = load_data(  # a run of an earlier version: only its data set says what shape a record has
        names["data"],
        None if known is None else Path(known),
        None,
        rule=SplitRule.from_json(names.get("split")),
        target=names.get("target"),
        schema=names.get("schema"),
        unit=names.get("unit_column"),
    )
    shape = bundle.input_shape
    if names.get("features") is not None:
        with torch.no_grad():
            made = features_package.parse(names["features"]).extract(torch.zeros(1, *shape))
        return {"record": list(shape), "model": list(made.shape[1:]), "outputs": bundle.classes}
    return {"record": list(shape), "model": list(shape), "outputs": bundle.classes}


def _nameless(directory: RunDirectory) -> ConfigError:
    return ConfigError(
        "run",
        str(directory.path),
        f"a run whose model has a name: {directory.spec} says in its field made_by that the run was made from Python. "
        "Give its architecture: assay.load(run, model=...)",
    )


def _built(names: Mapping[str, Any], inputs: Mapping[str, Any]) -> nn.Module:
    with torch.random.fork_rng(devices=()):  # the weights are replaced; later draws must not change
        network = models.build(names["model"], input_shape=tuple(inputs["model"]), classes=inputs["outputs"])
        if names.get("circulant") is not None:
            replace_linear(network, names["circulant"])
    return network


def _fill(network: nn.Module, tensors: Mapping[str, Tensor], directory: RunDirectory) -> None:
    if any(name.startswith("stem.pixels.") for name in tensors) and "stem.pixels" not in dict(network.named_modules()):
        adopt(network, {})  # the run began with torchvision's checkpoint
    adapt_as(network, tensors)
    ours = network.state_dict()
    wrong = [f"{name} is missing in the file" for name in ours if name not in tensors]
    wrong += [f"{name} is not in the model" for name in tensors if name not in ours]
    wrong += [
        f"{name} has shape {tuple(tensors[name].shape)} in the file and {tuple(tensor.shape)} in the model"
        for name, tensor in ours.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ConfigError("model", type(network).__name__, f"the architecture of {directory.model}: {wrong[0]}{more}")
    network.load_state_dict(dict(tensors))
    network.requires_grad_(False)


def _task(names: Mapping[str, Any], inputs: Mapping[str, Any], directory: RunDirectory) -> Task | None:
    try:
        if names.get("task") is not None:
            return Task.from_json(names["task"])
    except (ConfigError, TypeError) as error:
        raise AssayError(f"{directory.spec}: field names.task cannot be used: {error}") from error
    return Task.of_classes(inputs["outputs"]) if inputs.get("outputs", 0) > 1 else None


def _preparation(names: Mapping[str, Any], inputs: Mapping[str, Any], directory: RunDirectory) -> Preparation:
    shape = None if "record" not in inputs else tuple(inputs["record"])
    schema = names.get("schema")
    if schema is None:
        return Preparation(shape=shape)
    try:
        if "pictures" in schema:
            said = {**schema["pictures"], "classes": tuple(schema["pictures"]["classes"])}
            return Preparation(shape=shape, pictures=folders.PictureSchema(**said))
        unit = names.get("unit_column")
        return Preparation(shape=shape, table=as_schema(schema, names.get("target")), unit=unit)
    except (ConfigError, KeyError, TypeError, AttributeError) as error:
        raise AssayError(f"{directory.spec}: field names.schema cannot be used: {error}") from error
