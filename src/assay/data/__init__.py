"""The data room: data sets by name or from one's own file, verified, as tensors.

`bundle` is what comes out; `sources` makes it; `catalog` says what there is and which bytes count as it;
`locate` finds them; `integrity` verifies them; `formats` reads them; `fetch` gets them, from the `origins`.
"""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.data.bundle import DataBundle
    from assay.data.catalog import DatasetInfo, available
    from assay.data.fetch import get
    from assay.data.sources import load
    from assay.data.tables.loading import table
    from assay.data.tables.schema import Schema
    from assay.data.task import Task

__all__ = ["DataBundle", "DatasetInfo", "Schema", "Task", "available", "get", "load", "table"]

__getattr__ = lazy.exports(
    __name__,
    {
        "DataBundle": "bundle",
        "DatasetInfo": "catalog",
        "Schema": "tables.schema",
        "Task": "task",
        "available": "catalog",
        "get": "fetch",
        "load": "sources",
        "table": "tables.loading",
    },
)
