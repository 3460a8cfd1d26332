"""The data sets known by name: one file each. `assay.data.catalog` finds them."""
