"""Opacus, in every mode of its own that trains on one machine, as contestants.

Left out are `no_op`, which computes no per-record gradient, and `ghost_fsdp` and `ghost_tp`, which are `ghost` over
several processes. The modules and optimizers are those that `PrivacyEngine.make_private` would pick; they are driven
directly, so that its data loader and accountant cost nothing here.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from assay._util import extras
from benchmarks.contestants import CLIP, Contestant, Maker, Setting, sgd, whole_batches

try:
    from opacus import PrivacyEngine
    from opacus.grad_sample import wrap_model
    from opacus.optimizers import get_optimizer_class
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from opacus.validators import ModuleValidator
except ImportError as error:
    raise SystemExit(f"the benchmarks compare with Opacus 1.6: {extras.command('peers')} ({error})") from error

warnings.filterwarnings("ignore", message="Full backward hook is firing")  # Opacus's own hooks, every step


def _optimizer(mode: str, model: nn.Module, records: int, setting: Setting) -> Any:
    kind = get_optimizer_class(clipping="flat", distributed=False, grad_sample_mode=mode)
    return kind(
        sgd(model, setting),
        noise_multiplier=setting.noise_multiplier,
        max_grad_norm=CLIP,
        expected_batch_size=records,
    )


def _with_their_layers(model: nn.Module) -> nn.Module:
    """The model with Opacus's own recurrent layers, which have the same weights."""
    if not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return model
    fixed: nn.Module = ModuleValidator.fix(model)
    return fixed


def _per_record(mode: str, model: nn.Module, data: TensorDataset, setting: Setting) -> Contestant:
    """The modes that build every record's gradient: hooks, functorch, ew."""
    model = _with_their_layers(model)
    wrapped = wrap_model(model, grad_sample_mode=mode)
    optimizer = _optimizer(mode, model, len(data), setting)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()

    return Contestant(model, whole_batches(data), step)


def _two_passes(ghost: bool, model: nn.Module, data: TensorDataset, setting: Setting) -> Contestant:
    """Norms in a first backward pass, the clipped sum in a second; `ghost` uses ghost norms where Opacus has them."""
    model = _with_their_layers(model)
    wrapped = wrap_model(model, grad_sample_mode="ghost", max_grad_norm=CLIP, use_ghost_clipping=ghost)
    optimizer = _optimizer("ghost", model, len(data), setting)
    loss = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss(wrapped(x), y).backward()
        optimizer.step()

    return Contestant(model, whole_batches(data), step)


OPACUS: dict[str, Maker] = {
    "Opacus hooks": functools.partial(_per_record, "hooks"),
    "Opacus functorch": functools.partial(_per_record, "functorch"),
    "Opacus ew": functools.partial(_per_record, "ew"),
    "Opacus ghost": functools.partial(_two_passes, True),
    "Opacus fast clipping": functools.partial(_two_passes, False),
}


def _loaded(mode: str, model: nn.Module, data: TensorDataset, batch: int) -> Callable[[], None]:
    """An epoch as Opacus's users write it: `make_private`, its Poisson sampling data loader, its optimizer."""
    criterion = nn.CrossEntropyLoss()
    made: Any = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=sgd(model, Setting()),
        data_loader=DataLoader(data, batch_size=batch),
        criterion=criterion,
        noise_multiplier=1.0,
        max_grad_norm=CLIP,
        grad_sample_mode=mode,
    )
    wrapped, optimizer, loss, loader = made if mode == "ghost" else (*made[:2], criterion, made[-1])

    def epoch() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            loss(wrapped(x), y).backward()
            optimizer.step()

    return epoch


OPACUS_LOADED: dict[str, Callable[[nn.Module, TensorDataset, int], Callable[[], None]]] = {
    "Opacus hooks": functools.partial(_loaded, "hooks"),
    "Opacus ghost": functools.partial(_loaded, "ghost"),
}
