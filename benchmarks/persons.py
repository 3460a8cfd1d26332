"""ε of persons whose rows are sampled, by three accountants, as in docs/persons.md: `python -m benchmarks.persons`.

The column of jax_privacy is empty where it is not installed; it needs a separate environment with
`pip install jax-privacy`.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from dp_accounting.dp_event import SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from assay.accounting.accountants.mixture import sampled_together
from assay.accounting.epsilon import Adjacency, epsilon

# rows of a person, rate, noise multiplier, steps, δ
SETTINGS = (
    (2, 0.01, 1.0, 1000, 1e-5),
    (4, 0.02, 2.0, 500, 1e-5),
    (8, 0.005, 1.5, 2000, 1e-6),
    (32, 0.01, 4.0, 300, 1e-5),
    (16, 0.3, 6.0, 50, 1e-7),
)
_RECORDS = 10_000


def jax_privacy(rows: int, rate: float, sigma: float, steps: int, delta: float) -> float | None:
    """By `DpsgdTrainingUserLevelAccountant`; None where it is not installed."""
    if importlib.util.find_spec("jax_privacy") is None:
        return None
    accountants: Any = importlib.import_module("jax_privacy.accounting.accountants")
    analysis: Any = importlib.import_module("jax_privacy.accounting.analysis")
    params = analysis.DpParams(
        noise_multipliers=sigma,
        num_samples=_RECORDS,
        delta=delta,
        batch_size=round(_RECORDS * rate),
        examples_per_user=rows,
    )
    accountant = analysis.DpsgdTrainingUserLevelAccountant(accountants.PldAccountantConfig())
    return float(accountant.compute_epsilon(steps, params))


def main() -> None:
    """Print the table."""
    print("| rows k | rate q | σ | steps | δ | Assay | dp_accounting | jax_privacy |\n|" + "---|" * 8)
    for rows, rate, sigma, steps, delta in SETTINGS:
        event = SelfComposedDpEvent(sampled_together(rows, rate, sigma), steps)
        ours = epsilon(event, delta, Adjacency.ADD_OR_REMOVE_ONE)
        directly = PLDAccountant(value_discretization_interval=1e-4)
        directly.compose(event)
        theirs = jax_privacy(rows, rate, sigma, steps, delta)
        shown = "" if theirs is None else f"{theirs:.5g}"
        setting = f"| {rows} | {rate:g} | {sigma:g} | {steps} | {delta:g}"
        print(f"{setting} | {ours:.5g} | {directly.get_epsilon(delta):.5g} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
