"""Processes started as people start them, by torchrun or accelerate, on the loopback; one thread each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(ranks: int, *arguments: object, cwd: Path, restarts: int = 0) -> subprocess.Popen[str]:
    options = ["--standalone", "--nproc-per-node", ranks, "--max-restarts", restarts, "--monitor-interval", 0.1]
    return _started("-m", "torch.distributed.run", *options, *arguments, cwd=cwd)


def run_ranks(ranks: int, script: Path, *arguments: object, cwd: Path) -> None:
    """Run a script as torchrun runs it. Its agent, which takes seconds to import, is left out."""
    address = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    children = [_started(script, *arguments, cwd=cwd, RANK=str(rank), **address) for rank in range(ranks)]
    try:
        for child in children:
            finished(child)
    finally:
        for child in children:
            child.kill()


def accelerate_launch(ranks: int, *arguments: object, cwd: Path) -> subprocess.Popen[str]:
    """The option is named after GPUs, and without one the variable keeps the processes on the CPU."""
    options = ["--multi_gpu", "--num_processes", ranks, "--main_process_port", _free_port()]
    return _started("-m", "accelerate.commands.launch", *options, *arguments, cwd=cwd, ACCELERATE_USE_CPU="true")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _started(*arguments: object, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT | environment,
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
