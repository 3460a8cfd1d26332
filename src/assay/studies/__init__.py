"""Studies: grids of ordinary `assay train` runs, run by several workers, resumable, and summed up over seeds."""
