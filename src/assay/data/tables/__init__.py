"""Tables of rows, prepared by what is publicly known of their columns.

`columns` and `schema` say what that is; `reading` reads CSV and Parquet; `encoding` and `preparing` make features and
targets of rows; `templates` writes a schema to fill in; `loading` makes a data set.
"""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.data.tables.loading import table
    from assay.data.tables.preparing import features
    from assay.data.tables.schema import Schema
    from assay.data.tables.templates import from_sample, template

__all__ = ["Schema", "features", "from_sample", "table", "template"]

__getattr__ = lazy.exports(
    __name__,
    {
        "Schema": "schema",
        "features": "preparing",
        "from_sample": "templates",
        "table": "loading",
        "template": "templates",
    },
)
