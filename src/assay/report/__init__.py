"""`assay report`: one self-contained HTML page about a run, a study or a tree of runs."""
