"""The privacy statement: one page that a privacy officer can read and sign, made from the record of a run alone.

Every number that was computed has four significant digits. ε and sampling rates are rounded up, noise and lower bounds
down. Settings are shown as they were given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay._util.figures import shown
from assay.accounting.epsilon import Bound
from assay.errors import AssayError
from assay.runs.signoff import across, attackers, budget_headline, coverage, sign_off

_VARIANTS = {
    "published": "the paper's algorithm as its text describes it",
    "authors": "the paper's algorithm as its authors' public code runs it",
}
_TARGET = "A target ε is the claimed one; the verified ε is what it really spent"


def scored(facts: Mapping[str, Any]) -> str:
    """On which records accuracy was measured: `test`, or `validation` where training records were set aside for it.

    Args:
        facts: The run's record, or the `names` of its run.json.

    Returns:
        `test` or `validation`.
    """
    return "validation" if facts.get("validation_of") else "test"


def statement(record: Mapping[str, Any]) -> str:
    """The statement of a finished run.

    Args:
        record: What record.json holds; nothing else is needed.

    Returns:
        One page of Markdown.

    Raises:
        AssayError: An earlier version wrote the record, without everything that a statement says.
    """
    said = record.get("sentences")
    if said is None:
        raise AssayError(
            "this record cannot be made into a statement: an earlier version of Assay wrote it, without `sentences`"
            " (how noise was added, what ε covers, what is assumed). Show the run's directory: its statement.md says"
            " them"
        )
    lines = [
        *_head(record),
        *_parts(record),
        *_audit(record),
        "## What is protected",
        "",
        *_items([_unit(record), *said["protected"], *_clients_epsilon(record)]),
        "",
        "## How ε was obtained",
        "",
        *_items(
            [
                f"Method: {said['method']}.",
                *([f"Variant: {how}. {_TARGET}."] if (how := _VARIANTS.get(record["variant"])) else []),
                *_options(record),
                *said["mechanism"],
                _steps(record),
                _accountant(record, said),
                f"Random numbers: {said['randomness']}.",
            ]
        ),
        "",
        *_curve(record),
        *attackers(record["epsilon"]),
        "## What is covered by ε, and what is public",
        "",
        *_items(
            [
                f"Covered: {said['covered']}.",
                f"Taken as public: {said['public']}.",
                *([f"Initial weights: {began}."] if (began := initial_weights(record)) else []),
                *said["uncovered"],
                f"Not protected: the {scored(record)} records. Accuracy and loss are computed from them without noise.",
                *([f"Data: {record['notes']}"] if record["notes"] else []),
            ]
        ),
        "",
        "## What is assumed",
        "",
        *_items(
            [
                f"Model: {record['model']}. Made with Assay {record['environment']['assay']}, torch"
                f" {record['environment']['torch']}, dp_accounting {record['environment']['dp_accounting']}.",
                coverage(record),
                *(f"Settings: {words}." for words in choices(record.get("tuning"))),
                *said["assumed"],
            ]
        ),
        "",
        *sign_off(record, _units(record)),
    ]
    return "\n".join(lines)


def _items(lines: list[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _head(record: Mapping[str, Any]) -> list[str]:
    """What was spent, warnings, and the three ε side by side."""
    eps = record["epsilon"]
    published = {"published": " as published", "authors": " as in its authors' code"}.get(record["variant"], "")
    across = ", federated" if record.get("federated") else ""
    return [
        f"# Privacy statement: {record['method']}{published} on {record['data']}{across}",
        "",
        f"**Training this model spent ε = {shown(eps['verified'])} at δ = {eps['delta']:g}** (verified; unit of"
        f" privacy: {record['unit']}).",
        "",
        f"Smaller is safer: ε limits what the model can reveal about {record['unit']}. δ is a small allowance on top.",
        "",
        *budget_headline(record),
        *_warnings(record),
        "| ε | value | meaning |",
        "|---|---|---|",
        f"| claimed | {shown(eps['claimed'])} | what the method's paper would report for this run"
        f"{': its accountant finds no finite ε' if eps['claimed'] == 'inf' else ''} |",
        f"| verified | {shown(eps['verified'])} |"
        " what follows from the noise, the clipping and the sampling really done |",
        f"| audited | {shown(eps['audited'], lower_bound=True)} | what an attack could show: a lower bound |",
        "",
    ]


def _warnings(record: Mapping[str, Any]) -> list[str]:
    """What a reader must know before any number."""
    eps, lines = record["epsilon"], []
    if record["seed"] is not None:
        lines.append(
            "**Reproducible, not private.** The seed is fixed, and whoever knows it can subtract the noise. The ε below"
            " holds only against those who do not know the seed."
        )
    if (large := large_delta(eps["delta"], _units(record))) is not None:
        lines.append(f"**δ is too large.** {large}.")
    if eps["verified"] == "inf":
        parts = record.get("parts") or []
        noisy = parts and all(part["verified"] != "inf" for part in parts)
        lines.append(
            "**No privacy.** Everything that leaves has noise, but ε is beyond 1000, which counts as ∞."
            if noisy
            else "**No privacy.** Something in this run leaves without noise, or nothing bounds what one record does;"
            " no finite ε holds."
        )
    lines += [*_alarm(record.get("audits_aside") or {}), *_ENDED.get(record["status"], [])]
    return [line for warning in lines for line in (f"> {warning}", "")]


_ENDED = {
    "budget-spent": ["The budget ended this run before its planned last step."],
    "stopped": [
        "A callback ended this run before its planned last step, because of what the run had released. ε counts all"
        " planned steps."
    ],
}


def _alarm(aside: Mapping[str, Any]) -> list[str]:
    """A warning if an audit that trained again found more than the verified ε."""
    if aside.get("alarm") is None:
        return []
    found = f"An audit found more than the verified ε, with {100 * aside['confidence']:g} % confidence"
    if aside["alarm"] == "bug":
        return [f"**Implementation bug, or chance.** {found}: do not rely on this statement."]
    return [f"**Look into it.** {found}, if the trade-off function is Gaussian: no proof of a bug."]


def _unit(record: Mapping[str, Any]) -> str:
    if clients := (record.get("federated") or {}).get("clients"):
        return f"Unit of privacy: {record['unit']}; there are {clients} clients."
    if (persons := record.get("persons")) is not None:  # not in records of earlier versions
        return f"Unit of privacy: {record['unit']}, one of {persons['persons']} persons."
    less = "less: the sign-off says how much" if record["epsilon"].get("groups") else "less"
    return (
        f"Unit of privacy: {record['unit']}, one of {_at_stake(record)} training records{_set_aside(record)}. Somebody"
        f" with several records is protected {less}."
    )


def _clients_epsilon(record: Mapping[str, Any]) -> list[str]:
    each = (record.get("federated") or {}).get("clients_epsilon")
    if not each:
        return []
    most, least = (pick(each, key=float) for pick in (max, min))
    return [
        f"Of the clients, the one that spent most spent ε = {shown(most)}, the one that spent least {shown(least)}."
    ]


def _steps(record: Mapping[str, Any]) -> str:
    taken, charged, rounds = record["steps"], record["steps_charged"], record.get("federated")
    line = f"{'Rounds' if rounds else 'Steps'}: {taken} {'done' if rounds else 'taken'}, {charged} charged"
    if charged > taken:
        line += " (those lost in an interruption stay charged)"
    if rounds and rounds["refused_rounds"]:
        line += f"; {rounds['refused_rounds']} were not opened, because too few clients answered, and stay charged"
    return line + "."


def _at_stake(record: Mapping[str, Any]) -> int:
    """How many records ε protects: those for training, and those for a choice of settings that was charged."""
    if (persons := record.get("persons")) is not None:
        return int(persons["persons"])
    count: int = (record.get("tuning") or {}).get("records", record["records"])
    return count


def _units(record: Mapping[str, Any]) -> int:
    """How many records or clients there are, each of which ε protects."""
    return int(record["federated"]["clients"]) if record["unit"] == "one client" else _at_stake(record)


def _set_aside(record: Mapping[str, Any]) -> str:
    aside = _at_stake(record) - record["records"]
    return f", {aside} of which were not trained on but set aside to choose by" if aside else ""


def large_delta(delta: float, units: int) -> str | None:
    """What a δ of 1/units or more allows, in words.

    Args:
        delta: δ.
        units: How many records or clients are protected; 0 if that is not known.

    Returns:
        A sentence; None for a smaller δ.
    """
    if delta * units < 1:
        return None
    limit = f"δ = {delta:g} is not below 1/{units} = {1 / units:.4g}"
    return f"{limit}, so one of the {units} may be revealed completely, whatever ε is"


_BOUNDS: Mapping[str | None, str] = {
    Bound.EXACT: "a closed form, exact for what is charged (Gaussian noise: Balle and Wang 2018)",
    Bound.PLD: "privacy loss distributions (dp_accounting), an upper bound within 1 % of the exact one of what is"
    " charged",
    Bound.LOOSE_PLD: "privacy loss distributions (dp_accounting), an upper bound; how close it is to the exact one is"
    " not known",
    Bound.RENYI: "Rényi divergences (dp_accounting): an upper bound, where no better one could be computed",
    Bound.SUM: "the sum of the ε of the single releases, an upper bound",
    Bound.NONE: "no finite ε was found",
    None: "privacy loss distributions or, where those end, Rényi divergences (dp_accounting): an upper bound",
}
"""Bounds in words; None for records of earlier versions."""


def _accountant(record: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    eps = record["epsilon"]
    kind = eps.get("bound")
    how = said["accountant"] or _BOUNDS[kind] + (said["caveat"] if kind in (Bound.EXACT, Bound.PLD) else "")
    lines = [f"Accountant: {how}."]
    if kind != Bound.RENYI and eps["rdp"] != "inf":  # inf: no Rényi bound is at hand
        lines.append(f"Cross-check by Rényi divergences: ε ≤ {shown(eps['rdp'])}.")
    lines.append(f"Equivalent Gaussian DP at this δ: μ = {shown(eps['gdp_mu'])}.")
    return " ".join(lines)


def choices(tuning: Mapping[str, Any] | None) -> list[str]:
    """How settings were found, in words.

    Args:
        tuning: The record's `tuning`.

    Returns:
        A sentence for each choice, the first one first.
    """
    if tuning is None:
        return []
    paid = "the choice is part of ε" if tuning["charged"] else "the choice was not charged"
    if "candidates" in tuning:  # how many of them a charged choice tried is secret
        how = f"one of {len(tuning['candidates'])} settings, chosen on {tuning['on']}; {paid}"
    elif tuning["tried"]:
        how = f"{tuning['tried']} settings were tried, on {tuning['on']}; {paid}"
    else:
        how = f"chosen without looking at these records: {tuning['on']}"
    last = f"{tuning['from']}; {how}"
    if changed := tuning.get("changed"):  # not in records of earlier versions
        last = f"{tuning['from']}, with {', '.join(changed)} changed; the preset itself: {how}"
    return [*choices(tuning.get("start")), last]


def initial_weights(record: Mapping[str, Any]) -> str | None:
    """What the run began with and which layers were trained, in words.

    Args:
        record: The record.

    Returns:
        A sentence; None where all layers of a newly made model were trained.
    """
    init, layers = record.get("init"), record.get("train_layers") or "all"  # not in records of earlier versions
    if init is None and layers == "all":
        return None
    count = layers.removeprefix("last:")
    said = "the model's own"
    if init is not None:
        digest = record.get("init_sha256")  # not in runs that an earlier version began
        said = init + (f" (SHA-256 {digest})" if digest else "") + ", taken as public: nothing here shows that they are"
    fresh = ", ".join(record.get("init_anew") or [])
    trained = "all layers" if layers == "all" else "the last layer" if count == "1" else f"the last {count} layers"
    return said + (f"; newly initialised: {fresh}" if fresh else "") + f"; trained: {trained}"


def _audit(record: Mapping[str, Any]) -> list[str]:
    """What an audit showed, and that there are audits that trained again, whose figures no ε covers."""
    lines, audit = [], record["audit"]
    if audit is not None:
        assumed = f", assuming that {audit['assumption']}" if audit["assumption"] else ""
        lines += [f"Audit: **{audit['sentence']}** ({audit['estimator']}: {audit['how']}{assumed}).", ""]
    if aside := record.get("audits_aside"):  # not in records of earlier versions
        count = "One audit" if aside["count"] == 1 else f"{aside['count']} audits"
        lines += [
            f"{count} trained again on the same records. The figures are for the holder of the records (audits.json)."
            " ε does not cover them: do not publish them.",
            "",
        ]
    return lines


def _parts(record: Mapping[str, Any]) -> list[str]:
    if not record.get("parts"):  # not in records of earlier versions
        return []
    lines = ["| part | what is protected | claimed ε | verified ε |", "|---|---|---|---|"]
    for part in record["parts"]:
        claimed = "–" if part["claimed"] is None else shown(part["claimed"])
        lines.append(f"| {part['name']} | {part['unit']} | {claimed} | {shown(part['verified'])} |")
    reasons = [f"- {part['name']}: {part['reason']}." for part in record["parts"] if part["reason"]]
    return [*lines, "", *reasons, *([""] if reasons else [])]


def _curve(record: Mapping[str, Any]) -> list[str]:
    """ε at several δ."""
    points = record["epsilon"]["curve"]
    return across({"δ": [f"{p['delta']:g}" for p in points], "ε": [shown(p["epsilon"]) for p in points]})


def _options(record: Mapping[str, Any]) -> list[str]:
    """The options of the method that were set, if any."""
    said = [f"{key} = {value}" for key, value in record["options"].items() if key != "variant"]
    return [f"Options of the method: {', '.join(said)}."] if said else []
