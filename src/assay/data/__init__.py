"""Data sets by name or from your own files, verified, as tensors.

`sources` loads a data set as a `bundle`. `catalog` lists the named data sets and the exact bytes of each. `locate`
looks for their files, `integrity` verifies them, `formats` reads them, and `fetch` gets them from their `origins`.
"""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.data.bundle import DataBundle
    from assay.data.catalog import DatasetInfo, available
    from assay.data.factories import of_datasets
    from assay.data.fetch import get
    from assay.data.folders import folder, pictures
    from assay.data.hub import of_dataset
    from assay.data.identity import contents
    from assay.data.records import Loading
    from assay.data.sources import load
    from assay.data.tables.loading import table
    from assay.data.tables.schema import Schema
    from assay.data.task import Task

__all__ = [
    "DataBundle",
    "DatasetInfo",
    "Loading",
    "Schema",
    "Task",
    "available",
    "contents",
    "folder",
    "get",
    "load",
    "of_dataset",
    "of_datasets",
    "pictures",
    "table",
]

__getattr__ = lazy.exports(
    __name__,
    {
        "DataBundle": "bundle",
        "DatasetInfo": "catalog",
        "Loading": "records",
        "Schema": "tables.schema",
        "Task": "task",
        "available": "catalog",
        "contents": "identity",
        "folder": "folders",
        "get": "fetch",
        "load": "sources",
        "of_dataset": "hub",
        "of_datasets": "factories",
        "pictures": "folders",
        "table": "tables.loading",
    },
)
