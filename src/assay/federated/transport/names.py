"""Names that processes on both sides of a carrier agree on."""

from __future__ import annotations

from typing import Final

DEFAULT_SITE: Final = "assay.federated.client:open_site"
SITE_VARIABLE: Final = "ASSAY_FEDERATED_SITE"
"""package.module:function that opens a site; read where the site is opened."""
SETTINGS_VARIABLE: Final = "ASSAY_FEDERATED_SETTINGS"
"""A JSON file whose entries replace the server's settings on this node."""
LEDGERS_VARIABLE: Final = "ASSAY_FEDERATED_LEDGERS"
"""The node's folder for its plan and its clients' ledgers, unless its settings name one."""
