"""What the record and the statement of a central run take from its plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dp_accounting.dp_event import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent

from assay import methods
from assay._util.figures import at_least
from assay.accounting import schedules
from assay.accounting.epsilon import Adjacency, epsilon
from assay.methods import denoise, encode
from assay.methods.encode.mean import ClippedMean
from assay.methods.plan import Plan
from assay.methods.stage import WHOLE, Part
from assay.randomness.streams import Randomness
from assay.runs.record import Facts, Sentences, number
from assay.runs.schema import CENTRAL
from assay.training.settings import training_from_json

_UNIT = "one record"

_ADJACENCY = {
    Adjacency.ADD_OR_REMOVE_ONE: "two data sets are neighbours if one has exactly one record more than the other",
    Adjacency.REPLACE_ONE: "two data sets are neighbours if they have the same number of records and differ in exactly"
    " one",
}


def facts(
    plan: Plan, names: Mapping[str, Any], augment: str | None, randomness: Randomness, steps: int, *, stopped: bool
) -> Facts:
    """What `assay.runs.record.build_record` needs to know about a central run.

    Args:
        plan: What was promised.
        names: Describes model and data.
        augment: The views that were asked for, if any.
        randomness: Where the run's random numbers come from.
        steps: How many were taken.
        stopped: Whether a callback ended the run.
    """
    described = plan.to_json()
    return Facts(
        kind=CENTRAL,
        method=plan.method.name,
        variant=plan.method.variant,
        options=methods.options(plan.method),
        encode=[encode.describe(part) for part in plan.encode],
        denoise=[denoise.describe(part) for part in plan.denoise],
        unit=_unit(plan, names),
        records=plan.records,
        persons=None if plan.unit is None else plan.unit.to_json(),
        planned=plan.steps,
        claimed=plan.claimed(plan.steps if stopped else min(steps, plan.steps)),
        parts=[_row(part, plan) for part in _parts(plan)],
        noise_multiplier=plan.noise_multiplier,
        noise_schedule=schedules.describe(plan.schedule),
        clip=str(plan.clip),
        micro_batch=plan.micro_batch,
        center=described["center"],
        columns=described.get("columns"),
        exact=plan.exact,
        sampling={"kind": plan.sampling.name, "rate": plan.sampler.rate, "expected_batch_size": plan.batch_size},
        sentences=_sentences(plan, augment, randomness),
    )


def _row(part: Part, plan: Plan) -> dict[str, Any]:
    return {
        "name": part.name,
        "unit": part.unit,
        "claimed": number(part.claimed),
        "verified": number(min(part.pure, epsilon(part.event, plan.delta, plan.adjacency))),
        "reason": part.reason,
    }


def _parts(plan: Plan) -> list[Part]:
    """What is released with separate noise, each a row of the statement."""
    whole = WHOLE if plan.unit is None else str(plan.unit)
    return [
        *([] if plan.columns is None else [plan.columns.part(whole)]),
        *([] if plan.stage is None else plan.stage.parts()),
    ]


def sentences(spec: Mapping[str, Any]) -> Sentences:
    """What the statement of a run says that only its plan knows, for records of versions that did not store it.

    Args:
        spec: What run.json says.
    """
    training = training_from_json(spec["training"])
    return _sentences(Plan.from_json(spec["plan"]), training.augment, training.randomness())


def _sentences(plan: Plan, augment: str | None, randomness: Randomness) -> Sentences:
    before = [
        *([] if plan.columns is None else [plan.columns.sentence()]),
        *([] if plan.stage is None else plan.stage.describe()),
    ]
    encoded = ", ".join(encode.describe(part) for part in plan.encode)
    denoised = ", ".join(denoise.describe(part) for part in plan.denoise)
    return Sentences(
        randomness=randomness.describe(),
        method=f"{plan.method.summary}. As published it is: {plan.method.soundness}",
        protected=[
            f"Adjacency: {plan.adjacency.value}: {_adjacency(plan)}.",
            *([] if plan.unit is None else [f"How a person is protected: {plan.unit.describe()}. {_KEPT}"]),
        ],
        mechanism=[
            *(f"Before training: {line}." for line in before),
            *([f"Encoded before clipping: {encoded}."] if encoded else []),
            *([_views(augment)] if augment is not None else []),
            _bound(plan),
            f"Noise of a step: {_noise(plan)}.",
            *_schedule(plan),
            *([] if plan.selection is None else [f"{plan.selection.describe()}."]),
            *([f"After the noise, at no cost: {denoised}."] if denoised else []),
            f"Batches: {plan.batches_in_words}; sums are divided by the constant {plan.batch_size:g}.",
        ],
        caveat="; batches drawn in this way cost no more than that, but the exact cost is not known"
        if not plan.sampler.tight
        else "",
        covered=("what was released before training, and " if plan.first_events else "")
        + "the parameters after every step; therefore also the model, every checkpoint, "
        + (_EXACT if plan.exact else _LOSSES),
        public=f"the number of {_counted(plan)}, the batch size, the model's architecture and initial weights,"
        " every setting in the record",
        assumed=[
            "Only the files of this run are given away, except attacks.json and audits.json, which no ε covers."
            " Batches, gradients before noise and the memory of the process stay.",
            _arithmetic(plan),
            *(
                []
                if plan.unit is None
                else [f"All rows of a person have the same {plan.unit.name}; somebody with two counts as two persons."]
            ),
            "How many records had a gradient that was not a number is shown to the operator only.",
        ],
    )


_KEPT = "Which rows are kept follows from a hash of their content, and from nobody else's rows."


def _unit(plan: Plan, names: Mapping[str, Any]) -> str:
    return str(names.get("unit", _UNIT) if plan.unit is None else plan.unit)


def _adjacency(plan: Plan) -> str:
    said = _ADJACENCY[plan.adjacency]
    if plan.unit is None:
        return said
    return said.replace("one record", "one person, with all of their rows,").replace("records", "persons")


def _counted(plan: Plan) -> str:
    if plan.unit is None:
        return "training records"
    return "persons" if plan.unit.whole else "persons and of their rows"


_LOSSES = "the optimizer's state, and the training losses in the record, which have noise of their own"
_EXACT = (
    "and the optimizer's state; there are no training losses in the record. The arithmetic of sums and noise is covered"
    " as well: clipped gradients are whole multiples of a power of two, within the bound exactly; their sums are exact;"
    " the noise is a normal number rounded to those multiples and drawn exactly. What leaves is therefore a function of"
    " what the Gaussian mechanism releases over the real numbers, and its lowest bits tell nothing more"
)


def _arithmetic(plan: Plan) -> str:
    """What is assumed about floating-point numbers."""
    if plan.exact:
        return (
            "A record's gradient has the same bits wherever in its batch it stands and whatever stands beside it. This"
            " was tested on the first batch."
        )
    return "Noise is drawn in floating point. ε does not cover attacks on its lowest bits, which are known."


def _views(augment: str) -> str:
    return f"Views: a record's gradient is the mean over random views of it ({augment}), taken before it is bounded."


def _bound(plan: Plan) -> str:
    for encoder in plan.chain().before:
        if isinstance(encoder, ClippedMean):
            return encoder.describe()
    if math.isinf(plan.clip.l2) and plan.stage is not None:
        return "Gradients are not clipped."
    if math.isinf(plan.clip.l2):
        return (
            f"Gradients are assumed to have norm at most {plan.clip.bound:g}. Nothing is clipped, so nothing bounds how"
            " far one record moves a step."
        )
    if plan.clip.queries:
        return (
            f"Each record's gradient is bounded ({plan.clip}); one record moves a step's sum by at most the bound in"
            f" force at that step, which begins at {plan.chain().l2:g} and follows a quantile of the gradients' norms,"
            " by counts released with noise."
        )
    averaged = f", averaged over micro-batches of {plan.micro_batch}" if plan.micro_batch > 1 else ""
    one, unit = plan.sampled, plan.unit
    said = (
        f"Each {one}'s gradient is bounded ({plan.clip}{averaged}); one {one} moves a step's sum by at most"
        f" {plan.chain().l2:g}"
    )
    if unit is None or unit.whole or unit.rows is None:
        return f"{said}."
    return f"{said}, and one person by at most {unit.rows} times that, if all of their rows are sampled."


def _noise(plan: Plan) -> str:
    event = plan.step_event
    if isinstance(event, GaussianDpEvent):
        if plan.exact:
            said = "times that bound, drawn exactly, once a step"
            return f"Gaussian, standard deviation {at_least(event.noise_multiplier)} {said}"
        return (
            f"Gaussian, standard deviation {at_least(event.noise_multiplier)} times that bound, drawn once for all that"
            " the step releases"
        )
    if isinstance(event, NoOpDpEvent):
        return "none: the records were released before training, and what is made of them costs nothing more"
    if isinstance(event, NonPrivateDpEvent):
        return "not enough for any ε: part of the gradient has no noise, or nothing bounds what one record does to it"
    return f"{event}, drawn once a step"


def _schedule(plan: Plan) -> list[str]:
    bands, name = plan.bands, schedules.describe(plan.schedule)
    if not plan.schedule.amplified:
        return [
            f"The noise is correlated ({name}): a step takes back some of the noise of all steps before it. The"
            " standard deviation above is for a strategy matrix that a record moves by at most the root of its turns."
            f" Each of its turns, which are {bands} steps apart, is charged once (McMahan et al. 2024)."
        ]
    if bands > 1:
        return [
            f"The noise is correlated ({name}): a step takes back some of the noise of the {bands - 1} steps before it."
            " The standard deviation above is for a strategy matrix of norm 1. Each batch that a record may be in is"
            " charged once (Choquette-Choo et al. 2023)."
        ]
    if len(plan.stretches) == 1:
        return []
    said = ", ".join(f"{steps} steps at {at_least(plan.noise_multiplier * factor)}" for steps, factor in plan.stretches)
    return [
        f"The noise falls over the run ({name}): {said} times that bound. Each stretch is charged for its own noise."
    ]
