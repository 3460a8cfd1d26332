"""Other tools, as callbacks of a run."""
