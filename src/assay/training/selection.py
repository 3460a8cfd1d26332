"""The cost of choosing settings by trying them, and the choice.

On the private records, a random number of trials is drawn: Poisson, its mean public, the number itself secret. Each
trial takes one of the settings at random, trains privately on nine tenths of the records, and gets a noisy score on the
last tenth. Only the best trial's model is released. The cost of one trial (its stage, its training and its score
together) decides the cost of the best of them (Papernot and Steinke 2022, "Hyperparameter tuning with Rényi
differential privacy", arXiv:2110.03620, theorem 6). All settings cost the same: only those that do not decide ε may be
tried.

On public data nothing is charged: the settings that do best there are used once on the private records.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, GaussianDpEvent, RepeatAndSelectDpEvent
from torch import Tensor
from torch.utils.data import TensorDataset

from assay.accounting.calibrate import smallest_noise
from assay.accounting.epsilon import Adjacency, epsilon
from assay.data.bundle import DataBundle
from assay.data.records import Records
from assay.errors import AssayError, ConfigError
from assay.methods.plan import Plan
from assay.randomness.streams import Randomness, Stream, fresh_source
from assay.runs.result import Result, cross_entropy, evaluate

ACCOUNTANT = (
    "Rényi divergences of one trial, and of the best of a random number of them (Papernot and Steinke 2022;"
    " dp_accounting): an upper bound"
)
"""How the ε of a choice is computed, for its statement."""

_PARTS = 10  # of which one is for validation
_SCORE_NOISE = 0.005  # standard deviation of a released score, as a fraction of the validation records
_LEAST_SCORE_NOISE = 20.0  # with less, the scores of ten trials alone would cost more than ε = 1


class NoTrialError(AssayError):
    """The number of trials came out as 0: nothing is released, and the budget is spent."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class Split:
    """Records to train on and records to choose by.

    A separate coin decides for each record, so that the other records do not change where it goes.
    """

    train: TensorDataset
    validation: TensorDataset

    @classmethod
    def of(cls, bundle: DataBundle, stream: Stream) -> Split:
        """About one of every ten records is for validation; the same stream splits alike."""
        if bundle.train_units is not None:  # coins and scores are of records: a person would count several times
            raise ConfigError(
                "unit", bundle.unit_column, "no unit with a choice that is charged: it is made record by record"
            )
        aside = stream.uniform(len(bundle.train_x)) * _PARTS < 1
        if not 0 < int(aside.sum()) < len(aside):
            raise ConfigError("records", len(aside), f"many more than {_PARTS}, to set some aside for validation")
        return cls(
            train=TensorDataset(bundle.train_x[~aside], bundle.train_y[~aside]),
            validation=TensorDataset(bundle.train_x[aside], bundle.train_y[aside]),
        )

    @property
    def score_noise(self) -> float:
        """The noise of the number of right answers on the validation records, which one record moves by at most 1."""
        return max(_LEAST_SCORE_NOISE, _SCORE_NOISE * len(self.validation))

    @property
    def expected(self) -> int:
        """The expected number of validation records, rounded."""
        return round((len(self.train) + len(self.validation)) / _PARTS)

    @property
    def score_points(self) -> float:
        """The noise of a score in points of accuracy, for the expected number of validation records."""
        return 100 * self.score_noise / self.expected


def check_records(records: int) -> None:
    """Refuse so few records that the noise of a score is half of the highest score: it would hide all differences.

    Raises:
        ConfigError: There are too few.
    """
    needed = round(2 * _LEAST_SCORE_NOISE * _PARTS)
    if records < needed:
        raise ConfigError(
            "records",
            records,
            f"at least {needed}, to choose by a tenth of them: scores have noise of {_LEAST_SCORE_NOISE:g} records; or "
            "choose on public data",
        )


def check_apart(public: DataBundle, private: DataBundle, name: str) -> None:
    """Refuse public data that hold the input of a private training record, with any label.

    Raises:
        ConfigError: They do.
    """
    if public.input_shape != private.input_shape:
        return
    known = _digests(private.train_x)
    if not known.isdisjoint(_digests(public.train_x) | _digests(public.test_x)):
        raise ConfigError(
            "public", name, "data that hold none of the private training records; at least one of them is there"
        )


def _digests(x: Tensor) -> set[bytes]:
    # adding 0 turns -0 into 0, which has other bits
    return {hashlib.blake2b((row + 0.0).tobytes(), digest_size=16).digest() for row in x.numpy()}


def one_trial(plan: Plan, score_noise: float) -> DpEvent:
    """The event of a run of the plan and a noisy score."""
    return ComposedDpEvent([plan.event(), GaussianDpEvent(score_noise)])


def selection(plan: Plan, score_noise: float, mean: float) -> DpEvent:
    """The event of the release: the best of a Poisson number of trials."""
    return RepeatAndSelectDpEvent(one_trial(plan, score_noise), mean, math.inf)


def calibrated(plan: Plan, target: float, score_noise: float, mean: float) -> Plan:
    """The plan with the noise at which the whole selection costs the target ε.

    Raises:
        ConfigError: The adjacency or the variant has no such theorem, or no noise reaches the target.
    """
    if plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
        raise ConfigError(
            "adjacency", plan.adjacency.value, "add-or-remove-one: selection is accounted for under that only"
        )
    if plan.method.published:
        raise ConfigError("method", plan.method.name, "a sound variant")
    plain = replace(plan, epsilon_limit=None)

    def cost(noise: float) -> float:
        event = selection(replace(plain, noise_multiplier=noise), score_noise, mean)
        return epsilon(event, plan.delta, plan.adjacency)

    return replace(plain, noise_multiplier=smallest_noise(cost, target))


def check_trials(mean: float) -> None:
    """Refuse a mean for which the number of trials is likely to be 0, or far too large.

    Raises:
        ConfigError: The mean is out of its range.
    """
    if not 3 <= mean <= 500:
        raise ConfigError("trials", mean, "the mean number of trials, from 3 to 500")


def drawn_trials(mean: float, stream: Stream) -> int:
    """A Poisson number, by inverting its distribution function at a uniform number of 53 bits."""
    u, count, mass = float(stream.uniform(1)), 0, math.exp(-mean)
    total = mass
    while u >= total and count < 100 * mean:
        count += 1
        mass *= mean / count
        total += mass
    return count


def best_of(
    splits: Sequence[Split], mean: float, randomness: Randomness, run: Callable[[int, int], Result]
) -> tuple[int, Result]:
    """The best trial by its noisy score. Charge for it first.

    The number of trials, and how the others did, must stay secret.

    Args:
        splits: The records as each setting sees them, all split alike.
        mean: The mean number of trials.
        randomness: Where the number of trials, the settings and the noise of scores come from.
        run: `run(setting, trial)` trains one.

    Returns:
        Which setting it had, and its result.

    Raises:
        NoTrialError: The number of trials came out as 0.
    """
    randomness = fresh_source(randomness)
    trials = drawn_trials(mean, randomness.stream("trials", 0))
    which = randomness.stream("settings", 0).integers(len(splits), max(1, trials)).tolist()
    best: tuple[float, int, Result] | None = None
    for trial in range(trials):
        result, split = run(which[trial], trial), splits[which[trial]]
        validation = Records(split.validation)
        with torch.no_grad():
            accuracy, _ = evaluate(result.model.cpu(), validation, cross_entropy)
        noise = randomness.stream("score", trial).normal([1], dtype=torch.float64, device="cpu")
        score = (accuracy or 0.0) * len(validation) + split.score_noise * float(noise)
        if best is None or score > best[0]:
            best = (score, which[trial], result)
    if best is None:
        raise NoTrialError(
            "the number of trials came out as 0, which is an answer too: the budget is spent and there is no model. "
            "Another choice on the same records, in another --out, adds its own ε to what is spent; more --trials make "
            "this rarer"
        )
    return best[1], best[2]
