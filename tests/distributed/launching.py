"""Processes started as people start them, by torchrun, on the loopback; one thread each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(ranks: int, *arguments: object, cwd: Path, restarts: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
            *("--max-restarts", str(restarts), "--monitor-interval", "0.1"),
            *map(str, arguments),
        ],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(child: subprocess.Popen[str], seconds: float = 600) -> tuple[str, str]:
    try:
        out, err = child.communicate(timeout=seconds)
    finally:
        child.kill()
    assert child.returncode == 0, err
    return out, err
