"""A federated plan: everything that decides ε, and what a client's update goes through on its way into the model.

Unit `client`: neighbours differ in one client with all its records.

- `central` noise: the server is trusted and who was drawn stays hidden. Clients are drawn by Poisson sampling with rate
  per_round/clients, which amplifies. Neighbours differ by adding or removing a client.
- `local` and `distributed` noise: the server sees who answers. What a client holds is hidden, that it takes part is
  not. Neighbours replace a client's records by any others, so its vector moves by up to 2C, and nothing is amplified. A
  client pays each time it is asked; in passes over all clients that is at most ⌈rounds · per_round/clients⌉ times.

Unit `record`: each client runs DP-SGD on its records, and what it sends is post-processing. ε is that of a record at
the client with the fewest records, where the sampling rate is largest. At other clients ε is smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from dp_accounting.dp_event import DpEvent, SelfComposedDpEvent

from assay._util.spec import Converted
from assay.accounting import events
from assay.accounting.calibrate import smallest_noise
from assay.accounting.epsilon import Adjacency, epsilon
from assay.accounting.groups import group_epsilons
from assay.data.samplers.poisson import Poisson
from assay.errors import ConfigError, check_above_zero, check_fields, check_number
from assay.federated import methods, schedule
from assay.federated.methods import FederatedMethod
from assay.federated.noise import Central, Distributed, Local, Noise, Released
from assay.gradients.clip_rules.flat import Flat
from assay.methods.plan import Plan

UNITS = ("client", "record")
NOISES = ("central", "local", "distributed")


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse anything but a whole number in the range.

    Raises:
        ConfigError: It is something else.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole and isinstance(value, int) and least <= value <= (value if most is None else most)):
        raise ConfigError(name, value, f"a whole number, {least} or above" + (f", at most {most}" if most else ""))


@dataclass(frozen=True, kw_only=True)
class Silo:
    """DP-SGD at one client, for the unit `record`.

    Attributes:
        records: The fewest records that a client has.
        batch_size: The expected batch.
        steps: Steps in each turn.
    """

    records: int
    batch_size: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class FederatedPlan:
    """Everything about a federated run that decides ε.

    Attributes:
        clients: How many clients there are.
        per_round: How many are asked in a round: the expected number where they are drawn.
        rounds: How many rounds there are.
        size: The number of coordinates of an update.
        noise_multiplier: Noise relative to `clip`.
        delta: δ.
        clip: The bound C on a client's vector, or on a record's gradient for the unit `record`.
        unit: What ε protects: `client` or `record`.
        noise: Where noise comes from: `central`, `local` or `distributed`.
        minimum: How many must answer for a round with distributed noise to be opened; None: all who are asked.
        public_seed: Fixes what is not secret: rotations, and the order in which clients are asked where that is seen.
        silo: DP-SGD at the clients, for the unit `record`.
        method: What clients and server exchange, or its name.
        epsilon_limit: A hard ceiling on the verified ε.
        epsilon_claimed: The ε that a published variant was calibrated to.
    """

    clients: int
    per_round: int
    rounds: int
    size: int
    noise_multiplier: float
    delta: float
    clip: float = 1.0
    unit: str = "client"
    noise: str = "central"
    minimum: int | None = None
    public_seed: int = 0
    silo: Silo | None = None
    method: Converted[FederatedMethod | str, FederatedMethod] = Converted(methods.METHODS.method_of, default="fedavg")
    epsilon_limit: float | None = None
    epsilon_claimed: float | None = None

    def __post_init__(self) -> None:
        check_whole("clients", self.clients, 1)
        check_whole("per_round", self.per_round, 1, self.clients)
        check_whole("rounds", self.rounds, 1)
        check_whole("size", self.size, 1)
        check_above_zero("clip", self.clip)
        check_number("delta", self.delta, "a number between 0 and 1, both excluded")
        check_number("noise_multiplier", self.noise_multiplier, "a finite number, 0 or above")
        if not 0 < self.delta < 1:
            raise ConfigError("delta", self.delta, "a number between 0 and 1, both excluded")
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ConfigError("noise_multiplier", self.noise_multiplier, "a finite number, 0 or above")
        if self.epsilon_limit is not None:
            check_above_zero("epsilon", self.epsilon_limit)
        name = self.method.name
        if self.unit not in self.method.units:
            raise ConfigError("unit", self.unit, f"one of {', '.join(self.method.units)} for {name}")
        if self.unit == "record" and self.silo is None:
            raise ConfigError("silo", None, "the settings of DP-SGD at the clients, with the unit record")
        if self.unit == "client" and self.noise not in self.method.noises:
            raise ConfigError(
                "noise", self.noise, f"one of {', '.join(self.method.noises)} for {name} {self.method.variant}"
            )
        if self.minimum is not None:
            if self.noise != "distributed":
                raise ConfigError("min_answers", self.minimum, "nothing, unless noise is distributed")
            check_whole("min_answers", self.minimum, 1, self.per_round)

    @property
    def stage(self) -> None:
        """Nothing is released before the first round."""
        return None

    @property
    def hidden(self) -> bool:
        """Whether who is asked stays hidden, and sampling amplifies."""
        return self.unit == "client" and self.noise == "central"

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets are neighbours; the module's docstring says why."""
        return Adjacency.ADD_OR_REMOVE_ONE if self.hidden or self.unit == "record" else Adjacency.REPLACE_ONE

    @property
    def answers(self) -> int:
        """How many must answer for distributed noise to be enough."""
        return self.per_round if self.minimum is None else self.minimum

    @property
    def sampler(self) -> Poisson:
        """Draws clients where that is hidden."""
        return Poisson(self.clients, self.per_round)

    def asked(self) -> list[list[int]]:
        """Who is asked in each round, where that is not secret."""
        return schedule.passes(self.clients, self.per_round, self.rounds, self.public_seed)

    @property
    def turns(self) -> int:
        """How often one client is asked at most, where that is not secret."""
        return schedule.most_turns(self.clients, self.per_round, self.rounds)

    def source(self, size: int) -> Noise:
        """Where the noise on vectors of this length comes from."""
        if self.unit == "record":
            return Released()
        if self.noise == "central":
            return Central(self.clip, self.noise_multiplier, self.per_round)
        if self.noise == "local":
            return Local(self.clip, self.noise_multiplier)
        return Distributed(self.clip, self.noise_multiplier, self.answers, self.per_round, self.clients, size)

    def client_plan(self, records: int) -> Plan:
        """DP-SGD at a client with this many records, over all its turns."""
        assert self.silo is not None
        return Plan(
            records=records,
            batch_size=min(self.silo.batch_size, records),
            steps=self.turns * self.silo.steps,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
            clip=Flat(bound=self.clip),
            epsilon_limit=self.epsilon_limit,
        )

    @cached_property
    def turn_event(self) -> DpEvent:
        """What one participation costs, before amplification by drawing clients."""
        if self.silo is not None and self.unit == "record":
            return self.client_plan(self.silo.records).event(self.silo.steps)
        return self.method.event(self)

    def after_turns(self, turns: int) -> DpEvent:
        """What this many participations of one client cost, where they are seen."""
        return SelfComposedDpEvent(self.turn_event, turns)

    def event(self, rounds: int | None = None) -> DpEvent:
        """What this many rounds cost (all of them by default)."""
        rounds = self.rounds if rounds is None else rounds
        if self.hidden:
            return self.sampler.compose(self.turn_event, rounds)
        return self.after_turns(schedule.most_turns(self.clients, self.per_round, rounds))

    def fits(self, rounds: int, origin: int | None, event: DpEvent, once: bool) -> bool:  # noqa: ARG002
        """Whether a ledger of this plan may charge this many rounds with this event (`Ledger.check_fits`)."""
        if once:
            return False
        said = events.to_json(event)
        if rounds and said == events.to_json(self.event(rounds)):
            return True
        if self.hidden:
            return not rounds and not list(events.flatten(event))
        # what is left after an interruption: some turns of the most asked client, at most one in each round
        turns = range(min(rounds, self.turns) + 1)
        return not list(events.flatten(event)) or any(said == events.to_json(self.after_turns(n)) for n in turns)

    def epsilon(self) -> float:
        """The verified ε of the plan."""
        return epsilon(self.event(), self.delta, self.adjacency)

    def groups(self, event: DpEvent) -> dict[int, float]:
        """ε for groups of records, where a record is the unit; nothing is said of groups of clients."""
        return group_epsilons(event, self.delta, self.adjacency) if self.unit == "record" else {}

    def claimed(self) -> float:
        """The ε that the method's paper would report for this run."""
        return self.method.claimed(self)

    def targeted(self) -> float:
        """The ε that a target means: the verified one, or for a published variant the claimed one."""
        return self.claimed() if self.method.variant == "published" else self.epsilon()

    def calibrated(self, target: float) -> FederatedPlan:
        """This plan with the noise for which `targeted()` is in [0.999, 1] times the target.

        Args:
            target: The ε to reach.

        Returns:
            The plan. The target is a hard ceiling, unless the variant is published.

        Raises:
            ConfigError: No noise reaches the target.
        """
        check_above_zero("epsilon", target)
        published = self.method.variant == "published"
        bare = replace(self, epsilon_limit=None, epsilon_claimed=None)
        multiplier = smallest_noise(lambda z: replace(bare, noise_multiplier=z).targeted(), target)
        return replace(
            self,
            noise_multiplier=multiplier,
            epsilon_limit=None if published else target,
            epsilon_claimed=target if published else None,
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as `from_json` reads it."""
        silo = None if self.silo is None else vars(self.silo)
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {**plain, "silo": silo, "method": self.method.name, "options": methods.options(self.method)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FederatedPlan:
        """The plan that `to_json` described.

        Raises:
            ConfigError: A field is not known, or out of its range.
        """
        check_fields("plan", data, [*_PLAIN, "silo", "method", "options"])
        known = dict(data)
        known["method"] = methods.get(known["method"], **known.pop("options"))
        if known["silo"] is not None:
            check_fields("plan.silo", known["silo"], [f.name for f in fields(Silo)])
            known["silo"] = Silo(**known["silo"])
        return cls(**known)


_PLAIN = (
    "clients",
    "per_round",
    "rounds",
    "size",
    "noise_multiplier",
    "delta",
    "clip",
    "unit",
    "noise",
    "minimum",
    "public_seed",
    "epsilon_limit",
    "epsilon_claimed",
)
