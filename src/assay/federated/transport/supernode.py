"""`flower-supernode` that accepts Assay's app only. Run as a module with flower-supernode's options.

A plain supernode runs any code its superlink hands it, next to the data. This one ignores messages of any app but the
one in `bundle`, which contains no code. So a server can ask only what the installed version of Assay answers.
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

    def check_and_read(content: bytes, run: Any) -> Any:
        if not is_ours(content):
            said = "REFUSED an app that is not this version of Assay's (app %s, version %s)"
            log(40, said, run.fab_id, run.fab_version)
            raise RunNotRunningException  # Flower then ignores the message
        return read(content, run)

    setattr(start_client_internal, hook, check_and_read)
    start_parent_process_monitor(os.getppid())  # end with `assay federation join`, even if that is killed
    flower_supernode()


if __name__ == "__main__":
    main()
