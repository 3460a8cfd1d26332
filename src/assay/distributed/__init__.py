"""Training on several processes: one asks its `World` and does not know whether it is alone.

What every rank may rely on:

- Each record belongs to one rank. A batch is drawn as one process draws it, and a rank keeps what is its own, so that records enter
  independently of each other whether ranks share a seed or not.
- Clipped sums are added over the ranks, and the noise is in the leader's before they are: drawn once, and no rank ever holds the
  sum without it.
- The sum has the same bits everywhere, and so have all parameters.
- Rank 0, the leader, owns all files: directory, ledger, checkpoints, record.
"""
