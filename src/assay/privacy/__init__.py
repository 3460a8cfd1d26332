"""Privacy: what a run costs, how that is added up, and where its randomness comes from."""
