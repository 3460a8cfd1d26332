"""A trained model as a program that runs without Assay, with its privacy statement in it and beside it.

The program takes prepared records and gives probabilities, or numbers in the units of the target. It includes features
that the run computed from each record. It was compared with the original before it was written.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay import features
from assay._util import extras, seals
from assay._util.files import replace_text, replacing
from assay.data.task import REGRESSION, Task
from assay.errors import AssayError, ConfigError, one_of
from assay.inference.loading import TrainedModel
from assay.inference.loading import load as load_model
from assay.inference.predicting import answers, free

SCHEMA = "assay.export/1"
_SAMPLES = (1, 3, 6)
_TOLERANCE = 1e-4


class _Program(nn.Module):
    """From prepared records to answers, as `TrainedModel.predict` gives them."""

    def __init__(self, model: TrainedModel, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, records: Tensor) -> Tensor:
        """[B, *shape] to [B, outputs]."""
        return answers(self.model(records), self.task)


def export(
    run: TrainedModel | Path | str, path: Path | str, *, format: str | None = None, force: bool = False
) -> dict[str, Any]:
    """Write the model of a finished run as a program that needs no Assay.

    `torch` writes a `torch.export` program, which `torch.export.load` reads; `onnx` an ONNX model. Both hold the
    privacy statement and a description of inputs and outputs: as extra files, or as metadata. The statement is also
    written beside the program, as `<file>.statement.md`.

    Guaranteed: the program was run on sample inputs, and its answers differ from the original's by at most 1e-4 of the
    range of an answer.

    Args:
        run: The directory of a finished run, or what `assay.load` returned.
        path: A new file: .pt2 for torch, .onnx for ONNX.
        format: `torch` or `onnx`; by default as the name ends.
        force: Replace files that are there.

    Returns:
        The description that is in the file: shapes, classes, ε, and how many records it takes at once.

    Raises:
        ConfigError: The format is not known, a package is missing, the file is there already, or the run did not note
            the shape of a record.
        AssayError: The model cannot be written in this format, or a file of the run is damaged.
    """
    target = Path(path)
    if format is None:
        ends = {suffix: name for name, (suffix, _) in _WRITERS.items()}
        if target.suffix.lower() not in ends:
            raise ConfigError("out", str(path), f"a name that ends with {' or '.join(ends)}")
        format = ends[target.suffix.lower()]
    if format not in _WRITERS:
        raise ConfigError("format", format, one_of(format, _WRITERS))
    suffix, write = _WRITERS[format]
    if target.suffix.lower() != suffix:
        raise ConfigError("out", str(path), f"a name that ends with {suffix}, for format {format}")
    beside = beside_of(target)
    for file in (target, beside):
        free(file, force=force)
    model = run if isinstance(run, TrainedModel) else load_model(run)
    shape, task = model.preparation.shape, model.task
    if shape is None or task is None:
        raise ConfigError("run", str(model.directory.path), "a run of `assay train`, which notes the shape of a record")
    statement = model.statement  # refuses a run whose files do not agree
    program = _Program(model, task).eval()
    samples = [features.sample(model.features, _drawn(shape, count)) for count in _SAMPLES]
    with torch.no_grad():
        expected = [program(x).numpy() for x in samples]  # also fills caches of filters, before anything is traced
    described = _described(model, shape, task, format)
    content = write(program, samples, expected, described, statement)
    with replacing(target) as temporary:
        temporary.write_bytes(content)
    replace_text(beside, statement)
    return described


def beside_of(path: Path) -> Path:
    """The file beside a program, or beside predictions, that holds the privacy statement of the model."""
    return path.with_name(f"{path.name}.statement.md")


def _drawn(shape: tuple[int, ...], count: int) -> Tensor:
    """Numbers for records to compare with, from -1 to 1; they are public."""
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(count)) * 2 - 1


def _described(model: TrainedModel, shape: tuple[int, ...], task: Task, format: str) -> dict[str, Any]:
    table, pictures = model.preparation.table, model.preparation.pictures
    eps = model.record["epsilon"]
    return {
        "schema": SCHEMA,
        "format": format,
        "input": {
            "name": "records",
            "shape": ["records", *shape],
            "features": None if table is None else table.feature_names(model.preparation.unit),
            "prepared_by": None
            if table is None and pictures is None
            else (table.to_json() if table is not None else pictures.to_json() if pictures is not None else None),
        },
        "records_at_once": "any number",
        "output": {
            "name": "value" if task.kind == REGRESSION else "probabilities",
            "shape": ["records", task.outputs],
            "task": task.to_json(),
        },
        "privacy": {
            "epsilon": eps["verified"],
            "delta": eps["delta"],
            "adjacency": eps.get("adjacency"),
            "unit": model.record.get("unit"),
            "statement": "statement.md",
        },
        "model_sha256": seals.of_file(model.directory.model),
    }


def _as_torch(
    program: nn.Module,
    samples: list[Tensor],
    expected: list[np.ndarray[Any, Any]],
    described: dict[str, Any],
    statement: str,
) -> bytes:
    """A `torch.export` program; for any number of records where that can be traced, else for one at a time."""
    traced = _traced(program, samples, described)
    module = traced.module()
    with torch.no_grad():
        _compare(lambda x: module(x).numpy(), samples, expected, described)
    held = {"statement.md": statement, "assay.json": json.dumps(described, ensure_ascii=False, indent=2)}
    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(traced, buffer, extra_files=held)
    return buffer.getvalue()


def _traced(program: nn.Module, samples: list[Tensor], described: dict[str, Any]) -> torch.export.ExportedProgram:
    example = samples[1]
    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(
                program, (example,), dynamic_shapes={"records": {0: torch.export.Dim("n", min=1, max=1 << 20)}}
            )
    except Exception:  # tracing fails in many ways where code depends on the number of records
        described["records_at_once"] = 1
        described["input"]["shape"][0] = described["output"]["shape"][0] = 1
    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(program, (samples[0],))
    except Exception as error:
        raise AssayError(f"the model cannot be traced by torch.export: {_line(error)}") from error


def _as_onnx(
    program: nn.Module,
    samples: list[Tensor],
    expected: list[np.ndarray[Any, Any]],
    described: dict[str, Any],
    statement: str,
) -> bytes:
    """An ONNX model, checked with onnxruntime where that is installed, else with ONNX's own evaluator."""
    try:
        import onnx
        import onnxscript  # noqa: F401  torch writes ONNX with it
    except ImportError:
        raise ConfigError("format", "onnx", f"the packages onnx and onnxscript: {extras.command('onnx')}") from None
    traced = _traced(program, samples, described)
    name = described["output"]["name"]
    try:
        with _quiet():
            made = torch.onnx.export(
                traced, (), dynamo=True, verbose=False, input_names=["records"], output_names=[name]
            )
    except Exception as error:  # it fails in many ways
        raise AssayError(f"the model cannot be written as ONNX: {_line(error)}; try --format torch") from error
    assert made is not None
    found = made.model_proto
    for key, value in (("statement", statement), ("assay", json.dumps(described, ensure_ascii=False))):
        entry = found.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(found)
    content: bytes = found.SerializeToString()
    run = _evaluator(content)
    _compare(lambda x: run({"records": x.numpy()}), samples, expected, described)
    return content


def _evaluator(content: bytes) -> Callable[[dict[str, Any]], Any]:
    try:
        import onnxruntime
    except ImportError:
        import onnx
        from onnx.reference import ReferenceEvaluator

        reference: Any = ReferenceEvaluator(onnx.load_from_string(content))
        return lambda feeds: reference.run(None, feeds)[0]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)[0]


def _compare(
    run: Callable[[Tensor], Any],
    samples: list[Tensor],
    expected: list[np.ndarray[Any, Any]],
    described: Mapping[str, Any],
) -> None:
    """Refuse a program whose answers differ from the original's.

    Raises:
        AssayError: Says by how much.
    """
    task = Task.from_json(described["output"]["task"])
    scale = 1.0 if task.low is None or task.high is None else task.high - task.low
    one = described["records_at_once"] == 1
    for x, wanted in zip(samples, expected, strict=True):
        found = np.concatenate([run(row[None]) for row in x]) if one else run(x)
        gap = float(np.abs(found - wanted).max()) / scale
        if not gap <= _TOLERANCE:
            raise AssayError(
                f"the exported program answers otherwise than the model, by {gap:.2g} of the range; nothing was written"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and progress that tracing prints."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "torch._export")]
    levels = [one.level for one in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in loggers:
            one.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for one, level in zip(loggers, levels, strict=True):
                one.setLevel(level)


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__


_Writer = Callable[[nn.Module, list[Tensor], list[np.ndarray[Any, Any]], dict[str, Any], str], bytes]
_WRITERS: dict[str, tuple[str, _Writer]] = {"torch": (".pt2", _as_torch), "onnx": (".onnx", _as_onnx)}
