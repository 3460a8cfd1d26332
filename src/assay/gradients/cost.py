"""Which of two correct computations is faster, by timing them.

Both are timed on random numbers of the given shape, so that no record influences the choice. Sizes are rounded up to
powers of two, so that not every batch needs a measurement. The process remembers the answers. The two computations
differ in the last bits, so runs with a seed, which must repeat exactly, are not measured (`PrivateStep`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from assay.gradients.uses.base import Apart, Dense, Found, Outer, keeps_product
from assay.gradients.uses.convolution import ChannelsLast, ConvShape

_REPEATS = 3
_MOST_RECORDS = 32
_LAYERS = 6
_known: dict[tuple[object, ...], bool] = {}


def _up(n: int) -> int:
    return 1 << (n - 1).bit_length()


def quicker(first: Callable[[], object], second: Callable[[], object], device: torch.device) -> bool:
    """Whether `first` takes less time than `second`: the best of a few alternating calls, after one call each."""
    best = [float("inf"), float("inf")]
    for repeat in range(_REPEATS + 1):
        for i, run in enumerate((first, second)):
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            if repeat:
                best[i] = min(best[i], time.perf_counter() - start)
    return best[0] < best[1]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def choose_all(found: Found) -> None:
    """`choose` for every use of a pass."""
    for _, use in found:
        if isinstance(use, Apart):
            for part in use.uses:
                if isinstance(part, Outer):
                    choose(part)


def choose(use: Outer) -> None:
    """Set `keep` where the shape leaves a choice."""
    positions, out, inp = use.shape
    use.keep = keeps_product(positions, out, inp)
    if use.keep is not None:
        return
    records = min(_MOST_RECORDS, _up(len(use.g)))
    key = (records, _up(positions), out, inp, use.g.dtype, use.g.device, torch.get_num_threads())
    if key not in _known:
        _known[key] = _measured(records, _up(positions), out, inp, use.g)
    use.keep = _known[key]


def by_windows(shape: ConvShape, x: Tensor, g: Tensor) -> bool:
    """Whether a convolution's gradients, norms and sums are faster by the windows of its input."""
    last = x.is_contiguous(memory_format=torch.channels_last)
    key = (shape, _up(len(x)), x.shape[1:], last, x.dtype, x.device, torch.get_num_threads())
    if key not in _known:
        source = torch.Generator().manual_seed(0)

        def made(like: Tensor) -> Tensor:
            # as many records as there are: timings within a core's cache say nothing about larger sizes
            drawn = torch.randn(like.shape, generator=source).to(like)
            return drawn.contiguous(memory_format=torch.channels_last) if last else drawn

        some_x, some_g = made(x), made(g)
        weights = some_x.new_ones(len(some_x), 1)

        def way(use: Dense) -> list[Tensor]:
            return [use.sq_norm(), use.weighted_sum(weights)]

        _known[key] = quicker(
            lambda: way(ChannelsLast(shape.window_gradients(some_x, some_g))),
            lambda: way(Dense(shape.weight_gradients(some_x, some_g))),
            x.device,
        )
    return _known[key]


def _measured(records: int, positions: int, out: int, inp: int, like: Tensor) -> bool:
    source = torch.Generator().manual_seed(0)  # torch's global state belongs to the user

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source).to(like)

    g, x, weights = made(records, positions, out), made(records, positions, inp), made(records, 1)

    def way(keep: bool) -> list[Tensor]:
        # as in a step: all norms before the first sum, so that what is kept is no longer in the caches
        uses = [Outer(g, x, keep) for _ in range(_LAYERS)]
        for use in uses:
            use.sq_norm()
        return [use.weighted_sum(weights) for use in uses]

    return quicker(lambda: way(True), lambda: way(False), like.device)
