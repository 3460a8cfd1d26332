"""One small model of every family in timm, where timm can be imported (it needs torchvision).

Weights are random, models are cut where they allow it, and pictures are small. BatchNorm is in eval mode with
statistics of random pictures, as where a model is fine-tuned with those that it came with: in train mode it mixes
records, and is refused.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage_cases import RECORDS, Case

GROUP = "timm"
_SMALL = (
    "atto", "femto", "pico", "nano", "_xxs", "_xxt", "test_", "_t0", "_b0", "_xs", "_n0", "_s0", "_m0", "tiny", "_t_",
    "_ti", "mini", "128s", "_s12", "18", "_s1", "11", "xx_small", "x_small", "small", "_s", "26", "39", "050", "050_1",
)  # fmt: skip
_SIDES = (64, 84, 96, 128, 224)
"""Sides at which windows are smaller than the picture."""
_FOUR = (1, 2, 1, 1)
_NARROW: tuple[dict[str, Any], ...] = (
    {"depth": 2, "embed_dim": 48, "num_heads": 3},
    {"depth": 2, "embed_dim": 48, "num_heads": 3, "pos_embed_grid_size": (4, 4)},
    {"depth": 2, "embed_dim": 64, "num_heads": 2, "head_dim": 32, "intermediate_size": 96, "num_kv_heads": 2},
    {"depth": 2, "embed_dim": 48, "num_heads": 3, "global_attn_indexes": (1,), "window_size": 2, "neck_chans": 32},
    {"depth": 2, "embed_dim": 48, "inner_dim": 12, "num_heads_outer": 3, "num_heads_inner": 2},
    {"depth": 2, "dim": 32},
    {"depth": 2},
    {"depths": _FOUR, "embed_dims": (16, 32, 48, 64), "num_heads": (1, 2, 3, 4)},
    {"depths": _FOUR, "embed_dims": (16, 32, 48, 64)},
    {"depths": _FOUR, "embed_dim": 24, "num_heads": (1, 2, 3, 4)},
    {"depths": _FOUR, "embed_dim": 24},
    {"depths": _FOUR, "dims": (16, 24, 32, 48)},
    {"depths": _FOUR},
    {"depths": (1, 2, 1)},
    {"stages": _FOUR, "embed_dim": 24},
    {"stages": _FOUR},
    {"layers": _FOUR, "embed_dims": (16, 32, 32, 32), "num_heads": (2, 2, 2, 2)},
    {"layers": _FOUR, "width_factor": 0.25},
    {"layers": _FOUR, "channels": (8, 16, 24, 32)},
    {"layers": _FOUR},
    {"block_config": _FOUR, "growth_rate": 8},
    {"num_blocks_list": (1,) * 7},
    {"num_features": 64},
    {"stem_size": 12, "num_features": 504},
    {"channel_multiplier": 0.25},
    {"mlp_ratio": 0.125},
    {},
)
"""How a model is cut: the smallest of those that it accepts is taken."""


def is_there() -> bool:
    """Whether timm and what it needs are installed."""
    return all(importlib.util.find_spec(name) for name in ("timm", "torchvision"))


def timm_cases() -> Iterator[Case]:
    """A small model of every family; nothing where timm is not installed."""
    if not is_there():
        return
    import timm

    for family in timm.list_modules():
        names = timm.list_models(module=family)
        if names:
            name = min(names, key=_size)
            yield Case(
                group=GROUP,
                name=name,
                build=lambda name=name: _built(name)[0],
                inputs=lambda name=name: _pictures(name),
            )


def _size(name: str) -> tuple[int, int, str]:
    return next((i for i, token in enumerate(_SMALL) if token in name), len(_SMALL)), len(name), name


@functools.lru_cache(maxsize=1)
def _built(name: str) -> tuple[nn.Module, int]:
    """A model without dropout, with three classes, and the side of its pictures."""
    import timm

    for cut in sorted(_accepted(name), key=_accepted(name).__getitem__):
        options = dict(_NARROW[cut])
        for side in _SIDES:
            for sized in ({"img_size": side}, {}):
                try:
                    return _quiet(timm.create_model(name, num_classes=3, **options, **sized), side), side
                except Exception:
                    continue
    model = timm.create_model(name, num_classes=3)
    side = int(model.default_cfg["input_size"][-1])
    return _quiet(model, side), side


@functools.lru_cache(maxsize=1)
def _accepted(name: str) -> dict[int, int]:
    """The cuts that a model accepts, and how many parameters it then has."""
    import timm

    found = {}
    for number, options in enumerate(_NARROW):
        try:
            with torch.device("meta"):
                model = timm.create_model(name, num_classes=3, **options)
            found[number] = sum(p.numel() for p in model.parameters())
        except Exception:
            continue
    return found


def _quiet(model: Any, side: int) -> Any:
    model.train()
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = None  # of all pictures so far
    with torch.no_grad():
        model(torch.randn(RECORDS, 3, side, side))
    for norm in norms:
        norm.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("drop_prob", "drop_rate"):
            if hasattr(module, name):
                setattr(module, name, 0.0)
    return model


def _pictures(name: str) -> Mapping[str, Tensor]:
    side = _built(name)[1]
    return {"x": torch.randn(RECORDS, 3, side, side)}
