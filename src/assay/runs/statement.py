"""The privacy statement: one page that a privacy officer can read and sign, made from the record of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dp_accounting.dp_event import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent

from assay._util.figures import at_least, at_most
from assay.accounting.epsilon import Adjacency, Bound
from assay.gradients.clipping import AdaptiveQuantile

if TYPE_CHECKING:
    from assay.methods.plan import Plan

_ADJACENCY = {
    Adjacency.ADD_OR_REMOVE_ONE: "two data sets are neighbours if one has exactly one record more than the other",
    Adjacency.REPLACE_ONE: "two data sets are neighbours if they have the same number of records and differ in exactly one",
}

_OTHERWISE = {
    Adjacency.ADD_OR_REMOVE_ONE: "without {}",
    Adjacency.REPLACE_ONE: "with another in place of {}",
}

_VARIANTS = {
    "published": "the paper's algorithm to the letter; a target ε was one to claim, and the verified ε is what it really spent",
}


def shown(value: float | str | None, *, lower_bound: bool = False) -> str:
    """A number as people read it: no smaller than it is, or for a lower bound no larger."""
    if value is None:
        return "not measured"
    if value == "inf":
        return "∞ (no privacy)"
    return at_least(float(value)) if lower_bound else at_most(float(value))


def scored(facts: Mapping[str, Any]) -> str:
    """Which records the accuracies of a run are of, by its record or its names: `test`, or `validation` where training records were set
    aside for it.
    """
    return "validation" if facts.get("validation_of") else "test"


def head(record: Mapping[str, Any], randomness: str, kind: str = "") -> list[str]:
    """How every statement begins: what was spent, warnings, and the three ε side by side."""
    eps = record["epsilon"]
    return [
        f"# Privacy statement: {record['method']}{_variant(record)} on {record['data']}{kind}",
        "",
        f"**Training this model spent ε = {shown(eps['verified'])} at δ = {eps['delta']:g}** (verified; unit of privacy: {record['unit']}).",
        "",
        *warnings(record, randomness),
        "| ε | value | meaning |",
        "|---|---|---|",
        f"| claimed | {shown(eps['claimed'])} | what the method's paper would report for this run |",
        f"| verified | {shown(eps['verified'])} | what follows from the noise, the clipping and the sampling really done |",
        f"| audited | {shown(eps['audited'], lower_bound=True)} | what an attack could show: a lower bound |",
        "",
    ]


def render(record: Mapping[str, Any], plan: Plan, randomness: str) -> str:
    """The statement of a finished run, in Markdown."""
    adjacency = Adjacency(record["epsilon"]["adjacency"])
    lines = [
        *head(record, randomness),
        *_parts(record),
        *audit_line(record),
        "## What is protected",
        "",
        f"- Unit of privacy: {record['unit']}, one of {_at_stake(record)} training records{_set_aside(record)}. Somebody with several records is protected less.",
        f"- Adjacency: {adjacency}: {_ADJACENCY[adjacency]}.",
        f"- In words: whatever is done with the model, its outputs are at most e^ε times as likely (plus δ) as they would be {_OTHERWISE[adjacency].format(record['unit'])}.",
        "",
        "## How ε was obtained",
        "",
        f"- Method: {plan.method.summary}. As published it is: {plan.method.soundness}.",
        *([f"- Variant: {_VARIANTS[record['variant']]}."] if record["variant"] == "published" else []),
        *options_line(record),
        *([] if plan.stage is None else [f"- Before training: {line}." for line in plan.stage.describe()]),
        *([f"- Encoded before clipping: {', '.join(record['encode'])}."] if record["encode"] else []),
        *_views(record),
        _bound(record, plan),
        f"- Noise of a step: {_noise(plan)}.",
        *_schedule(plan),
        *([f"- After the noise, at no cost: {', '.join(record['denoise'])}."] if record["denoise"] else []),
        f"- Batches: {plan.sampler.describe()}; sums are divided by the constant {record['sampling']['expected_batch_size']:g}.",
        f"- Steps: {record['steps']} taken, {record['steps_charged']} charged"
        + (" (those lost in an interruption stay charged)" if record["steps_charged"] > record["steps"] else "")
        + ".",
        _accountant(record, plan),
        f"- Random numbers: {randomness}.",
        "",
        *curve_table(record),
        "## What is covered by ε, and what is public",
        "",
        "- Covered: "
        + ("what was released before training, " if plan.stage is not None else "")
        + "the parameters after every step, hence the model, every checkpoint, the optimizer's state"
        + (
            ". No training losses are in the record."
            if plan.exact
            else ", and the training losses in the record (released with noise of their own; their share is part of ε)."
        ),
        *([_EXACT] if plan.exact else []),
        "- Taken as public: the number of training records, the batch size, the model's architecture and initial weights, every setting in the record.",
        *([f"- Initial weights: {began}."] if (began := initial_weights(record)) else []),
        f"- Not protected: the {scored(record)} records. {scored(record).capitalize()} accuracy and loss are computed from them without noise.",
        *([f"- Data: {record['notes']}"] if record["notes"] else []),
        "",
        "## What is assumed",
        "",
        "- This statement covers this one run. Other runs on the same records, settings tried before and dropped, add to what is spent.",
        *tuning_line(record),
        "- Only the model and the files of this run leave; batches, gradients before noise and the memory of the process do not.",
        _arithmetic(plan),
        "- The number of records with a gradient that was not a number is shown to the operator only and is not released.",
        "",
        f"Model: {record['model']}. Made with Assay {record['environment']['assay']}, torch {record['environment']['torch']}, "
        f"dp_accounting {record['environment']['dp_accounting']}.",
        "",
    ]
    return "\n".join(lines)


def warnings(record: Mapping[str, Any], randomness: str) -> list[str]:
    """What must be said before any number."""
    lines = []
    if record["seed"] is not None:
        lines += [
            f"> **Reproducible, not private.** {randomness}. The ε below holds only against those who do not know the seed.",
            "",
        ]
    units = record["federated"]["clients"] if record["unit"] == "one client" else _at_stake(record)
    if (said := large_delta(record["epsilon"]["delta"], units)) is not None:
        lines += [f"> **δ is too large.** {said}.", ""]
    parts = record.get("parts") or []
    if record["epsilon"]["verified"] == "inf" and parts and all(part["verified"] != "inf" for part in parts):
        lines += [
            "> **No privacy.** All that leaves has noise, but ε is beyond 1000, which is not told apart from ∞.",
            "",
        ]
    elif record["epsilon"]["verified"] == "inf":
        lines += ["> **No privacy.** Something in this run leaves without noise; no finite ε holds.", ""]
    if record["status"] == "budget-spent":
        lines += ["> The budget ended this run before its planned last step.", ""]
    return lines


def _at_stake(record: Mapping[str, Any]) -> int:
    """How many records ε protects: those that were trained on and, of a choice that was charged, those it was made by."""
    count: int = (record.get("tuning") or {}).get("records", record["records"])
    return count


def _set_aside(record: Mapping[str, Any]) -> str:
    aside = _at_stake(record) - record["records"]
    return f", {aside} of which were not trained on but set aside to choose by" if aside else ""


def large_delta(delta: float, units: int) -> str | None:
    """What a δ of 1/units or more allows, in words; None for one that is smaller, or where the number is not known (0)."""
    if delta * units < 1:
        return None
    return f"δ = {delta:g} is not below 1/{units} = {1 / units:.2g}, so that one of the {units} may be given away whole, whatever ε is"


_EXACT = (
    "- Covered: the arithmetic of sums and noise. Clipped gradients are whole multiples of a power of two, within the "
    "bound exactly; their sums are exact; the noise is a normal number rounded to those multiples and drawn exactly. "
    "What leaves is therefore a function of the Gaussian mechanism over the real numbers, and its lowest bits tell "
    "nothing more."
)


def _arithmetic(plan: Plan) -> str:
    """What is assumed about floating-point numbers."""
    if not plan.exact:
        return "- Noise is drawn in floating point. Attacks on its lowest bits are known and are not covered by ε."
    return (
        "- A record's gradient has the same bits wherever in its batch it stands and whatever stands beside it. "
        "This was tested on the first batch."
    )


def _noise(plan: Plan) -> str:
    event = plan.step_event
    if isinstance(event, GaussianDpEvent):
        if plan.exact:
            return f"Gaussian, standard deviation {event.noise_multiplier:.5g} times that bound, drawn exactly, once a step"
        return f"Gaussian, standard deviation {event.noise_multiplier:.5g} times that bound, for all that a step releases together, drawn once a step"
    if isinstance(event, NoOpDpEvent):
        return "none: the records were released before training, and what is made of them costs nothing more"
    if isinstance(event, NonPrivateDpEvent):
        return "not enough for any ε: something of the gradient leaves without noise"
    return f"{event}, drawn once a step"


def _schedule(plan: Plan) -> list[str]:
    bands = len(plan.schedule.strategy)
    if bands > 1:
        return [
            f"- The noise is correlated ({plan.noise_schedule}): a step takes back some of the noise of the {bands - 1} steps before it. "
            "The standard deviation above is that of a strategy matrix of norm 1, and each batch that a record may be in is charged once "
            "(Choquette-Choo et al. 2023)."
        ]
    if len(plan.stretches) == 1:
        return []
    said = ", ".join(f"{steps} steps at {plan.noise_multiplier * factor:.5g}" for steps, factor in plan.stretches)
    return [
        f"- The noise falls over the run ({plan.noise_schedule}): {said} times that bound; each stretch is charged for its own noise."
    ]


BOUNDS: Mapping[str | None, str] = {
    Bound.EXACT: "a closed form, exact for what is charged (Gaussian noise: Balle and Wang 2018)",
    Bound.PLD: "composition of privacy loss distributions (dp_accounting), discretised so that ε is an upper bound within 1 % of the exact one "
    "of what is charged",
    Bound.LOOSE_PLD: "composition of privacy loss distributions (dp_accounting), discretised so that ε is an upper bound; how close it is to "
    "the exact one is not known",
    Bound.RENYI: "Rényi divergences (dp_accounting): an upper bound, where no better one could be computed",
    Bound.SUM: "the sum of the ε of the single releases, an upper bound",
    Bound.NONE: "no finite ε was found",
    None: "privacy loss distributions or, where those end, Rényi divergences (dp_accounting): an upper bound",  # records of earlier versions
}
"""What a bound is, in words; None for records of earlier versions."""


def _accountant(record: Mapping[str, Any], plan: Plan) -> str:
    eps = record["epsilon"]
    kind = eps.get("bound")
    if eps["accountant"] == "Rényi":
        how = "Rényi divergences of one trial, and of the best of a random number of them (Papernot and Steinke 2022; dp_accounting): an upper bound"
    else:
        how = BOUNDS[kind]
        if kind in (Bound.EXACT, Bound.PLD) and (plan.sampling == "shuffle" or len(plan.schedule.strategy) > 1):
            how += "; batches drawn so cost no more than that, and how much exactly is not known"
    said = [f"- Accountant: {how}."]
    if kind != Bound.RENYI and eps["rdp"] != "inf":  # inf: no Rényi bound is at hand
        said.append(f"Cross-check by Rényi divergences: ε ≤ {shown(eps['rdp'])}.")
    said.append(f"Equivalent Gaussian-DP at this δ: μ = {shown(eps['gdp_mu'])}.")
    return " ".join(said)


def tuning_line(record: Mapping[str, Any]) -> list[str]:
    """How the settings were found, as far as that is known."""
    return [f"- Settings: {words}." for words in choices(record["tuning"])]


def choices(tuning: Mapping[str, Any] | None) -> list[str]:
    """How settings were found, in words: those that others were tried around first."""
    if tuning is None:
        return []
    paid = "the choice is part of ε" if tuning["charged"] else "the choice was not charged"
    if "candidates" in tuning:  # how many of them were tried in a choice that is charged is secret
        found = f"one of {len(tuning['candidates'])} settings, chosen on {tuning['on']}; {paid}"
    elif tuning["tried"]:
        found = f"{tuning['tried']} settings were tried, on {tuning['on']}; {paid}"
    else:
        found = f"chosen without looking at these records: {tuning['on']}"
    last = f"{tuning['from']}; {found}"
    if changed := tuning.get("changed"):  # not in records of earlier versions
        last = f"{tuning['from']}, with {', '.join(changed)} changed; the preset itself: {found}"
    return [*choices(tuning.get("start")), last]


def initial_weights(record: Mapping[str, Any]) -> str | None:
    """What the run began with and which layers were trained, in words; None where the model began as it was made and all of it was."""
    init, layers = record.get("init"), record.get("train_layers") or "all"  # not in records of earlier versions
    if init is None and layers == "all":
        return None
    count = layers.removeprefix("last:")
    said = "the model's own"
    if init is not None:
        digest = record.get("init_sha256")  # not in runs that an earlier version began
        said = init + (f" (SHA-256 {digest})" if digest else "") + ", taken as public: nothing here shows that they are"
    anew = ", ".join(record.get("init_anew") or [])
    trained = "all layers" if layers == "all" else "the last layer" if count == "1" else f"the last {count} layers"
    return said + (f"; begun anew: {anew}" if anew else "") + f"; trained: {trained}"


def audit_line(record: Mapping[str, Any]) -> list[str]:
    """What an audit said, if there was one."""
    audit = record["audit"]
    if audit is None:
        return []
    assumed = f", assuming that {audit['assumption']}" if audit["assumption"] else ""
    return [f"Audit: **{audit['sentence']}** ({audit['estimator']}: {audit['how']}{assumed}).", ""]


def _parts(record: Mapping[str, Any]) -> list[str]:
    if not record.get("parts"):  # not in records of earlier versions
        return []
    lines = ["| part | what is protected | claimed ε | verified ε |", "|---|---|---|---|"]
    for part in record["parts"]:
        claimed = "–" if part["claimed"] is None else shown(part["claimed"])
        lines.append(f"| {part['name']} | {part['unit']} | {claimed} | {shown(part['verified'])} |")
    reasons = [f"- {part['name']}: {part['reason']}." for part in record["parts"] if part["reason"]]
    return [*lines, "", *reasons, *([""] if reasons else [])]


def curve_table(record: Mapping[str, Any]) -> list[str]:
    """ε at several δ."""
    points = record["epsilon"]["curve"]
    return ["| δ | ε |", "|---|---|", *(f"| {p['delta']:g} | {shown(p['epsilon'])} |" for p in points), ""]


def options_line(record: Mapping[str, Any]) -> list[str]:
    """The options of the method that were set, if any."""
    said = [f"{key} = {value}" for key, value in record["options"].items() if key != "variant"]
    return [f"- Options of the method: {', '.join(said)}."] if said else []


def _variant(record: Mapping[str, Any]) -> str:
    return " as published" if record["variant"] == "published" else ""


def _views(record: Mapping[str, Any]) -> list[str]:
    augment = record["training"].get("augment")
    return (
        []
        if augment is None
        else [
            f"- Views: a record's gradient is the mean over random views of it ({augment}), taken before it is bounded."
        ]
    )


def _bound(record: Mapping[str, Any], plan: Plan) -> str:
    if math.isinf(plan.clip.l2) and plan.stage is not None:
        return "- Gradients are not clipped."
    if math.isinf(plan.clip.l2):
        return f"- Gradients are assumed to have norm at most {plan.clip.bound:g}; nothing is clipped, so nothing bounds what one record moves."
    if isinstance(plan.clip, AdaptiveQuantile):
        return (
            f"- Each record's gradient is bounded ({record['clip']}); one record moves a step's sum by at most the bound in force at that step, "
            f"which begins at {plan.chain().l2:g} and follows a quantile of the gradients' norms, by counts released with noise."
        )
    averaged = f", averaged over micro-batches of {record['micro_batch']}" if record["micro_batch"] > 1 else ""
    return f"- Each record's gradient is bounded ({record['clip']}{averaged}); one record moves a step's sum by at most {plan.chain().l2:g}."
