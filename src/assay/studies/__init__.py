"""Studies: grids of ordinary runs of `assay train` or `assay federate`, run by several workers, resumable, and summed up over seeds."""
