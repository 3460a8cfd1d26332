"""`assay tune`: the best of several settings, at a price that is part of ε, or chosen on public data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from assay import presets
from assay._util.files import replace_text, set_times
from assay.accounting.epsilon import epsilon as epsilon_of
from assay.cli import options, passing
from assay.cli.output import console, say
from assay.cli.preparing import Prepared
from assay.cli.privacy import note_delta
from assay.cli.runs import UNFINISHED_CHOICE
from assay.cli.show import end, in_words, print_json
from assay.data.records import Records
from assay.errors import ConfigError, UnsupportedModelError, check_above_zero
from assay.methods.plan import Plan
from assay.runs.directory import RunDirectory
from assay.runs.record import epsilon_facts, number
from assay.runs.result import Result, cross_entropy, evaluate, write_result
from assay.runs.statement import shown
from assay.studies.grid import Settings, flags
from assay.training import tuning
from assay.training.loop import fit
from assay.training.preflight import checked
from assay.training.settings import training_json

_DECIDED = {
    "out": "the command's own --out",
    "epsilon": "the command's own --epsilon",
    "noise_multiplier": "nothing: the noise is found for --epsilon",
    "seed": "the command's own --seed",
    "force": "nothing: a new directory",
    "json": "the command's own --json",
    "dry_run": "the command's own --dry-run",
    "validation": "nothing: a tenth of the training records is set aside as it is",
    "log": "nothing: trials that were not chosen leave no trace",
}
_DATA_AND_BUDGET = {"data", "data_dir", "records", "preset", "delta", "adjacency", "variant", "device"}
_DECIDES_EPSILON = {
    "method", "option", "groups", "noise_form", "encode", "epochs", "batch_size", "micro_batch", "center", "noise_schedule", "sampling",
}  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(tune)


def tune(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="A new directory for the model that is chosen.")],
    tried: Annotated[
        list[str],
        typer.Option(
            "--try", help="An option of `assay train` and its values: lr=1,2,4. May be repeated: all combinations."
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="The ε of everything that leaves, the choice included.")] = 1.0,
    trials: Annotated[
        float, typer.Option(help="Mean number of trials; how many there are is drawn, and stays secret.")
    ] = 10,
    public: Annotated[
        str | None,
        typer.Option(help="Choose on this public data set instead, at no cost, and train once on the private records."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes all randomness: reproducible, not private.")] = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Try settings and keep the best model. Every other option of `assay train` may be added and goes to all trials.

    On private records ε covers the choice; on public data (--public) the choice is free.
    """
    check_above_zero("epsilon", epsilon)
    tuning.check_trials(trials)
    settings = _combinations(tried, public is not None)
    shared = passing.settings("train", context.args, decided=_DECIDED)
    if out.exists() and any(out.iterdir()):
        raise ConfigError("out", str(out), "a new directory: what was spent on an earlier choice stays spent")
    if public is None:
        result = _on_private(settings, shared, None if dry_run else out, epsilon, trials, seed, json)
    else:
        result = _on_public(settings, shared, None if dry_run else out, epsilon, public, seed, json)
    if result is not None:
        end(result, json, left_out="gradients were not finite")


def _combinations(tried: list[str], public: bool) -> list[dict[str, str]]:
    axes: dict[str, list[str]] = {}
    for text in tried:
        key, equals, values = text.partition("=")
        name = key.replace("-", "_")
        if not equals or not values or name in axes:
            raise ConfigError("try", text, "OPTION=VALUE,VALUE..., each option once")
        _check_may_vary(name, text, public)
        axes[name] = _values(name, values)
        if len({_taken(name, value) for value in axes[name]}) < len(axes[name]):
            raise ConfigError("try", text, "each value once")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _taken(name: str, value: str) -> Any:
    with _tried({name: value}):
        return passing.value("train", name, value)


def _check_may_vary(name: str, text: str, public: bool) -> None:
    """Refuse an option that trials must have in common: on private records what decides ε, in any case data and budget."""
    free = {
        known for known, option in passing.options("train").items() if not option.is_flag
    } - _DATA_AND_BUDGET - _DECIDED.keys()  # fmt: skip
    if public and name not in free:
        raise ConfigError(
            "try", text, f"an option of `assay train` that names neither data nor budget ({_listed(free)})"
        )
    if not public and name not in free - _DECIDES_EPSILON:
        raise ConfigError(
            "try",
            text,
            f"an option of `assay train` that does not decide ε ({_listed(free - _DECIDES_EPSILON)}); "
            f"with --public also {_listed(free & _DECIDES_EPSILON)}",
        )


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(name.replace("_", "-") for name in names))


def _values(name: str, text: str) -> list[str]:
    """Values between commas; a part with = belongs to the value before it (shift:views=4,pixels=2), unless = is in all (rho=0.5,rho=0.7)."""
    found: list[str] = []
    for part in text.split(","):
        if found and "=" in part and ":" not in part and name != "option":
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


@contextmanager
def _tried(setting: dict[str, str]) -> Iterator[None]:
    """What a value that is tried is refused for names --try."""
    try:
        yield
    except ConfigError as error:
        if error.field.split()[0] not in setting:
            raise
        raise ConfigError("try", in_words(setting), str(error)) from error
    except UnsupportedModelError as error:
        if "model" not in setting:
            raise
        raise UnsupportedModelError(f"--try {in_words(setting)}: {error}") from error


def _made(
    shared: Settings, setting: dict[str, str], seed: int | None, more: dict[str, Any], like: Prepared | None = None
) -> Prepared:
    """What `assay train` would train with; where an option may be repeated, what is tried is added to what all trials have."""
    given = {
        name: [*shared[name], value] if isinstance(shared.get(name), list) else value for name, value in setting.items()
    }
    with _tried(setting):
        return passing.prepared(flags({**shared, **given, "seed": seed, **more}), like)


def _all_made(
    shared: Settings, settings: list[dict[str, str]], seed: int | None, more: dict[str, Any]
) -> list[Prepared]:
    """One for each setting; records are in memory once, unless the settings see them differently."""
    made: list[Prepared] = []
    for setting in settings:
        made.append(_made(shared, setting, seed, more, made[-1] if made else None))
    return made


def _in_common(described: list[dict[str, Any]]) -> dict[str, Any]:
    """The entries on which all agree; of those that have entries of their own, these."""
    first, *rest = described
    kept: dict[str, Any] = {}
    for key, value in first.items():
        others = [one[key] for one in rest if key in one]
        if len(others) == len(rest) and all(other == value for other in others):
            kept[key] = value
        elif isinstance(value, dict) and len(others) == len(rest) and all(isinstance(other, dict) for other in others):
            kept[key] = _in_common([value, *others])
    return kept


def _on_split(plan: Plan, split: tuning.Split) -> Plan:
    """The plan for the records that trials train on; a full batch is all of those."""
    records = len(split.train)
    return replace(plan, records=records, batch_size=records if plan.sampling.whole else plan.batch_size)


def _on_private(
    settings: list[dict[str, str]],
    shared: Settings,
    out: Path | None,
    epsilon: float,
    mean: float,
    seed: int | None,
    as_json: bool,
) -> Result | None:
    """The best of a secret number of trials; without `out` it is only said what that would cost."""
    more = {"noise_multiplier": 1.0, "epsilon": epsilon}  # the noise is found below; a preset goes by ε
    made = _all_made(shared, settings, seed, more)
    first = made[0]
    if any(one.plan.exact for one in made):
        raise ConfigError(
            "exact_noise", True, "nothing in a choice that is charged: its scores have floating-point noise"
        )
    randomness = first.training.randomness()
    tuning.check_records(len(first.bundle.train_x))
    bundles = {id(one.bundle): one.bundle for one in made}
    splits = {key: tuning.Split.of(bundle, randomness.stream("split", 0)) for key, bundle in bundles.items()}
    parts = [splits[id(one.bundle)] for one in made]
    split = parts[0]
    calibrated = tuning.calibrated(_on_split(first.plan, split), epsilon, split.score_noise, mean)
    plans = [
        replace(_on_split(one.plan, split), noise_multiplier=calibrated.noise_multiplier, epsilon_limit=None)
        for one in made
    ]
    for setting, plan in zip(settings, plans, strict=True):
        if plan.event() != calibrated.event():
            raise ConfigError("try", in_words(setting), "settings whose trials all cost the same")
    for setting, one, part, plan in zip(settings, made, parts, plans, strict=True):
        with _tried(setting):  # before anything is charged
            checked(one.network, part.train, cross_entropy, plan, one.training, one.names["data"], 1)
    chosen_by: dict[str, Any] = {
        "from": "assay tune",
        "candidates": settings,
        "on": f"a tenth of the training records, by how many of them were right (with Gaussian noise of standard deviation {split.score_noise:g}), "
        f"in a secret number of trials (Poisson, mean {mean:g})",
        "records": len(split.train) + len(split.validation),
        "score_noise": split.score_noise,
        "charged": True,
        "start": first.names["tuning"],
    }
    note_delta(calibrated.delta, chosen_by["records"])
    scored = f"on about {split.expected} records, with noise of {split.score_points:.1f} points"
    if out is None:
        _report_choice(calibrated, split, mean, scored, as_json)
        return None
    plan = replace(calibrated, epsilon_limit=epsilon)
    spec = {
        "kind": "central",
        "choice": "among names.tuning.candidates: what they differ in is left out of training and names, the plan's clip and denoise are "
        "the first one's, and record.json has what was chosen",
        "plan": plan.to_json(),
        "training": _in_common([training_json(one.training) for one in made]),
        "names": {**_in_common([one.names for one in made]), "tuning": chosen_by},
    }
    directory = RunDirectory.create(out, spec)
    begun = directory.spec.stat().st_mtime_ns
    replace_text(directory.notice, f"{UNFINISHED_CHOICE}; what ledger.jsonl says is spent.\n")
    ledger = directory.open_ledger(delta=calibrated.delta, adjacency=calibrated.adjacency, ceiling=epsilon)
    ledger.pay(tuning.selection(calibrated, split.score_noise, mean))  # all trials, before the first
    ledger.close()

    def run(which: int, trial: int) -> Result:
        own = None if seed is None else int(randomness.stream("trial", trial).integers(2**53, 1))
        one = _made(shared, settings[which], own, more, made[which])
        return fit(
            one.network,
            parts[which].train,
            plan=plans[which],
            training=one.training,
            names={**one.names, "tuning": chosen_by},
        )

    _say(f"training a secret number of times, {mean:g} on average; scores {scored}")
    which, best = tuning.best_of(parts, mean, randomness, run)
    with torch.no_grad():
        accuracy, loss = evaluate(best.model, Records(made[which].bundle.test), cross_entropy)
    facts = epsilon_facts(plans[which], ledger, "Rényi")
    # what a step or a part costs by itself says nothing of what it costs in the best of the trials: all of it is the whole ε
    history = [{**entry, "epsilon": facts["verified"]} for entry in best.record["history"]]
    record = {
        **best.record,
        "history": history,
        "parts": [],
        "epsilon": {**facts, "target": epsilon, "claimed": facts["verified"]},
        "result": {"test_accuracy": number(accuracy), "test_loss": number(loss)},
        "seed": seed,
        "tuning": {**chosen_by, "chosen": settings[which]},
        "timing": None,  # of a trial; the first one takes longer than the others
    }
    record["sentences"] = {
        **best.record["sentences"],
        "randomness": randomness.describe(),
        "accountant": tuning.ACCOUNTANT,
    }
    result = write_result(best.model, record, directory, best.nonfinite)
    set_times(
        directory.path, begun
    )  # how long all trials took tells how many there were, which the proof needs to be secret
    return result


def _on_public(
    settings: list[dict[str, str]],
    shared: Settings,
    out: Path | None,
    epsilon: float,
    public: str,
    seed: int | None,
    as_json: bool,
) -> Result | None:
    """A run with the settings that are best on public data; without `out` it is only said what that would cost."""
    private = _all_made(shared, settings, seed, {"epsilon": epsilon})  # refused before any trial
    if private[0].names["data"] == public:
        raise ConfigError("public", public, "another data set than the private one")
    preset = presets.of({**shared, "epsilon": epsilon}).settings if "preset" in shared else {}  # the private data set's
    there = {**preset, **{name: value for name, value in shared.items() if name != "preset"}}
    trials = _all_made(there, settings, seed, {"epsilon": epsilon, "data": public})
    tuning.check_apart(trials[0].bundle, private[0].bundle, public)
    for setting, *both in zip(settings, private, trials, strict=True):
        for one in both:
            with _tried(setting):  # before other trials end
                checked(one.network, one.bundle.train, cross_entropy, one.plan, one.training, one.names["data"], 1)
    if out is None:
        _report_runs(settings, private, public, as_json)
        return None
    scores = []
    for setting, one in zip(settings, trials, strict=True):
        result = fit(one.network, one.bundle.train, plan=one.plan, test=one.bundle.test, training=one.training)
        scores.append(result.accuracy or 0.0)
        _say(f"{scores[-1]:.2%} on {public}: {in_words(setting)}")
    which = scores.index(max(scores))
    one = private[which]
    chosen_by = {
        "from": "assay tune",
        "candidates": settings,
        "scores": scores,
        "chosen": settings[which],
        "on": f"{public}, which is taken as public: nothing of the private records went into the choice",
        "charged": False,
        "start": one.names["tuning"],
    }
    return fit(
        one.network,
        one.bundle.train,
        plan=one.plan,
        test=one.bundle.test,
        training=one.training,
        out=out,
        names={**one.names, "tuning": chosen_by},
    )


def _report_choice(plan: Plan, split: tuning.Split, mean: float, scored: str, as_json: bool) -> None:
    """What a choice on private records would cost; `scored` says how scores are made."""
    whole = epsilon_of(tuning.selection(plan, split.score_noise, mean), plan.delta, plan.adjacency)
    one = epsilon_of(tuning.one_trial(plan, split.score_noise), plan.delta, plan.adjacency)
    if as_json:
        print_json(
            {
                "verified": number(whole),
                "one_trial": number(one),
                "delta": plan.delta,
                "adjacency": plan.adjacency.value,
                "noise_multiplier": plan.noise_multiplier,
                "steps": plan.steps,
                "trials": mean,
                "score_records": split.expected,
                "score_noise": split.score_noise,
                "score_points": split.score_points,
            }
        )
        return
    out = console()
    out.print(f"ε of the choice  {shown(whole)}   at δ = {plan.delta:g}, {plan.adjacency.value}")
    out.print(f"ε of one trial   {shown(one)}   (with its score; {mean:g} trials on average)")
    out.print(f"scores           {scored}")
    out.print(
        f"every trial      noise multiplier {plan.noise_multiplier:.6g}, {plan.steps} steps, batches of {plan.batch_size:g} expected"
    )


def _report_runs(settings: list[dict[str, str]], made: list[Prepared], public: str, as_json: bool) -> None:
    """What the one run on private records would cost with each setting."""
    runs: list[dict[str, Any]] = [
        {"setting": setting, "verified": number(one.plan.epsilon()), "noise_multiplier": one.plan.noise_multiplier}
        for setting, one in zip(settings, made, strict=True)
    ]
    plan = made[0].plan
    note_delta(plan.delta, plan.records)
    if as_json:
        print_json({"public": public, "delta": plan.delta, "adjacency": plan.adjacency.value, "runs": runs})
        return
    out = console()
    out.print(f"trials on {public} cost nothing; then one run, at δ = {plan.delta:g}, {plan.adjacency.value}:")
    for run in runs:
        out.print(
            f"ε verified  {shown(run['verified'])}   noise multiplier {run['noise_multiplier']:.6g}   {in_words(run['setting'])}",
        )


def _say(line: str) -> None:
    say(line)
