"""The parts of a privacy statement that say what ε means: to an attacker, for groups, and to the person who signs.

The block for the signature has digests, and what is known for each question of the checklist in `docs/epsilon.md`. A
tick says that the record shows it, a cross that the record shows the opposite, and an empty box is for the person who
signs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from assay._util.figures import at_most, shown
from assay.accounting.adjacency import Adjacency

YES, NO, OPEN = "✓", "✕", "☐"
_BLANK = "________________"
_LARGEST = 700.0  # e to the power of more overflows


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


def sign_off(record: Mapping[str, Any], units: int) -> list[str]:
    """The lines of the block.

    Args:
        record: What record.json holds.
        units: How many records, persons or clients there are.

    Returns:
        Lines of Markdown.
    """
    eps = record["epsilon"]
    return [
        "## Sign-off",
        "",
        f"What ε = {shown(eps['verified'])} means: {meaning(eps['verified'], eps['delta'], _otherwise(record))}.",
        "",
        *_groups(record),
        f"| | question ({YES}: the record shows it, {NO}: it speaks against signing, {OPEN}: for you) | known |",
        "|---|---|---|",
        *(f"| {mark} | {question} | {known} |" for mark, question, known in checklist(record, units)),
        "",
        *across({name: [value] for name, value in _digests(record)}),
        f"| Date | {record.get('date') or _BLANK} | Operator | {record.get('operator') or _BLANK} |"
        f" Signature | {_BLANK} |",
        "|---|---|---|---|---|---|",
        "",
    ]


def meaning(epsilon: float | str | None, delta: float, otherwise: str) -> str:
    """What e^ε says, in words.

    Args:
        epsilon: ε.
        delta: δ.
        otherwise: What is compared with the data as they are.

    Example:
        >>> meaning(1.0, 1e-5, "without one image")
        'whatever is seen of the model is at most e^ε = 2.719 times as likely as without one image, plus a ...'
    """
    if epsilon is None or epsilon == "inf" or float(epsilon) > _LARGEST:
        return f"nothing is bounded: the model may look entirely different {otherwise}"
    times = at_most(math.exp(float(epsilon)))
    return (
        f"whatever is seen of the model is at most e^ε = {times} times as likely as {otherwise}, plus a probability of"
        f" {delta:g}"
    )


def _otherwise(record: Mapping[str, Any]) -> str:
    """The neighbouring data, in words."""
    replaced = record["epsilon"].get("adjacency", record.get("adjacency")) == Adjacency.REPLACE_ONE.value
    return f"with another in place of {record['unit']}" if replaced else f"without {record['unit']}"


def _groups(record: Mapping[str, Any]) -> list[str]:
    """ε for several records, or persons, that belong together."""
    rows = record["epsilon"].get("groups")  # not in records of earlier versions
    if not rows:
        return []
    of = "records of one person or family" if record.get("persons") is None else "persons of one family"
    together = f"ε for all of them at δ = {record['epsilon']['delta']:g}"
    return across({of: [str(row["size"]) for row in rows], together: [_bound(row) for row in rows]})


def _bound(row: Mapping[str, Any]) -> str:
    return "no finite bound" if row["epsilon"] == "inf" else shown(row["epsilon"])


def checklist(record: Mapping[str, Any], units: int) -> list[tuple[str, str, str]]:
    """A mark, a question and what is known of it, for each question of docs/epsilon.md."""
    eps, audit = record["epsilon"], record.get("audit") or {}
    finite = eps["verified"] != "inf"
    small = units == 0 or eps["delta"] * units < 1
    verdict = str(audit.get("verdict"))
    return [
        (OPEN, "Is the unit what you promised people?", f"ε protects {record['unit']}"),
        (
            YES if finite and small else NO,
            "Is ε the verified one, finite and as agreed? Is δ below one over their number?",
            f"ε = {shown(eps['verified'])}; δ = {eps['delta']:g}" + (f", 1/{units} = {1 / units:.4g}" if units else ""),
        ),
        (YES, "Is there no seed?", "none")
        if record["seed"] is None
        else (NO, "Is there no seed?", "the seed is fixed: reproducible, not private"),
        _once(record),
        (OPEN, "How were the features made?", "see Data above" if record["notes"] else "nothing is known"),
        {
            "consistent": (YES, "Is it audited, and consistent?", "an audit agrees"),
            "None": (OPEN, "Is it audited, and consistent?", "not audited"),
        }.get(verdict, (NO, "Is it audited, and consistent?", f"the audit says: {verdict}")),
        (OPEN, "Do only the listed files leave?", "ε covers model, record and statement"),
    ]


def _once(record: Mapping[str, Any]) -> tuple[str, str, str]:
    question = "Do all runs on these records and all settings tried count?"
    if free := uncharged(record.get("tuning")):
        return NO, question, f"{free}: ε does not count that"
    if budget := record.get("budget"):
        return (
            YES,
            question,
            f"budget {budget['name']}: {budget['runs']} so far, ε ≤ {shown(budget['spent'])} of {budget['epsilon']:g};"
            " runs that did not name it are not known",
        )
    return OPEN, question, "this run alone (several: `assay total`)"


def uncharged(tuning: Mapping[str, Any] | None) -> str | None:
    """What was tried on the records themselves without being charged, in words; None if nothing was.

    Args:
        tuning: The field of a record.
    """
    if tuning is None:
        return None
    if tuning.get("tried") and not tuning["charged"]:
        return f"{tuning['tried']} settings were tried on {tuning['on']} and not charged"
    return uncharged(tuning.get("start"))


def _digests(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    files = record.get("files") or {}
    data = (record.get("budget") or {}).get("data")
    return [
        ("SHA-256 of the model", files.get("model.safetensors") or "not written"),
        ("SHA-256 of the ledger", files.get("ledger.jsonl") or "not written"),
        (
            "SHA-256 of the records",
            # a digest without a key would tell whoever can guess a record whether the guess is right
            _BLANK if data is None else f"{data} (with the budget's secret key)",
        ),
    ]


def budget_headline(record: Mapping[str, Any]) -> list[str]:
    """All runs so far, below the ε of this one; nothing without a budget."""
    budget = record.get("budget")
    if not budget:
        return []
    most = f"of at most {budget['epsilon']:g} at δ = {budget['delta']:g}** (budget {budget['name']})."
    if budget["runs"] == 1:
        said = f"**It is the first run on these records, and counts there for ε ≤ {shown(budget['spent'])} {most}"
    else:
        said = (
            f"**All {budget['runs']} runs on these records together spent ε ≤ {shown(budget['spent'])} so far, {most}"
        )
    lines = [said, ""]
    for other in budget["overlaps"]:
        if "unit" in other:
            said = f"Some rows are also in the budget {other['name']}, whose ε is that of each {other['unit']}"
            lines += [f"> {said}: neither budget counts what the other spends.", ""]
            continue
        noun = "persons" if record.get("persons") else "records"
        some = f"{other['records']} of the {noun}" if "records" in other else f"Some {noun}"  # of earlier versions
        lines += [f"> {some} are also in the budget {other['name']}: for those, both add up.", ""]
    return lines


def coverage(record: Mapping[str, Any]) -> str:
    """What the statement says of other runs."""
    budget = record.get("budget")
    if not budget:
        return (
            "This statement covers this one run. Other runs on these records, and settings tried and dropped, add to ε."
        )
    return (
        f"The budget {budget['name']} counts every run that names it, those still at work with all that they reserved"
        f" ({budget['open']} now). Its total holds although settings were chosen after earlier results (Rényi filter,"
        f" orders {budget['orders'][0]} to {budget['orders'][-1]}); it is larger than this run's own ε, which is"
        " computed more closely."
        " Runs that did not name it, and settings tried without it, add to what is spent."
    )
