"""`python -m assay.cli.worker ...`: the `assay` command, which ends in order when the study that started it is gone.

The study holds the other end of standard input. However the study ends, kill -9 included, the pipe closes with it. The
run then writes a checkpoint and stops, as on SIGTERM, and the study can be resumed at once.
"""

from __future__ import annotations

import os
import signal
import threading

from assay.cli import main


def _stop_with_the_study() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_the_study, daemon=True).start()
    main()
