"""Who is asked in a round, where that is no secret: passes over all clients, each in a new random order.

The server sees who answers, so no amplification by sampling is claimed for it; what counts is how often each client is asked.
In every pass each client is asked once, hence in n rounds of m out of K clients at most ⌈nm/K⌉ times. (Where the server is
trusted and who was asked stays hidden, clients are drawn by `assay.data.sampling.Poisson` instead, which amplifies.)
"""

from __future__ import annotations

import numpy as np

from assay.errors import ConfigError


def passes(clients: int, per_round: int, rounds: int, seed: int) -> list[list[int]]:
    """The clients of each round, sorted; `seed` is public."""
    if not 1 <= per_round <= clients:
        raise ConfigError("per_round", per_round, f"a whole number from 1 to the number of clients, {clients}")
    rng = np.random.default_rng(seed)
    waiting: list[int] = []
    asked: list[list[int]] = []
    for _ in range(rounds):
        group = waiting[:per_round]
        waiting = waiting[per_round:]
        if len(group) < per_round:  # a new pass; those of the old one who are in this round come later in the new one
            order = rng.permutation(clients).tolist()
            taken = set(group)
            fresh = [client for client in order if client not in taken][: per_round - len(group)]
            chosen = set(fresh)
            group += fresh
            waiting = [client for client in order if client not in chosen]
        asked.append(sorted(group))
    return asked


def most_turns(clients: int, per_round: int, rounds: int) -> int:
    """The most often that `passes` asks one client in so many rounds."""
    return -(-rounds * per_round // clients)
