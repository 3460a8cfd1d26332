"""Choosing settings by trying them: `choose`.

On private records the choice is charged (`assay.training.selection`); on public data it is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from dp_accounting.dp_event import DpEvent

from assay._util.files import replace_text, set_times
from assay.accounting.epsilon import Adjacency
from assay.accounting.epsilon import epsilon as epsilon_of
from assay.data.records import Records
from assay.errors import ConfigError, check_above_zero
from assay.methods.plan import Plan
from assay.randomness.streams import Randomness
from assay.runs.budgeted import FIELD, Lease, lease
from assay.runs.directory import RunDirectory
from assay.runs.record import epsilon_facts, number
from assay.runs.result import Result, cross_entropy, evaluate, write_result
from assay.training import selection
from assay.training.fitting import fit
from assay.training.from_names import Prepared
from assay.training.inputs import LOG, UNFINISHED_CHOICE
from assay.training.options import Settings
from assay.training.preflight import check_run
from assay.training.public_choice import PublicChoice, on_public
from assay.training.settings import training_json
from assay.training.trials import (
    DECIDED,
    Tried,
    all_made,
    combinations,
    in_common,
    in_words,
    naming_the_setting,
    note_delta,
    one_made,
)

_SEARCHED = {"noise_multiplier": 1.0}  # the noise is found afterwards; a preset goes by ε


def choose(
    settings: Settings,
    tried: Tried,
    *,
    out: Path | str,
    epsilon: float = 1.0,
    trials: float = 10,
    public: str | None = None,
    seed: int | None = None,
) -> Result:
    """Try settings and keep the best model; `assay tune` as a call.

        assay.choose(assay.Settings(data="digits", model="linear-head"), {"lr": [0.5, 2]}, out="runs/chosen", epsilon=3)

    On the private records, a secret random number of trials is trained, each with one of the settings, and the best by
    a noisy score is released. ε covers all of it (Papernot and Steinke 2022, "Hyperparameter tuning with Rényi
    differential privacy", arXiv:2110.03620, theorem 6) and is charged before the first trial. With `public`, all
    settings are tried on that data set instead, at no cost, and the private records are used once.

    Args:
        settings: What all trials have in common.
        tried: Names of settings and the values to try: all combinations.
        out: A new directory for the model that is chosen.
        epsilon: The ε of everything that leaves, the choice included.
        trials: The mean number of trials on private records.
        public: A public data set to choose on.
        seed: Fixes all randomness: reproducible, not private.

    Returns:
        The model that was chosen, its record and its statement.

    Raises:
        ConfigError: A setting may not be tried or is not accepted. Nothing was charged, trained or written.
        NoTrialError: The number of trials came out as 0. The budget is spent.
    """
    return prepared_choice(settings, tried, out=out, epsilon=epsilon, trials=trials, public=public, seed=seed).run()


def prepared_choice(
    settings: Settings,
    tried: Tried,
    *,
    out: Path | str,
    epsilon: float = 1.0,
    trials: float = 10,
    public: str | None = None,
    seed: int | None = None,
    rehearsal: bool = False,
) -> PrivateChoice | PublicChoice:
    """A choice with everything checked and nothing trained; the arguments are those of `choose`.

    Args:
        rehearsal: It will not be run: features are those of one record, repeated.

    Returns:
        What it would cost, and `run`.

    Raises:
        ConfigError: As `choose`.
    """
    check_above_zero("epsilon", epsilon)
    selection.check_trials(trials)
    candidates = combinations(tried, public is not None)
    for name in DECIDED:
        usual = (getattr(Settings(), name), epsilon if name == "epsilon" else None)
        if getattr(settings, name) not in usual:
            raise ConfigError(name, getattr(settings, name), "nothing: the choice decides it")
    path = Path(out)
    if path.exists() and any(path.iterdir()):
        raise ConfigError("out", str(path), "a new directory: what was spent on an earlier choice stays spent")
    if public is None:
        return _on_private(candidates, settings, path, epsilon, trials, seed, rehearsal)
    return on_public(candidates, settings, path, epsilon, public, seed, rehearsal)


def _on_split(plan: Plan, split: selection.Split) -> Plan:
    """The plan for the records that trials train on; a full batch is all of those."""
    records = len(split.train)
    return replace(plan, records=records, batch_size=records if plan.sampling.whole else plan.batch_size)


@dataclass(frozen=True, kw_only=True)
class _Spending:
    """What a choice releases, as a budget asks for it."""

    delta: float
    adjacency: Adjacency
    epsilon_limit: float | None
    whole: DpEvent

    def event(self) -> DpEvent:
        return self.whole


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A setting that may be tried, and all that its trials need."""

    setting: dict[str, str]
    made: Prepared
    split: selection.Split
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class PrivateChoice:
    """The best of a secret number of trials on private records."""

    plan: Plan
    """The plan of every trial."""
    trials: float
    chosen_by: Mapping[str, Any]
    out: Path
    epsilon: float
    shared: Settings
    """What all trials have in common, with the seed of the choice."""
    candidates: Sequence[_Candidate]
    randomness: Randomness

    @property
    def split(self) -> selection.Split:
        """The records that trials train on, and those that score them."""
        return self.candidates[0].split

    @property
    def scored(self) -> str:
        """How scores are made, in words."""
        return f"on about {self.split.expected} records, with noise of {self.split.score_points:.1f} points"

    def cost(self) -> dict[str, Any]:
        """What it would spend, as JSON."""
        plan, split = self.plan, self.split
        whole = epsilon_of(selection.selection(plan, split.score_noise, self.trials), plan.delta, plan.adjacency)
        one = epsilon_of(selection.one_trial(plan, split.score_noise), plan.delta, plan.adjacency)
        return {
            "verified": number(whole),
            "one_trial": number(one),
            "delta": plan.delta,
            "adjacency": plan.adjacency.value,
            "noise_multiplier": plan.noise_multiplier,
            "steps": plan.steps,
            "trials": self.trials,
            "score_records": split.expected,
            "score_noise": split.score_noise,
            "score_points": split.score_points,
        }

    @property
    def _spending(self) -> _Spending:
        whole = selection.selection(self.plan, self.split.score_noise, self.trials)
        return _Spending(delta=self.plan.delta, adjacency=self.plan.adjacency, epsilon_limit=self.epsilon, whole=whole)

    def _lease(self) -> Lease | None:
        """Check that the choice fits into its budget, before anything is written."""
        if self.shared.budget is None:
            return None
        return lease(
            self.shared.budget,
            self._spending,
            self.candidates[0].made.contents(),
            name=str(self.out),
            what=f"a choice among {len(self.candidates)} settings on {self.candidates[0].made.names['data']}",
            key=self.shared.budget_key,
            by=self.shared.operator,
            draws=self.randomness.fingerprint,
        )

    def run(self) -> Result:
        """Charge, train, choose, and write the model that was chosen."""
        shared, candidates, randomness = self.shared, self.candidates, self.randomness
        chosen_by, calibrated, split, mean = dict(self.chosen_by), self.plan, self.split, self.trials
        epsilon, made = self.epsilon, [one.made for one in candidates]
        plan = replace(calibrated, epsilon_limit=epsilon)
        spec = {
            "kind": "central",
            "choice": "among names.tuning.candidates: what they differ in is left out of training and names, the "
            "plan's clip and denoise are the first one's, and record.json has what was chosen",
            "plan": plan.to_json(),
            "training": in_common([training_json(one.training) for one in made]),
            "names": {**in_common([one.names for one in made]), "tuning": chosen_by},
        }
        mine = self._lease()
        if mine is not None:
            spec[FIELD] = mine.to_json()
        directory = RunDirectory.create(self.out, spec)
        begun = directory.spec.stat().st_mtime_ns
        replace_text(directory.notice, f"{UNFINISHED_CHOICE}; what ledger.jsonl says is spent.\n")
        ledger = directory.open_ledger(delta=calibrated.delta, adjacency=calibrated.adjacency, ceiling=epsilon)
        if mine is not None:
            ledger.lock()
            mine.begin(self._spending, directory, ledger)
        cost = selection.selection(calibrated, split.score_noise, mean)
        ledger.pay(cost, draws=randomness.fingerprint)  # all trials, before the first
        ledger.close()
        in_budget = None if mine is None else mine.end(ledger)  # nothing more will be charged

        def run(which: int, trial: int) -> Result:
            own = None if shared.seed is None else int(randomness.stream("trial", trial).integers(2**53, 1))
            tried = candidates[which]
            one = one_made(shared, tried.setting, own, _SEARCHED | {"epsilon": epsilon}, tried.made, False)
            return fit(
                one.network,
                tried.split.train,
                plan=tried.plan,
                training=one.training,
                names={**one.names, "tuning": chosen_by},
                units=one.units,
            )

        LOG.info(f"training a secret number of times, {mean:g} on average; scores {self.scored}")
        which, best = selection.best_of([one.split for one in candidates], mean, randomness, run)
        with torch.no_grad():
            accuracy, loss = evaluate(best.model, Records(made[which].bundle.test), cross_entropy)
        facts = epsilon_facts(candidates[which].plan, ledger, "Rényi")
        # The cost of one step or part alone is not its cost in the best of the trials: each is given the whole ε.
        history = [{**entry, "epsilon": facts["verified"]} for entry in best.record["history"]]
        record = {
            **best.record,
            "history": history,
            "parts": [],
            "epsilon": {**facts, "target": epsilon, "claimed": facts["verified"]},
            "result": {"test_accuracy": number(accuracy), "test_loss": number(loss)},
            "seed": shared.seed,
            "tuning": {**chosen_by, "chosen": candidates[which].setting},
            "operator": shared.operator,
            FIELD: in_budget,
            "date": None,  # when it ended tells how long all trials took
            "timing": None,  # of a trial; the first one takes longer than the others
        }
        record["sentences"] = {
            **best.record["sentences"],
            "randomness": randomness.describe(),
            "accountant": selection.ACCOUNTANT,
        }
        result = write_result(best.model, record, directory, best.nonfinite)
        # The time that all trials took would tell how many there were, and the proof needs that to be secret.
        set_times(directory.path, begun)
        return result


def _on_private(
    settings: list[dict[str, str]],
    shared: Settings,
    out: Path,
    epsilon: float,
    mean: float,
    seed: int | None,
    rehearsal: bool,
) -> PrivateChoice:
    shared = replace(shared, seed=seed)
    made = all_made(shared, settings, seed, _SEARCHED | {"epsilon": epsilon}, rehearsal)
    first = made[0]
    if any(one.plan.exact for one in made):
        raise ConfigError(
            "exact_noise", True, "nothing in a choice that is charged: its scores have floating-point noise"
        )
    randomness = first.training.randomness()
    selection.check_records(len(first.bundle.train_x))
    bundles = {id(one.bundle): one.bundle for one in made}
    splits = {key: selection.Split.of(bundle, randomness.stream("split", 0)) for key, bundle in bundles.items()}
    split = splits[id(first.bundle)]
    calibrated = selection.calibrated(_on_split(first.plan, split), epsilon, split.score_noise, mean)
    noise = calibrated.noise_multiplier
    candidates = [
        _Candidate(
            setting=setting,
            made=one,
            split=splits[id(one.bundle)],
            plan=replace(_on_split(one.plan, split), noise_multiplier=noise, epsilon_limit=None),
        )
        for setting, one in zip(settings, made, strict=True)
    ]
    for one in candidates:
        if one.plan.event() != calibrated.event():
            raise ConfigError("try", in_words(one.setting), "settings whose trials all cost the same")
    for one in candidates:
        with naming_the_setting(one.setting):  # before anything is charged
            network, training, name = one.made.network, one.made.training, one.made.names["data"]
            check_run(network, one.split.train, cross_entropy, one.plan, training, name, 1)
    chosen_by: dict[str, Any] = {
        "from": "assay tune",
        "candidates": settings,
        "on": "a tenth of the training records, by how many of them were right (with Gaussian noise of standard "
        f"deviation {split.score_noise:g}), in a secret number of trials (Poisson, mean {mean:g})",
        "records": len(split.train) + len(split.validation),
        "score_noise": split.score_noise,
        "charged": True,
        "start": first.names["tuning"],
    }
    note_delta(calibrated.delta, chosen_by["records"])
    return PrivateChoice(
        plan=calibrated,
        trials=mean,
        chosen_by=chosen_by,
        out=out,
        epsilon=epsilon,
        shared=shared,
        candidates=candidates,
        randomness=randomness,
    )
