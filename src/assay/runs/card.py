"""The model card: `README.md` of a finished run, in the form of Hugging Face's hub, made from the record alone.

A run's directory can be pushed to a hub as it is. `.gitignore` beside the card keeps back what is only for the holder
of the records; both `git` and `huggingface_hub.upload_folder` follow it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from assay._util.figures import shown
from assay.runs.statement import scored, statement

_KINDS = {
    "binary": ("tabular-classification", "one of two classes"),
    "multiclass": ("tabular-classification", "one of several classes"),
    "multilabel": ("tabular-classification", "any of several labels"),
    "regression": ("tabular-regression", "a number between declared bounds"),
}
IGNORED = """\
# What is for the holder of the records only, or belongs to an unfinished run. Do not publish it.
audits.json
attacks.json
partition.png
checkpoint.safetensors
records.safetensors
UNFINISHED.txt
# What loggers wrote.
wandb/
mlruns/
"""
"""What `.gitignore` says in the directory of a finished run."""
_HEADING = re.compile(r"^(#+ )", re.MULTILINE)
_COMMONEST = "test_commonest"
"""A figure of the records, and not of the model."""


def card(record: Mapping[str, Any], text: str | None = None) -> str:
    """The model card of a finished run.

    Args:
        record: What record.json holds; nothing else is needed.
        text: The statement of the record, if it is at hand.

    Returns:
        Markdown that begins with YAML metadata.

    Raises:
        AssayError: An earlier version wrote the record, without everything that a statement says.
    """
    said = statement(record) if text is None else text
    lines = [
        *_metadata(record),
        f"# {record['model']}, trained on {record['data']} with differential privacy",
        "",
        f"**Training this model spent ε = {shown(record['epsilon']['verified'])} at δ ="
        f" {record['epsilon']['delta']:g}** (unit of privacy: {record['unit']}), with"
        f" Assay and the method {record['method']}.",
        "",
        "## Intended use",
        "",
        *_use(record),
        "",
        "## Privacy",
        "",
        *_epsilon(record),
        "",
        "## Results",
        "",
        *_results(record),
        "",
        "## How to load",
        "",
        *_loading(record),
        "",
        "## Privacy statement",
        "",
        _HEADING.sub(r"##\1", said).rstrip(),
        "",
        "## Files",
        "",
        "- `model.safetensors`: the weights. `record.json`: the run, for programs. `statement.md`: the statement.",
        "- `run.json`, `ledger.jsonl`: what was asked for and what was spent. `assay verify .` recomputes ε from them.",
        "- `audits.json` and `attacks.json`, if there are any, are for the holder of the records: ε does not cover"
        " them. `.gitignore` keeps them back.",
    ]
    return "\n".join(lines) + "\n"


def _metadata(record: Mapping[str, Any]) -> list[str]:
    """The block of YAML, for the hub's filters. Texts are quoted as JSON, which YAML reads."""
    task = _KINDS.get((record.get("task") or {}).get("kind", ""))
    table = record.get("table_schema") is not None
    tags = ["differential-privacy", "assay", record["method"], *(["federated"] if record.get("federated") else [])]
    lines = ["---", "library_name: assay-dp", "tags:", *(f"- {json.dumps(str(tag))}" for tag in tags)]
    if task is not None and table:
        lines.append(f"pipeline_tag: {task[0]}")
    measured = _figures(record)
    if measured:
        kind = task[0] if task is not None and table else "classification"
        lines += [
            "model-index:",
            f"- name: {json.dumps(str(record['model']))}",
            "  results:",
            "  - task:",
            f"      type: {kind}",
            "    dataset:",
            f"      name: {json.dumps(str(record['data']))}",
            f"      type: {json.dumps(str(record['data']))}",
            f"      split: {scored(record)}",
            "    metrics:",
        ]
        for name, value in measured.items():
            if name == _COMMONEST:
                continue
            lines += [f"    - type: {name.removeprefix('test_')}", f"      value: {value!r}"]
    return [*lines, "---", ""]


def _figures(record: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record["result"].items() if isinstance(value, int | float)}


def _use(record: Mapping[str, Any]) -> list[str]:
    task = _KINDS.get((record.get("task") or {}).get("kind", ""))
    predicts = "" if task is None else f" It predicts {task[1]}."
    return [
        f"- For predictions on records of the kind that it was trained on, {record['data']}.{predicts}",
        "- ε is about the records that the model was trained on. It does not protect records that you ask the model"
        " about: keep those, and the answers, as carefully as before.",
        "- ε is spent by publishing the model. Other models or figures from the same records spend more; together they"
        " cost more than each alone.",
        "- Differential privacy does not make a model right or fair. Noise costs most where there are few records:"
        " measure small groups before you rely on answers about them.",
    ]


def _epsilon(record: Mapping[str, Any]) -> list[str]:
    eps = record["epsilon"]
    warning = [] if record["seed"] is None else ["**Reproducible, not private: the seed of the noise is fixed.**", ""]
    return [
        *warning,
        "| | ε | meaning |",
        "|---|---|---|",
        f"| claimed | {shown(eps['claimed'])} | what the method's paper would report |",
        f"| **verified** | **{shown(eps['verified'])}** | what follows from noise, clipping and sampling |",
        f"| audited | {shown(eps['audited'], lower_bound=True)} | what an attack could show: a lower bound |",
        "",
        f"δ = {eps['delta']:g}; unit of privacy: {record['unit']}; neighbouring data sets:"
        f" {eps.get('adjacency', 'not noted')}.",
    ]


def _results(record: Mapping[str, Any]) -> list[str]:
    found = _figures(record)
    if not found:
        return ["Nothing was measured on records apart from those of training."]
    words = {name: name.removeprefix("test_").replace("_", " ") for name in found} | {
        _COMMONEST: "commonest class alone"
    }
    rows = [f"| {words[name]} | {value:.4g} |" for name, value in found.items()]
    return [f"| on the {scored(record)} records | |", "|---|---|", *rows]


def _loading(record: Mapping[str, Any]) -> list[str]:
    version = record["environment"]["assay"]
    named = isinstance(record.get("inputs"), Mapping)
    call = "assay.load(path)" if named else "assay.load(path, model=network)  # network: your module, with any weights"
    return [
        "```python",
        f"import assay                                            # Assay {version}",
        "from huggingface_hub import snapshot_download           # or use the directory where it is",
        "",
        'path = snapshot_download("OWNER/NAME")',
        f"model = {call}",
        "model.epsilon, model.statement                          # files are compared with their digests",
        "```",
        "",
        "Without Assay: `safetensors.torch.load_file('model.safetensors')` gives the state dict.",
    ]
