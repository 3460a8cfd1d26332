"""One loss per record for the models of Hugging Face, equal to what the model says for that record alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import ConfigError

IGNORED = -100
"""The label of positions that do not count."""
_OWN_LOSS = "a compute_loss_func that gives one loss per record"
_CLOSE = 1e-3  # relative; a loss of another kind is off by far more


def decoder_inputs(model: Any, batch: dict[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
    """A batch without its labels, and its labels.

    An encoder-decoder takes its labels, shifted to the right, for what its decoder has said so far.

    Args:
        model: The model, unwrapped.
        batch: Named tensors.

    Returns:
        What to call the model with, and the labels.
    """
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "shift_labels")}
    labels = batch.get("labels")
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    has_own = "decoder_input_ids" in inputs or "decoder_inputs_embeds" in inputs
    if shift is not None and labels is not None and labels.dim() == 2 and not has_own:
        inputs["decoder_input_ids"] = shift(labels=labels)
    return inputs, labels


def record_losses(outputs: Any, labels: Tensor | None, config: Any, *, shifts: bool, smoothing: float) -> Tensor:
    """One loss per record: the mean over its own positions or labels.

    It equals what the model computes for the record alone. The model's own loss over a batch is a mean over all its
    positions: there a long record would weigh more than a short one, and change the others' weight.

    Args:
        outputs: What the model returned, without labels.
        labels: [records], [records, labels], or [records, positions] where -100 does not count.
        config: The model's, which says what kind of problem it is.
        shifts: Whether position i predicts label i + 1.
        smoothing: Label smoothing.

    Returns:
        [records].

    Raises:
        ConfigError: We do not know the loss of such a model.
    """
    logits = outputs.get("logits") if hasattr(outputs, "get") else getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor) or labels is None:
        missing = "labels" if labels is None else "logits"
        raise ConfigError("compute_loss_func", f"a batch without {missing}", _OWN_LOSS)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if logits.dim() == 3 and labels.dim() == 2:
        return _of_positions(logits, labels, shifts=shifts, smoothing=smoothing)
    if logits.dim() == 2 and labels.dim() in (1, 2) and not shifts:
        return _of_class(logits, labels, getattr(config, "problem_type", None), smoothing)
    raise ConfigError("compute_loss_func", f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}", _OWN_LOSS)


def predicts_next(model: Any, batches: Iterable[dict[str, Any]], guess: bool) -> bool:
    """Whether position i of this model predicts label i + 1, by the model's own loss of one record at a time.

    So `record_losses` computes what the model would have been trained on without privacy, or is not used.

    Args:
        model: A copy of the model, in eval mode: what it does with the records stays in it.
        batches: Batches of one record. The first that has a loss decides.
        guess: The answer for a model that states no loss.

    Raises:
        ConfigError: The model's own loss is another one.
    """
    for batch in batches:
        with torch.no_grad():
            own = getattr(model(**batch), "loss", None) if "labels" in batch else None
            if own is None:
                return guess
            if own.dim() or not bool(torch.isfinite(own)):  # no label of this record counts
                continue
            inputs, labels = decoder_inputs(model, batch)
            outputs = model(**inputs)
            for shifts in (guess, not guess):
                if _agrees(own, outputs, labels, getattr(model, "config", None), shifts):
                    return shifts
        raise ConfigError(
            "compute_loss_func", None, f"a function with one loss per record: the loss of {type(model).__name__} is "
            "not the mean over a record's labels",
        )  # fmt: skip
    return guess


def _agrees(own: Tensor, outputs: Any, labels: Tensor | None, config: Any, shifts: bool) -> bool:
    try:
        mine = record_losses(outputs, labels, config, shifts=shifts, smoothing=0.0)
    except ConfigError:
        return False
    return bool((mine.mean() - own).abs() <= _CLOSE * own.abs() + 1e-6)


def _of_positions(logits: Tensor, labels: Tensor, *, shifts: bool, smoothing: float) -> Tensor:
    if shifts:
        logits, labels = logits[:, :-1], labels[:, 1:]
    counted = labels != IGNORED
    losses = F.cross_entropy(
        logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED, label_smoothing=smoothing
    )
    return (losses * counted).sum(1) / counted.sum(1).clamp_min(1)


def _of_class(logits: Tensor, labels: Tensor, problem: str | None, smoothing: float) -> Tensor:
    if problem == "regression" or (problem is None and logits.shape[1] == 1):
        wanted = labels.view(logits.shape) if labels.numel() == logits.numel() else labels
        return F.mse_loss(logits, wanted.to(logits.dtype), reduction="none").mean(1)
    if problem == "multi_label_classification" or labels.dim() == 2:
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").mean(1)
    return F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED, label_smoothing=smoothing)
