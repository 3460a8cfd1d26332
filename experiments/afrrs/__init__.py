"""AFRRS: its tables, and `python -m experiments.afrrs.figure` for accuracy against epsilon (Fig. 4 and 5)."""
