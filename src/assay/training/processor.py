"""Whether this machine can do what a run needs, which is checked before anything is charged."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import torch

from assay.errors import ConfigError

_PRODUCT = "import torch; torch.ones(64, 64).bfloat16() @ torch.ones(64, 64).bfloat16()"
_SWITCH = "ONEDNN_MAX_CPU_ISA"
_CPUINFO = Path("/proc/cpuinfo")


def check_precision(
    precision: str, device: torch.device, *, program: str = _PRODUCT, processor: Path = _CPUINFO
) -> None:
    """Refuse bf16 on a machine where it ends the process.

    Some virtual machines announce AMX tiles and kill whoever uses them, as torch does for products in bf16. A run would
    die in its first step. So a process of its own tries it first, on processors that announce tiles.

    Args:
        precision: The precision of the run's passes.
        device: Where they are made.
        program: What the process tries.
        processor: The system's description of the processor.

    Raises:
        ConfigError: The process was killed. Says how to do without tiles.
    """
    if precision != "bf16" or device.type != "cpu" or _SWITCH in os.environ:
        return
    if processor.exists() and "amx_tile" in processor.read_text(errors="replace") and not _survives(program):
        raise ConfigError(
            "precision",
            precision,
            "float32 on this machine: its processor announces AMX tiles, and the system kills a process that uses "
            f"them. With {_SWITCH}=AVX512_CORE_FP16 in the environment, torch does without them",
        )


@functools.cache
def _survives(program: str) -> bool:
    """Whether a process that runs this is not killed by a signal; errors do not count."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    return done.returncode >= 0
