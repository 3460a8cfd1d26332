"""Public word vectors known by name: one file each. `assay.data.catalog` finds them."""
