"""A choice of settings on public data: every setting is tried there at no cost, and the best one is used once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.errors import ConfigError
from assay.runs.record import number
from assay.runs.result import Result, cross_entropy
from assay.training import selection
from assay.training.fitting import fit
from assay.training.from_names import Prepared
from assay.training.inputs import LOG
from assay.training.options import Settings
from assay.training.preflight import check_run
from assay.training.trials import (
    all_made,
    in_words,
    naming_the_setting,
    note_delta,
)


@dataclass(frozen=True, kw_only=True)
class PublicChoice:
    """One run on the private records, with the settings that are best on public data."""

    public: str
    out: Path
    settings: list[dict[str, str]]
    private: list[Prepared]
    trials: list[Prepared]

    def cost(self) -> dict[str, Any]:
        """What the one run on private records would spend with each setting, as JSON."""
        plan = self.private[0].plan
        runs = [
            {"setting": setting, "verified": number(one.plan.epsilon()), "noise_multiplier": one.plan.noise_multiplier}
            for setting, one in zip(self.settings, self.private, strict=True)
        ]
        note_delta(plan.delta, plan.records)
        return {"public": self.public, "delta": plan.delta, "adjacency": plan.adjacency.value, "runs": runs}

    def run(self) -> Result:
        """Try all settings on the public data, and train once on the private records with the best."""
        public, settings, private, trials, out = self.public, self.settings, self.private, self.trials, self.out
        scores = []
        for setting, one in zip(settings, trials, strict=True):
            result = fit(
                one.network,
                one.bundle.train,
                plan=one.plan,
                test=one.bundle.test,
                training=one.training,
                units=one.units,
            )
            scores.append(result.accuracy or 0.0)
            LOG.info(f"{scores[-1]:.2%} on {public}: {in_words(setting)}")
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
        return replace(one, names={**one.names, "tuning": chosen_by}).fit(out=out, progress=None)


def on_public(
    settings: list[dict[str, str]],
    shared: Settings,
    out: Path,
    epsilon: float,
    public: str,
    seed: int | None,
    rehearsal: bool,
) -> PublicChoice:
    """The choice, with everything checked and nothing trained; the arguments are those of `choose`.

    Raises:
        ConfigError: A setting is not accepted, or the public data are the private records.
    """
    private = all_made(shared, settings, seed, {"epsilon": epsilon}, rehearsal)  # refused before any trial
    if private[0].names["data"] == public:
        raise ConfigError("public", public, "another data set than the private one")
    there = replace(shared, origin=None, preset={})  # what a preset of the private data set says
    trials = all_made(there, settings, seed, {"epsilon": epsilon, "data": public}, rehearsal)
    selection.check_apart(trials[0].bundle, private[0].bundle, public)
    for setting, *both in zip(settings, private, trials, strict=True):
        for one in both:
            with naming_the_setting(setting):  # before other trials end
                check_run(one.network, one.bundle.train, cross_entropy, one.plan, one.training, one.names["data"], 1)
    return PublicChoice(public=public, out=out, settings=settings, private=private, trials=trials)
