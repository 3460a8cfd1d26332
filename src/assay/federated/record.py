"""What only the plan of a federated run knows, for its record and statement. docs/record.md documents the fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay._util.figures import at_least, at_most
from assay.accounting.epsilon import Adjacency, epsilon
from assay.federated import methods
from assay.federated.local import Training
from assay.federated.plan import FederatedPlan
from assay.randomness.streams import Randomness
from assay.runs.record import Facts, Sentences, number
from assay.runs.schema import FEDERATED

_MOST_CLIENTS = 64  # each client's ε needs a separate composition, so no more than this are listed

_ADJACENCY = {
    ("client", Adjacency.ADD_OR_REMOVE_ONE): (
        "two data sets are neighbours if one has exactly one client more than the other, with all its records"
    ),
    ("client", Adjacency.REPLACE_ONE): (
        "two data sets are neighbours if they differ in the records of exactly one client."
        " That the client takes part is no secret"
    ),
    ("record", Adjacency.ADD_OR_REMOVE_ONE): "two data sets are neighbours if one client has exactly one record more",
}
_NOISE = {
    "central": "added by the server to each round's sum. The server is trusted: it sees each client's clipped update"
    " and who was asked",
    "local": "added by each client to its own vector before it sends anything. No recipient is trusted, not even the"
    " server, as long as the client keeps to this plan (see what is assumed)",
    "distributed": "added in shares by the clients, as integers modulo 2^k. The guarantee is for the sum. An aggregator"
    " is trusted to reveal only that sum, and only if enough clients answered, each with its honest share. Here that"
    " aggregator is the process that ran the rounds: secure aggregation could replace it, but is not part of this run",
}
_INTEGERS = "composition of zero-concentrated DP (integer noise is known by its Rényi divergences), an upper bound"


def facts(
    plan: FederatedPlan,
    names: Mapping[str, Any],
    randomness: Randomness,
    *,
    refused_rounds: int,
    turns: list[int] | None,
    communication: Mapping[str, int],
    stopped: bool,
) -> Facts:
    """What `assay.runs.record.build_record` needs to know about a federated run.

    Args:
        plan: What was promised.
        names: Describes model, data and partition.
        randomness: Where the server's random numbers come from.
        refused_rounds: Rounds that were charged and not opened.
        turns: How often each client was asked; None where that is hidden.
        communication: Bytes `up` and `down`.
        stopped: Whether a callback ended the run: every client's ε is then that of all its planned turns.

    Returns:
        The facts.
    """
    each = [plan.turns] * plan.clients if stopped and turns is not None else turns
    shares = plan.unit == "client" and plan.noise == "distributed"
    return Facts(
        kind=FEDERATED,
        method=plan.method.name,
        variant=plan.method.variant,
        options=methods.options(plan.method),
        unit=_unit(plan, names),
        records=names["records"],
        planned=plan.rounds,
        accountant="Rényi" if shares else "PLD",
        noise_multiplier=plan.noise_multiplier,
        clip=f"flat:{plan.clip:g}",
        sampling={
            "kind": "poisson" if plan.hidden else "passes",
            "rate": plan.per_round / plan.clients,
            "expected_batch_size": plan.per_round,
        },
        federated={
            "clients": plan.clients,
            "per_round": plan.per_round,
            "rounds": plan.rounds,
            "refused_rounds": refused_rounds,
            "unit": plan.unit,
            "noise": plan.noise if plan.unit == "client" else None,
            "min_answers": plan.answers if shares else None,
            "turns": None if turns is None else {"most": max(turns), "least": min(turns), "planned": plan.turns},
            "clients_epsilon": _each_client(plan, names, each),
            "partition": names["partition"],
            "partition_seed": names["partition_seed"],
            "partition_counts": names.get("counts"),
            "parameters": plan.size,
            "bytes_up": communication["up"],
            "bytes_down": communication["down"],
            "bytes_are": "expected" if plan.hidden else "counted",
        },
        sentences=_sentences(plan, names, randomness),
    )


def _unit(plan: FederatedPlan, names: Mapping[str, Any]) -> str:
    return "one client" if plan.unit == "client" else f"one record of a client ({names['unit']})"


def _each_client(plan: FederatedPlan, names: Mapping[str, Any], turns: list[int] | None) -> list[Any] | None:
    """ε of each client by how often it was asked, where that differs from client to client and is not secret."""
    if turns is None or plan.clients > _MOST_CLIENTS or plan.method.variant == "published":
        return None
    sizes = names.get("sizes")
    if plan.unit == "client" or sizes is None or plan.silo is None:
        return [number(epsilon(plan.after_turns(n), plan.delta, plan.adjacency)) for n in turns]
    spent = []
    for size, n in zip(sizes, turns, strict=True):
        event = plan.client_plan(size).event(n * plan.silo.steps) if size and n else None
        spent.append(0.0 if event is None else number(epsilon(event, plan.delta, plan.adjacency)))
    return spent


def sentences(spec: Mapping[str, Any]) -> Sentences:
    """The sentences of a statement that only the plan knows, for records of versions that did not store them.

    Args:
        spec: What run.json says.

    Returns:
        The sentences.
    """
    randomness = Training(**spec["training"]).randomness()
    return _sentences(FederatedPlan.from_json(spec["plan"]), spec["names"], randomness)


def _sentences(plan: FederatedPlan, names: Mapping[str, Any], randomness: Randomness) -> Sentences:
    shares = plan.unit == "client" and plan.noise == "distributed"
    sizes = f"how many records {'each client has' if plan.unit == 'record' else 'all clients have together'}"
    return Sentences(
        randomness=randomness.describe(),
        method=f"{plan.method.summary}. As published it is: {plan.method.soundness}",
        protected=[
            f"Adjacency: {plan.adjacency.value}: {_ADJACENCY[plan.unit, plan.adjacency]}.",
        ],
        mechanism=_mechanism(plan),
        accountant=_INTEGERS if shares else "",
        covered=f"{_released(plan)}. That includes every checkpoint and the final model",
        public=f"the number of clients, {sizes}, every setting in the record, the architecture and the initial weights",
        uncovered=[_partition(names)],
        assumed=[
            _asking(plan),
            "Whether and when a client answers does not depend on what it holds"
            + (" (a client that stays away counts as one that is not there, and is covered)." if plan.hidden else "."),
            "Noise is made of whole numbers, drawn to within 2⁻⁵³."
            if shares
            else "Noise is drawn in floating point. Attacks on its lowest bits are known; ε does not cover them.",
        ],
    )


def _asking(plan: FederatedPlan) -> str:
    if plan.hidden:
        return (
            "Nobody but the server learns who was asked, because ε counts on amplification by sampling. It does not"
            " hold against others who see that, for instance on the network."
        )
    return (
        "Each client keeps to this plan. With the engines serial and simulation one operator runs server and clients,"
        " and sees to it. A node of a deployment refuses any plan but the one in its own settings. Without one there,"
        " it keeps to the first that the server sent: its operator then trusts the server with that one."
    )


def _partition(names: Mapping[str, Any]) -> str:
    made = "It imitates real clients, and was made from a public seed and the labels of the data set."
    if names.get("counts") is None:
        return f"Not covered: how the records were divided among the clients. {made}"
    return (
        "**Not covered, and published on request**: how many records of each label each client holds (partition.png and"
        f" partition_counts in the record). {made}"
    )


def _released(plan: FederatedPlan) -> str:
    if plan.hidden:
        return "the models after every round"
    if plan.unit == "client" and plan.noise == "distributed":
        return "the sums that the aggregator reveals and the models made from them"
    return "every message that a client sends and the models made from them"


def _mechanism(plan: FederatedPlan) -> list[str]:
    if plan.method.variant == "published":
        return []
    if plan.silo is not None and plan.unit == "record":
        return [
            f"Each client runs DP-SGD on its own records: gradients clipped to {plan.clip:g}, Gaussian noise of"
            f" {at_least(plan.noise_multiplier)} times that, Poisson batches of {plan.silo.batch_size:g} expected,"
            f" {plan.silo.steps} steps each time it is asked, at most {plan.turns} times.",
            f"ε above is for the client with the fewest records ({plan.silo.records}), asked most often.",
        ]
    if plan.hidden:
        asked = (
            f"each is drawn independently with probability {at_most(plan.per_round / plan.clients)} a round, and who"
            f" was drawn stays hidden; sums are divided by the constant {plan.per_round}"
        )
    else:
        asked = (
            f"asked in passes over all of them, {plan.per_round} a round, each at most {plan.turns} times; no"
            " amplification is claimed"
        )
    enough = f"At least {plan.answers} of {plan.per_round} clients must answer for a sum to be opened."
    return [
        f"Each client's vector is clipped to norm {plan.clip:g}, all tensors together.",
        f"Noise of multiplier {at_least(plan.noise_multiplier)}, {_NOISE[plan.noise]}.",
        *([enough] if plan.noise == "distributed" else []),
        f"Clients: {asked}.",
    ]
