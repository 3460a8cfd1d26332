"""jax_privacy against Assay: a step compiled once by XLA, with the clipping and the noise of jax_privacy.

    pip install jax jax_privacy     # best into an environment of its own that also sees torch and Assay
    python -m benchmarks.jax_rival [--rounds N]

The model is the same `nn.Sequential` with the same weights, rewritten layer by layer, with channels last as XLA prefers
them on a CPU. Putting the batch into JAX's memory does not count. XLA computes on threads of its own, so it is kept to
one by `XLA_FLAGS` before JAX is imported. jax_privacy clips 16 records at a time: with the whole batch at once, a step
of the MLP takes ten times as long. Before anything is timed, both must have the same clipped gradient.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks import engine, report
from benchmarks.contestants import (
    ASSAY,
    CLIP,
    NOISELESS,
    PLAIN,
    Contestant,
    Maker,
    Setting,
    Task,
    plain,
    private,
    whole_batches,
)
from benchmarks.timing import Effort, add_effort, effort_of, timed

INSTALLED = all(importlib.util.find_spec(name) is not None for name in ("jax", "jax_privacy"))
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def _layer(module: nn.Module, jax: Any) -> Callable[[Any, list[Any]], Any]:
    """What a layer computes on [B, H, W, C] or [B, D], with its weights taken from the front of a list."""
    jnp, lax = jax.numpy, jax.lax
    if isinstance(module, nn.Conv2d):
        pads, stride = [(p, p) for p in _pair(module.padding)], module.stride

        def convolve(x: Any, weights: list[Any]) -> Any:
            kernel, bias = weights.pop(0), weights.pop(0)
            moved = jnp.transpose(kernel, (2, 3, 1, 0))
            return bias + lax.conv_general_dilated(x, moved, stride, pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))

        return convolve
    if isinstance(module, nn.Linear):

        def linear(x: Any, weights: list[Any]) -> Any:
            matrix, bias = weights.pop(0), weights.pop(0)
            return x @ matrix.T + bias

        return linear
    if isinstance(module, nn.MaxPool2d):
        window, moves = (1, *_pair(module.kernel_size), 1), (1, *_pair(module.stride), 1)
        return lambda x, _: lax.reduce_window(x, -jnp.inf, lax.max, window, moves, "VALID")
    if isinstance(module, nn.Flatten):  # torch has channels first
        return lambda x, _: (jnp.transpose(x, (0, 3, 1, 2)) if x.ndim == 4 else x).reshape(len(x), -1)
    known = {nn.ReLU: jax.nn.relu, nn.Tanh: jnp.tanh}
    if type(module) not in known:
        raise NotImplementedError(f"{type(module).__name__} in JAX")
    function = known[type(module)]
    return lambda x, _: function(x)


def _options(records: int) -> dict[str, Any]:
    return {"normalize_by": records, "microbatch_size": 16 if records % 16 == 0 else None}


def _pair(size: Any) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


def _made(model: nn.Module, data: TensorDataset, setting: Setting, *, private: bool) -> Contestant:
    os.environ.setdefault("XLA_FLAGS", _ONE_THREAD)
    import jax  # type: ignore[import-not-found, unused-ignore]
    import optax  # type: ignore[import-not-found, unused-ignore]
    from jax_privacy import clipping, noise_addition  # type: ignore[import-not-found, unused-ignore]

    jnp = jax.numpy
    layers = [_layer(m, jax) for m in model.modules() if not any(True for _ in m.children())]
    params = [jnp.asarray(p.detach().contiguous().numpy()) for p in model.parameters()]

    def loss(params: list[Any], x: Any, y: Any) -> Any:
        weights = list(params)
        for layer in layers:
            x = layer(x, weights)
        return optax.softmax_cross_entropy_with_integer_labels(x, y).mean()

    if private:
        gradient = clipping.clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), **_options(len(data)))
        noise = noise_addition.gaussian_privatizer(stddev=setting.noise_multiplier * CLIP / len(data), prng_key=0)
    else:
        gradient, noise = jax.grad(loss), optax.identity()
    state = [params, noise.init(params), params]

    @jax.jit
    def update(params: Any, noise_state: Any, x: Any, y: Any) -> Any:
        grads, noise_state = noise.update(gradient(params, x, y), noise_state)
        return jax.tree.map(lambda p, g: p - setting.lr * g, params, grads), noise_state, grads

    def step(x: Any, y: Any) -> None:
        state[:] = jax.block_until_ready(update(state[0], state[1], x, y))
        if setting == NOISELESS:
            for p, g in zip(model.parameters(), state[2], strict=True):
                p.grad = torch.tensor(jax.device_get(g))

    def batches() -> Iterator[Any]:
        for x, y in whole_batches(data):
            last = x.permute(0, 2, 3, 1).contiguous() if x.dim() == 4 else x
            yield jax.block_until_ready([jnp.asarray(last.numpy()), jnp.asarray(y.numpy())])

    return Contestant(model, batches(), step)


def jax_plain(model: nn.Module, data: TensorDataset, setting: Setting) -> Contestant:
    """Training without privacy, compiled."""
    return _made(model, data, setting, private=False)


def jax_private(model: nn.Module, data: TensorDataset, setting: Setting) -> Contestant:
    """jax_privacy's DP-SGD, compiled."""
    return _made(model, data, setting, private=True)


TASKS = [task for task in engine.TARGETS if task.model in {"logistic", "mlp", "mnist-cnn", "model3"}]
MAKERS: dict[str, Maker] = {PLAIN: plain, ASSAY: private, "plain JAX": jax_plain, "jax_privacy": jax_private}


def measure(task: Task, effort: Effort) -> list[str]:
    """A row of the table: milliseconds of a step."""
    engine.check_agrees(task, jax_private)
    milliseconds, _ = timed(task, MAKERS, effort)
    return [task.label, *(f"{milliseconds[name]:.2f}" for name in MAKERS)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jax_rival", description="Assay against jax_privacy")
    add_effort(parser)
    effort = effort_of(parser.parse_args())
    if not INSTALLED:
        raise SystemExit("JAX is not installed: pip install jax jax_privacy")
    torch.set_num_threads(report.THREADS)
    rows = [measure(task, effort) for task in TASKS]
    print(f"{report.described()}\n\n{report.table(['milliseconds a step', *MAKERS], rows)}")


if __name__ == "__main__":
    main()
