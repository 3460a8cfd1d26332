"""Which of several correct computations is fastest here: timed once on random numbers, and remembered.

No record influences a choice. Sizes are rounded up to powers of two, so that not every batch needs a measurement. The
computations differ in the last bits, so runs with a seed, which must repeat exactly, are not measured (`PrivateStep`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

_REPEATS = 3
_TIMED = 1 << 21  # numbers
_known: dict[tuple[object, ...], int] = {}


def rounded_up(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()


def remembered(
    key: tuple[object, ...], runs: Callable[[], Sequence[Callable[[], object]]], device: torch.device
) -> int:
    """Which of these takes least time, as measured when the key was first asked for in this process.

    Args:
        key: What the answer depends on, besides the device and the number of threads.
        runs: Makes the computations to compare.
        device: Where they run.
    """
    key = (*key, device, torch.get_num_threads())
    found = _known.get(key)
    if found is None:
        found = _known[key] = quickest(runs(), device)
    return found


def quickest(runs: Sequence[Callable[[], object]], device: torch.device) -> int:
    """Which of these takes least time: the best of a few alternating calls, after one call each."""
    # what other processes do on a busy machine does not count, where one thread does all the work
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    now = time.thread_time if alone else time.perf_counter
    best = [float("inf")] * len(runs)
    for repeat in range(_REPEATS + 1):
        for i, run in enumerate(runs):
            _wait(device)
            start = now()
            run()
            _wait(device)
            if repeat:
                best[i] = min(best[i], now() - start)
    return best.index(min(best))


def timed_records(like: torch.Tensor) -> int:
    """How many records of a batch a timing is given: 8 MB of them. That is more than a core's caches hold, for timings
    within them say nothing about larger sizes, and does not add much to the memory of a step.
    """
    return max(1, min(len(like), _TIMED * len(like) // like.numel()))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
