"""Federated learning: clients keep their records, the server sees messages; ε is about one client or one record.

`run` is the server's loop and `site` a client's step. They meet in bytes (`wire`), carried by whatever implements `carrier`.
"""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.federated.from_names import FederatedSettings, federate

__all__ = ["FederatedSettings", "federate"]

__getattr__ = lazy.exports(__name__, {"FederatedSettings": "from_names", "federate": "from_names"})
