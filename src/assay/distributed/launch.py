"""What torchrun, or another launcher that sets the same variables, says about this process; joining the other ranks."""

from __future__ import annotations

import atexit
import os
import time

from assay.errors import ConfigError

_LET_GO_SECONDS = 0.2


def launched() -> bool:
    """Whether a launcher has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def restarted() -> bool:
    """Whether torchrun has started the ranks again after one of them ended."""
    return _attempt() > 0


def _attempt() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def check_alone(what: str) -> None:
    """Refuse a command that every rank would run as a whole.

    Raises:
        ConfigError: A launcher started this process as one of several.
    """
    if launched():
        raise ConfigError(
            "command", what, "one process: of the commands, only train and resume share their work under torchrun"
        )


def join() -> None:
    """Join the other ranks, once: by gloo on the CPU, and by NCCL where there is CUDA. The process leaves when it ends.

    Ranks find each other by addresses in a store. torchrun keeps that store when it starts ranks again, and some ranks
    would look for another where it was before it died. So every attempt has its own keys.
    """
    import torch
    from torch import distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if dist.is_initialized():
        return
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    store, rank, size = next(iter(rendezvous("env://")))
    attempt = PrefixStore(f"assay, attempt {_attempt()}", store)
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=size)
    atexit.register(_leave)


def _leave() -> None:
    from torch import distributed as dist

    if dist.is_initialized():
        # A thread of gloo may still hold the tensors of the last message. If it frees them while Python shuts down, the
        # process aborts after all work is done, and torchrun reports a failed run. Sleeping lets that thread finish.
        time.sleep(_LET_GO_SECONDS)
        dist.destroy_process_group()
