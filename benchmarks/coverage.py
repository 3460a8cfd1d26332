"""Which models get exact per-record gradients, which are refused, and which go wrong. `python -m benchmarks coverage`

Every model gets four records in float64. The engine's per-record gradients are compared with those of each record run
alone by plain autograd, on two batches: the one that proves the engine, and one after it with fewer records.

- exact: all per-record gradients agree to 1e-9 of the largest, or as closely as plain autograd agrees with itself: for
  a record alone and in its batch, and for inputs that differ in their last bit.
- refused: Assay says that it cannot train the model privately, and why.
- raw error: an error that Assay did not mean to raise.
- unclear: plain autograd differs from itself by more than a thousandth, so that nothing can be compared.
- wrong: the numbers differ. A single one is a bug.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from assay.errors import AssayError
from assay.gradients.engine import Engine
from benchmarks import report
from benchmarks.coverage_cases import Case, layers, models
from benchmarks.coverage_opacus import opacus_cases
from benchmarks.coverage_timm import is_there, timm_cases

TOLERANCE = 1e-9
OUTCOMES = ("exact", "refused", "raw error", "wrong")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one case."""

    group: str
    name: str
    outcome: str
    fallback: int = 0
    """How many modules ran with a copy of their parameters for each record."""
    why: str = ""


def losses(output: Any) -> Tensor:
    """One value per record, in which every number of the first output counts differently."""
    first = next(
        t for t in pytree.tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point() and t.dim() > 0
    )
    flat = first.flatten(1) if len(first) else first.reshape(0, 1)
    return (F.softsign(flat) * torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)).sum(1)


def reference(case: Case, model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each record's gradient, one record at a time by plain autograd.

    With BatchNorm a record stands beside a copy of itself: in eval mode torch 2.13 computes wrong gradients for a batch
    of one record if the gradient of the output has its channels last.
    """
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    beside = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    rows = []
    for i in range(case.records):
        loss = losses(case.call(model, {name: t[[i, i] if beside else [i]] for name, t in inputs.items()}))[0]
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        rows.append([torch.zeros_like(p) if g is None else g for p, g in zip(named.values(), found, strict=True)])
    if not rows:
        return {n: torch.zeros(0, *p.shape, dtype=p.dtype) for n, p in named.items()}
    return {n: torch.stack(column) for n, column in zip(named, zip(*rows, strict=True), strict=True)}


def rounding(case: Case, model: nn.Module, inputs: Mapping[str, Tensor], alone: Mapping[str, Tensor]) -> float:
    """By how much plain autograd differs from itself on this model: deep ones without statistics magnify rounding."""
    moved = {name: t * (1 + 1e-15) if t.is_floating_point() else t for name, t in inputs.items()}
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    together = losses(case.call(model, inputs))
    found = [
        torch.autograd.grad(loss, [p for _, p in named], retain_graph=True, allow_unused=True) for loss in together
    ]
    gaps = [
        largest(g - alone[n][i])
        for i, row in enumerate(found)
        for (n, _), g in zip(named, row, strict=True)
        if g is not None
    ]
    return max([*gaps, *(largest(g - alone[n]) for n, g in reference(case, model, moved).items())], default=0.0)


def largest(t: Tensor) -> float:
    """The largest absolute value; 0 where there is none."""
    return float(t.abs().max()) if t.numel() else 0.0


def judged(case: Case) -> Outcome:
    """Run one case."""
    torch.manual_seed(0)
    model = case.build().double()
    with torch.no_grad():  # a layer that begins at zero would hide what is behind it
        for parameter in model.parameters():
            spread = float(parameter.std(unbiased=False)) if parameter.numel() else 0.0
            parameter.add_(0.1 * max(spread, 0.1) * torch.randn_like(parameter))
    inputs = {name: t.double() if t.is_floating_point() else t for name, t in case.inputs().items()}
    plain = copy.deepcopy(model)
    expected = reference(case, plain, inputs)
    scale = max(map(largest, expected.values()))
    given: dict[str, Any] = {"group": case.group, "name": case.name}
    engine = None
    try:
        engine = Engine(model)
        every = torch.arange(case.records)
        for rows in (every, every.roll(-2)[:3].sort().values.roll(1)):
            engine.expect(len(rows))
            grads = engine.collect(losses(case.call(model, {name: t[rows] for name, t in inputs.items()})))
            norms = grads.norms([0] * grads.layers)[:, 0]
            found = grads.per_record()
            gap = max(largest(found[n] - expected[n][rows]) for n in expected)
            true = torch.stack([g[rows].flatten(1).square().sum(1) for g in expected.values()]).sum(0).sqrt()
            if gap > TOLERANCE * scale or largest(norms - true) > TOLERANCE * largest(true):
                own = rounding(case, plain, inputs, expected)
                if gap <= 10 * own and own < 1e-3 * scale:
                    continue
                if gap <= 10 * own:
                    return Outcome(**given, outcome="unclear", why=f"plain autograd differs from itself by {own:.1g}")
                return Outcome(**given, outcome="wrong", why=f"differs by {gap:.1g}; the largest is {scale:.1g}")
        return Outcome(**given, outcome="exact", fallback=len(engine.once_each()))
    except AssayError as error:
        return Outcome(**given, outcome="refused", why=str(error).splitlines()[0])
    except Exception as error:  # that there are none is what the table shows
        return Outcome(**given, outcome="raw error", why=f"{type(error).__name__}: {error}")
    finally:
        if engine is not None:
            engine.detach()


def run(only: str | None = None) -> list[Outcome]:
    """Every case, or those whose name or group contains a text."""
    every = (*layers(), *models(), *opacus_cases(), *timm_cases())
    chosen = [c for c in every if only is None or only.lower() in f"{c.group} {c.name}".lower()]
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [_told(judged(case)) for case in chosen]


def _told(outcome: Outcome) -> Outcome:
    """Say on the error stream how far the table is."""
    print(f"{outcome.outcome}: {outcome.name}", file=sys.stderr, flush=True)
    return outcome


def rendered(found: Sequence[Outcome]) -> str:
    """One row for each group, then what is not exact or not fast."""
    outcomes = [*OUTCOMES, *(["unclear"] if any(o.outcome == "unclear" for o in found) else [])]
    groups = list(dict.fromkeys(outcome.group for outcome in found))
    rows = []
    for group in groups:
        count = Counter(outcome.outcome for outcome in found if outcome.group == group)
        rows.append([group, str(count.total()), *(str(count[outcome]) for outcome in outcomes)])
    lines = [report.table(["models", "cases", *outcomes], rows)]
    lines += [f"- {o.group}, {o.name}: {o.outcome}. {o.why[:200]}" for o in found if o.outcome != "exact"]
    if not is_there():
        lines.append("timm was not run: it cannot be imported here (it needs torchvision).")
    slow = [f"{o.name} ({o.fallback})" for o in found if o.outcome == "exact" and o.fallback]
    if slow:
        lines.append("Exact, with modules that run once for each record: " + ", ".join(slow) + ".")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Exact, refused, or wrong: per-record gradients of many models")
    parser.add_argument("only", nargs="?", help="cases whose name or group contains this text")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = run(options.only)
    print(json.dumps([asdict(outcome) for outcome in found], indent=2) if options.json else rendered(found))


if __name__ == "__main__":
    main()
