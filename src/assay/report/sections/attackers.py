"""What an attacker can find out at most about the records of each run, by its whole trade-off curve."""

from __future__ import annotations

from collections.abc import Sequence

from assay._util.figures import at_most
from assay.report.collect import Finished
from assay.report.elements import num, path_name, section, table
from assay.report.groups import finite
from assay.report.html import Html, tag
from assay.report.sections import Section
from assay.runs.signoff import percent


def _attackers(runs: Sequence[Finished]) -> Html | None:
    known = [run for run in runs if run.record["epsilon"].get("tradeoff")]
    if not known:
        return None
    rates = sorted({row["false_positives"] for run in known for row in run.record["epsilon"]["tradeoff"]["rates"]})
    heads = [
        ("run", False),
        *((f"found at {percent(rate)} false alarms", True) for rate in rates),
        ("μ of the whole curve", True),
        ("error of μ (points)", True),
    ]
    words = tag(
        "p",
        "An attacker guesses who was in the data, and accepts false alarms about some of those who were not. The table"
        " says how many of those in the data they find out at most, with whatever attack.",
        class_="hint",
    )
    caption = "What an attacker can find out at most (upper bounds, rounded up)"
    return section("attackers", "Attackers at most", words, table(caption, heads, [_row(run, rates) for run in known]))


def _row(run: Finished, rates: Sequence[float]) -> Html:
    found = run.record["epsilon"]["tradeoff"]
    by_rate = {row["false_positives"]: finite(row["true_positives"]) for row in found["rates"]}
    shares = [by_rate.get(rate) for rate in rates]
    mu, error = finite(found["mu"]), finite(found["error"])
    return tag(
        "tr",
        tag("th", path_name(run.name), scope="row"),
        [num(share, None if share is None else percent(share)) for share in shares],
        num(float("inf") if found["mu"] == "inf" else mu, None if mu is None else at_most(mu)),
        num(error, None if error is None else at_most(100 * error, 2)),
        data_method=str(run.record["method"]),
        data_data=str(run.record["data"]),
    )


SECTION = Section(name="attackers", order=58, render=lambda page: _attackers(page.found.finished))
