"""Who is asked in a round, where that is not secret: passes over all clients, each in a new random order.

The server sees who answers, so sampling amplifies nothing. What counts is how often each client is asked. In every pass
each client is asked once, hence in n rounds of m out of K clients at most ⌈nm/K⌉ times. (Where the server is trusted
and who was asked stays hidden, `assay.data.sampling.Poisson` draws the clients instead, which amplifies.)
"""

from __future__ import annotations

import numpy as np

from assay.errors import ConfigError


def passes(clients: int, per_round: int, rounds: int, seed: int) -> list[list[int]]:
    """The clients of each round.

    Args:
        clients: How many there are.
        per_round: How many are asked in a round.
        rounds: How many rounds there are.
        seed: Public.

    Returns:
        The sorted clients of each round.

    Raises:
        ConfigError: More are asked than there are.
    """
    if not 1 <= per_round <= clients:
        raise ConfigError("per_round", per_round, f"a whole number from 1 to the number of clients, {clients}")
    rng = np.random.default_rng(seed)
    waiting: list[int] = []
    asked: list[list[int]] = []
    for _ in range(rounds):
        group = waiting[:per_round]
        waiting = waiting[per_round:]
        if len(group) < per_round:  # a new pass; clients of the old one that are in this round come later in it
            order = rng.permutation(clients).tolist()
            taken = set(group)
            fresh = [client for client in order if client not in taken][: per_round - len(group)]
            chosen = set(fresh)
            group += fresh
            waiting = [client for client in order if client not in chosen]
        asked.append(sorted(group))
    return asked


def most_turns(clients: int, per_round: int, rounds: int) -> int:
    """How often `passes` asks one client at most in this many rounds."""
    return -(-rounds * per_round // clients)
