"""The record and the statement of a federated run: those of `assay train`, with a client in the place of a record.

The fields are documented in docs/record.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.accounting.epsilon import Adjacency, epsilon
from assay.accounting.ledger import Ledger
from assay.federated import methods
from assay.federated.plan import FederatedPlan
from assay.runs.record import SCHEMA, epsilon_facts, number
from assay.runs.statement import BOUNDS, audit_line, curve_table, head, options_line, shown

_MOST_CLIENTS = 64  # ε of each client is listed up to so many; each takes a composition of its own

_ADJACENCY = {
    (
        "client",
        Adjacency.ADD_OR_REMOVE_ONE,
    ): "neighbours differ by one client, with all its records, being there or not",
    (
        "client",
        Adjacency.REPLACE_ONE,
    ): "neighbours differ in what one client holds (all its records replaced by any others); that it takes part is no secret",
    ("record", Adjacency.ADD_OR_REMOVE_ONE): "neighbours differ by one record of one client being there or not",
}
_NOISE = {
    "central": "added once a round by the server to the sum. The server is trusted: it sees each client's clipped update and who was asked",
    "local": "added by each client to its own vector before anything is sent. Nobody who gets it is trusted, the server included, as long as the"
    " client keeps to this plan (see what is assumed)",
    "distributed": "added in shares by the clients, as integers modulo 2^k. The guarantee is for the sum: an aggregator is trusted to"
    " reveal nothing else, and that only if enough clients answered, each honest about its share. Here that aggregator is the process that ran the"
    " rounds: secure aggregation could take its place, and is not part of this run",
}


def finished_record(
    *,
    plan: FederatedPlan,
    ledger: Ledger,
    training: Mapping[str, Any],
    names: Mapping[str, Any],
    rounds: int,
    refused_rounds: int,
    turns: list[int] | None,
    history: list[dict[str, Any]],
    communication: Mapping[str, int],
    result: Mapping[str, float | None],
    seconds: float,
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of a finished run. ε comes from the ledger alone."""
    return {
        "schema": SCHEMA,
        "kind": "federated",
        "status": "done" if rounds >= plan.rounds else "budget-spent",
        "method": plan.method.name,
        "variant": plan.method.variant,
        "options": methods.options(plan.method),
        "encode": [],
        "denoise": [],
        "model": names["model"],
        "data": names["data"],
        "unit": "one client" if plan.unit == "client" else f"one record of a client ({names['unit']})",
        "records": names["records"],
        "epsilon": epsilon_facts(
            plan, ledger, "Rényi" if plan.unit == "client" and plan.noise == "distributed" else "PLD"
        ),
        "audit": None,
        "noise_multiplier": plan.noise_multiplier,
        "clip": f"flat:{plan.clip:g}",
        "micro_batch": 1,
        "sampling": {
            "kind": "poisson" if plan.hidden else "passes",
            "rate": plan.per_round / plan.clients,
            "expected_batch_size": plan.per_round,
        },
        "steps": rounds,
        "steps_charged": ledger.total_steps,
        "history": history,
        "result": {key: number(value) for key, value in result.items()},
        "seed": training["seed"],
        "training": dict(training),
        "federated": {
            "clients": plan.clients,
            "per_round": plan.per_round,
            "rounds": plan.rounds,
            "refused_rounds": refused_rounds,
            "unit": plan.unit,
            "noise": plan.noise if plan.unit == "client" else None,
            "min_answers": plan.answers if plan.unit == "client" and plan.noise == "distributed" else None,
            "turns": None if turns is None else {"most": max(turns), "least": min(turns), "planned": plan.turns},
            "clients_epsilon": _each_client(plan, names, turns),
            "partition": names["partition"],
            "partition_seed": names["partition_seed"],
            "partition_counts": names.get("counts"),
            "parameters": plan.size,
            "bytes_up": communication["up"],
            "bytes_down": communication["down"],
            "bytes_are": "expected" if plan.hidden else "counted",
        },
        "notes": names["notes"],
        "environment": dict(environment),
        "timing": {"seconds": round(seconds, 3), "seconds_per_step": round(seconds / max(1, rounds), 6)},
    }


def _each_client(plan: FederatedPlan, names: Mapping[str, Any], turns: list[int] | None) -> list[Any] | None:
    """ε of each client by how often it was asked, where that differs from client to client and is no secret."""
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


def statement(record: Mapping[str, Any], plan: FederatedPlan, randomness: str) -> str:
    """The statement of a finished run, in Markdown."""
    eps, fed = record["epsilon"], record["federated"]
    lines = [
        *head(record, randomness, ", federated"),
        *audit_line(record),
        "## What is protected",
        "",
        f"- Unit of privacy: {record['unit']}; there are {fed['clients']} clients.",
        f"- Adjacency: {eps['adjacency']}: {_ADJACENCY[plan.unit, plan.adjacency]}.",
        f"- In words: whatever is done with {_released(plan)}, it is at most e^ε times as likely (plus δ) as it would be with a neighbour of the data.",
        *_clients_epsilon(record),
        "",
        "## How ε was obtained",
        "",
        f"- Method: {plan.method.summary}. As published it is: {plan.method.soundness}.",
        *options_line(record),
        *_mechanism(record, plan),
        f"- Rounds: {record['steps']} done, {record['steps_charged']} charged"
        + (" (those lost in an interruption stay charged)" if record["steps_charged"] > record["steps"] else "")
        + (
            f"; {fed['refused_rounds']} of them were not opened, since too few clients answered, and stay charged"
            if fed["refused_rounds"]
            else ""
        )
        + ".",
        f"- Accountant: {_INTEGERS if eps['accountant'] == 'Rényi' else BOUNDS[eps.get('bound')]}. Cross-check by Rényi divergences: ε ≤ {shown(eps['rdp'])}.",
        f"- Random numbers: {randomness}.",
        "",
        *curve_table(record),
        "## What is covered by ε, and what is public",
        "",
        f"- Covered: {_released(plan)}, hence every checkpoint and the final model.",
        "- Taken as public: the number of clients, every setting in the record, the architecture and the initial weights"
        + (", how many records each client has." if plan.unit == "record" else "."),
        "- Not covered: the partition of the records among the clients (partition.png and its counts in the record). It was made from a public"
        " seed and the labels of the data set, in place of a world where clients hold what they hold.",
        "- Not protected: the test records. Test accuracy and loss are computed from them without noise.",
        *([f"- Data: {record['notes']}"] if record["notes"] else []),
        "",
        "## What is assumed",
        "",
        "- This statement covers this one run. Other runs on the same records, settings tried before and dropped, add to what is spent.",
        *(
            [
                "- Nobody but the server learns who was asked: whoever sees that, on the network for instance, is not covered by amplification."
            ]
            if plan.hidden
            else [
                "- Each client keeps to this plan. With the engines serial and simulation server and clients are one operator's, who sees to it. A node of"
                " a deployment refuses any plan but the one in its own settings or, without that, the first that the server sent: with that one its"
                " operator trusts the server."
            ]
        ),
        "- Whether and when a client answers does not depend on what it holds"
        + (" (a client that stays away counts as one that is not there, and is covered)." if plan.hidden else "."),
        "- Noise is drawn in floating point. Attacks on its lowest bits are known and are not covered by ε."
        if eps["accountant"] == "PLD"
        else "- Noise is made of whole numbers, drawn to within 2⁻⁵³.",
        "",
        f"Model: {record['model']}. Made with Assay {record['environment']['assay']}, torch {record['environment']['torch']}, "
        f"dp_accounting {record['environment']['dp_accounting']}.",
        "",
    ]
    return "\n".join(lines)


_INTEGERS = "composition of zero-concentrated DP (integer noise is known by its Rényi divergences), an upper bound"


def _released(plan: FederatedPlan) -> str:
    if plan.hidden:
        return "the models after every round"
    if plan.unit == "client" and plan.noise == "distributed":
        return "the sums that the aggregator reveals and the models made from them"
    return "every message that a client sends and the models made from them"


def _clients_epsilon(record: Mapping[str, Any]) -> list[str]:
    each = record["federated"]["clients_epsilon"]
    if not each:
        return []
    largest, least = max(map(float, each)), min(map(float, each))
    said = "inf" if largest == float("inf") else largest
    return [
        f"- Of the clients, the one that spent most spent ε = {shown(said)}, the one that spent least {shown(number(least))}."
    ]


def _mechanism(record: Mapping[str, Any], plan: FederatedPlan) -> list[str]:
    if record["variant"] == "published":
        return [
            "- Variant: the paper's algorithm to the letter; a target ε was one to claim, and the verified ε is what it really spent."
        ]
    if plan.silo is not None and plan.unit == "record":
        return [
            f"- Each client runs DP-SGD on its own records: gradients clipped to {plan.clip:g}, Gaussian noise of {plan.noise_multiplier:.5g} times that,"
            f" Poisson batches of {plan.silo.batch_size:g} expected, {plan.silo.steps} steps each time it is asked, at most {plan.turns} times.",
            f"- ε above is for the client with the fewest records ({plan.silo.records}), asked most often.",
        ]
    asked = (
        f"each client is drawn independently with probability {record['sampling']['rate']:.6g} a round, and who was drawn stays hidden;"
        f" sums are divided by the constant {plan.per_round}"
        if plan.hidden
        else f"in passes over all clients, {plan.per_round} a round, each at most {plan.turns} times; no amplification is claimed"
    )
    return [
        f"- Each client's vector is clipped to norm {plan.clip:g}, all tensors together.",
        f"- Noise of multiplier {plan.noise_multiplier:.5g}, {_NOISE[plan.noise]}.",
        *(
            [f"- At least {plan.answers} of {plan.per_round} clients must answer for a sum to be opened."]
            if plan.noise == "distributed"
            else []
        ),
        f"- Clients: {asked}.",
    ]
