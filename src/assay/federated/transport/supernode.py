"""`flower-supernode` that takes Assay's own app and no other. Run as a module with flower-supernode's options.

A plain supernode runs any code its superlink hands it, next to the data. This one ignores messages of any app but the one in `bundle`, which
has no code of its own: what a server can ask of the node's data is what the installed version of Assay answers.
"""

from __future__ import annotations

import os
from typing import Any

from assay.federated.transport.bundle import is_ours


def main() -> None:
    """Start Flower's supernode with a check on every app before its first message is taken."""
    from flwr.supercore import log
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supercore.run import RunNotRunningException
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    hook = "get_fused_config_from_fab"  # called once for each app, before anything of it is kept
    read = getattr(start_client_internal, hook)

    def checked(content: bytes, run: Any) -> Any:
        if not is_ours(content):
            log(
                40,
                "REFUSED an app that is not this version of Assay's (app %s, version %s)",
                run.fab_id,
                run.fab_version,
            )
            raise RunNotRunningException  # Flower's own way of leaving a message alone
        return read(content, run)

    setattr(start_client_internal, hook, checked)
    start_parent_process_monitor(os.getppid())  # end with `assay federation join`, even if that is killed
    flower_supernode()


if __name__ == "__main__":
    main()
