"""Federated learning: clients keep their records, the server sees messages; ε is about one client or one record.

`server` holds the loop and `client` one client's turn. They exchange bytes (`wire`) over a `transport`.
"""

from typing import TYPE_CHECKING

from assay._util import lazy

if TYPE_CHECKING:
    from assay.federated.from_names import FederatedSettings, federate

__all__ = ["FederatedSettings", "federate"]

__getattr__ = lazy.exports(__name__, {"FederatedSettings": "from_names", "federate": "from_names"})
