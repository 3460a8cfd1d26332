"""Training on several processes, the ranks. Code asks its `World` and need not know whether it runs alone.

Every rank may rely on this:

- Each record belongs to one rank. A batch is drawn as one process draws it, and each rank keeps its own records. So
  records enter independently of each other, whether ranks share a seed or not.
- Clipped sums are added over the ranks. The leader adds the noise to its sum before that, so the noise is drawn once
  and no rank ever holds the sum without it.
- The sum has the same bits on all ranks, and so have all parameters.
- Rank 0, the leader, writes all files: directory, ledger, checkpoints, record.
"""
