"""Studies: grids of ordinary runs, trained by several workers, resumable, and summarised over seeds.

assay.studies.compare("studies/two", ["dpsgd", "lssgd"], epsilon=[1, 3], data="digits", model="linear-head")
assay.studies.reproduce("gredp/table1", scale="small")
"""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.studies.comparing import compare
    from assay.studies.reproducing import reproduce

__all__ = ["compare", "reproduce"]

__getattr__ = lazy.exports(__name__, {"compare": "comparing", "reproduce": "reproducing"})
