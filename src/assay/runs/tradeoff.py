"""What an attacker can find out at most, in words: for statements, commands and pages, and its check by the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay._util.figures import at_most
from assay.accounting.ledger import Ledger
from assay.accounting.tradeoff import tradeoff
from assay.errors import AssayError


def attackers(facts: Mapping[str, Any]) -> list[str]:
    """The part of a statement about attackers; nothing for records of earlier versions.

    Args:
        facts: The record's `epsilon`.

    Returns:
        Lines of Markdown.
    """
    found = facts.get("tradeoff")
    if not found:
        return []
    rows = found["rates"]
    return [
        *across(
            {
                "false alarms that an attacker accepts": [percent(row["false_positives"]) for row in rows],
                "those in the data who are found out, at most": [percent(row["true_positives"]) for row in rows],
            }
        ),
        curve_in_words(found),
        "",
    ]


def across(rows: Mapping[str, list[str]]) -> list[str]:
    """A table of Markdown with a line for each name, which takes less of a page than one with a line for each value.

    >>> across({"δ": ["0.1", "0.01"], "ε": ["1", "2"]})
    ['| δ | 0.1 | 0.01 |', '|---|---|---|', '| ε | 1 | 2 |', '']
    """
    first, *others = [f"| {' | '.join([name, *values])} |" for name, values in rows.items()]
    columns = 1 + len(next(iter(rows.values())))
    return [first, "|" + columns * "---|", *others, ""]


def sentence(found: Mapping[str, Any]) -> str:
    """The row at 1 % false alarms, or the one in the middle, as a sentence that needs no other word.

    Args:
        found: The record's `epsilon.tradeoff`.
    """
    rows = {row["false_positives"]: row["true_positives"] for row in found["rates"]}
    rate = 0.01 if 0.01 in rows else sorted(rows)[len(rows) // 2]
    return (
        f"An attacker who accepts {percent(rate)} false alarms finds out at most {percent(rows[rate])} of those in the"
        f" data; by chance it would be {percent(rate)}."
    )


def curve_in_words(found: Mapping[str, Any]) -> str:
    """The whole curve by its μ, in words.

    Args:
        found: The record's `epsilon.tradeoff`.
    """
    mu = found["mu"]
    if mu is None:
        return "The μ of the whole curve (Gaussian DP) is not available for this kind of bound."
    if mu == "inf":
        return "Nothing bounds what an attacker finds out."
    if not found["error"] and not found["apart"]:
        return f"The whole curve is that of μ-GDP with μ = {at_most(mu)}, exactly."
    return (
        f"At all rates the run is μ-GDP with μ = {at_most(mu)}, apart from a probability of {found['apart']:g};"
        f" that overstates right guesses by up to {at_most(100 * found['error'])} percentage points."
    )


def percent(share: float) -> str:
    """An upper bound on a share, in per cent and rounded up.

    >>> percent(0.01951)
    '1.951 %'
    """
    return f"{at_most(min(100 * share, 100.0))} %"


def check_tradeoff(facts: Mapping[str, Any], ledger: Ledger, tolerance: float) -> None:
    """Recompute the trade-off curve from the ledger, which must not give more than the record says.

    Args:
        facts: The record's `epsilon`. Records of earlier versions have no `tradeoff`, and nothing is compared.
        ledger: What was charged.
        tolerance: How far figures may differ by rounding, relative.

    Raises:
        AssayError: The ledger gives more.
    """
    said = facts.get("tradeoff")
    if not said:
        return
    rates = [float(row["false_positives"]) for row in said["rates"]]
    gives = tradeoff(ledger.event(), ledger.delta, ledger.adjacency, rates)
    for row, (rate, least) in zip(said["rates"], gives.rates, strict=True):
        if not float(row["true_positives"]) >= least * (1 - tolerance):
            raise AssayError(
                f"record.json says that an attacker with {percent(rate)} false alarms finds at most "
                f"{percent(float(row['true_positives']))}; the ledger gives {percent(least)}"
            )
    if said["mu"] is not None and not (gives.mu is not None and float(said["mu"]) >= gives.mu * (1 - tolerance)):
        raise AssayError(f"record.json says μ = {said['mu']}; the ledger gives {gives.mu}")
