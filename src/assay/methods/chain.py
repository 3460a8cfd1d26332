"""A method as one expression: how a record's gradient is bounded, encoded, made noisy and post-processed.

each ─▶ clip ─▶ sum ─▶ before ─▶ noise ─▶ (÷ expected batch size) ─▶ decode ─▶ after
per record, sensitive          │ released from here on, free to use
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from dp_accounting.dp_event import DpEvent

from assay._util.lazy import torch
from assay.errors import ConfigError
from assay.gradients.clip_rules import ClipRule
from assay.mechanisms.exact import ExactGaussian
from assay.mechanisms.types import Bounded, Denoiser, Encoder, Grads, Mechanism, OnParameters, Private, Stateful

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.gradients.record_grads import RecordGrads
    from assay.gradients.rules.correlation import Basis
    from assay.gradients.rules.layers import Rules
    from assay.randomness.streams import Stream

Form: TypeAlias = "torch.Size | Basis"
"""The form of a released gradient: the parameter's shape (the leading corner of a map), or coordinates in a basis."""

PerRecordMap: TypeAlias = "Callable[[dict[str, Tensor]], dict[str, Tensor]]"
"""A function of one record's (or micro-batch's) gradient, applied to all at once: {name: [B, *shape]} in and out."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Clipping, encoding, noise and post-processing. The same object runs a step and states its cost.

    With micro-batches of μ > 1 records (`micro`), gradients are averaged over a micro-batch before clipping. Replacing
    the members of a micro-batch moves its clipped average from one vector of norm C to another, so one record moves the
    sum by up to 2C. That holds because every record draws its micro-batch independently of the others: no record
    displaces another.

    Attributes:
        clip: the clipping rule.
        noise: the mechanism that releases the clipped sum.
        micro: μ, the number of records per micro-batch.
        rules: replace the engine's rules for the layer types they name. A rule may return a map larger than its
            parameter (the whole correlation of a convolution), whose leading corner is the gradient, or coordinates of
            such a map. `decode` sees these; `after` sees the gradient.
        each: functions of each record's gradient, applied before clipping.
        before: encoders of the clipped sum.
        decode: post-processing of the released map or coordinates.
        after: post-processing of the released gradient.

    Raises:
        ConfigError: the pieces do not fit together, for instance a denoiser that needs white noise after one that
            spoils it.
    """

    clip: ClipRule
    noise: Mechanism
    micro: int = 1
    rules: Rules = field(default_factory=dict)
    each: Sequence[PerRecordMap] = ()
    before: Sequence[Encoder] = ()
    decode: Sequence[Denoiser] = ()
    after: Sequence[Denoiser] = ()

    def __post_init__(self) -> None:
        if self.micro < 1:
            raise ConfigError("micro_batch", self.micro, "a whole number, 1 or above")
        if self.each and self.rules:
            raise ConfigError(
                "encode",
                "sign together with the full spectral domain",
                "one of the two: signs belong to a gradient's coordinates, and the full domain mixes those",
            )
        if isinstance(self.noise, ExactGaussian):
            self._check_exact(self.noise)
        white, spoiler = self.noise.white, "the noise of this method"
        for step in (*self.decode, *self.after):
            if step.needs_white and not white:
                raise ConfigError(
                    "denoise",
                    str(step),
                    f"a place before {spoiler}: it assumes independent noise of equal size on every coordinate",
                )
            if not step.keeps_white:
                white, spoiler = False, str(step)

    def _check_exact(self, noise: ExactGaussian) -> None:
        """Refuse combinations for which exact sums are not proved."""
        if self.micro > 1 or self.each or self.rules or self.before:
            raise ConfigError(
                "exact",
                True,
                "clipping, summing and adding noise alone: no micro-batches, no --encode, no maps of layers",
            )
        if self.clip.l2 != noise.grid.bound or isinstance(self.clip, Stateful):
            raise ConfigError(
                "exact", True, "a clipping rule whose bound is constant and finite: flat, per-layer or auto"
            )

    @property
    def l2(self) -> float:
        """The most by which one record can move the clipped sum, in l2 norm."""
        return self.clip.l2 if self.micro == 1 else 2 * self.clip.l2

    def on(self, parameters: Grads) -> Chain:
        """The chain for a model with these parameters."""
        return replace(self, noise=self.noise.on(parameters)) if isinstance(self.noise, OnParameters) else self

    def followed_by(self, denoisers: Sequence[Denoiser]) -> Chain:
        """The chain with these after its own denoisers."""
        return replace(self, after=(*self.after, *denoisers)) if denoisers else self

    def event(self) -> DpEvent:
        """The cost of one release before sampling: the code that releases is run on an empty sum."""
        return self.release(Bounded({}, self.l2), _NoStream()).event

    def clipped_sum(
        self, grads: RecordGrads, groups: list[int], slots: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Sensitive: the sum of the clipped gradients, and their norms [B, L] before clipping.

        Args:
            grads: the gradients of the records of a batch.
            groups: the clipping rule's group of each of the engine's layers.
            slots: [B], the micro-batch of each record; None without micro-batches.
        """
        from assay.gradients.arithmetic import full_products

        with full_products():
            return self._clipped_sum(grads, groups, slots)

    def _clipped_sum(
        self, grads: RecordGrads, groups: list[int], slots: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        from assay.gradients import on_grid
        from assay.gradients.arithmetic import squares

        if isinstance(self.noise, ExactGaussian):
            return on_grid.clipped_sum(grads, self.clip, groups, self.noise.grid)
        if self.micro == 1 and not self.each:
            norms = grads.norms(groups)
            return grads.weighted_sum(self.clip.weights(norms), groups), norms
        whole = grads.per_record()
        if self.micro > 1:
            assert slots is not None
            whole = _averaged(whole, slots)
        for step in self.each:
            whole = step(whole)
        width = max(groups, default=0) + 1
        sums = next(iter(whole.values())).new_zeros(len(next(iter(whole.values()))), width)
        for name, values in whole.items():
            sums[:, groups[grads.layer_of[name]]] += squares(values.reshape(len(values), -1))
        norms = sums.sqrt_()
        weights = self.clip.weights(norms)
        return {n: torch.tensordot(weights[:, groups[grads.layer_of[n]]], v, 1) for n, v in whole.items()}, norms

    def sum_of_nothing(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        """What `clipped_sum` returns for a batch without records."""
        from assay.gradients.arithmetic import zeros_for

        if isinstance(self.noise, ExactGaussian):
            return {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in parameters.items()}
        return {name: zeros_for(p) for name, p in parameters.items()}

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """Encode and add the noise."""
        for encode in self.before:
            grads = encode(grads)
        return self.noise.release(grads, stream)

    def finish(self, released: Private, expected_size: float, forms: Mapping[str, Form] | None = None) -> Grads:
        """Divide by the expected batch size and post-process.

        Args:
            released: what `release` returned.
            expected_size: the public denominator.
            forms: the form of each parameter's gradient, for chains with `rules`.

        Returns:
            The average gradient, one tensor per parameter.
        """
        from assay.gradients.arithmetic import constant
        from assay.gradients.rules.correlation import restored

        grads: Grads = released.value
        for (dtype, device), values in _alike(grads).items():
            torch._foreach_mul_(values, constant(1.0 / expected_size, dtype, device))
        for step in self.decode:
            grads = step(grads, released.noise_std / expected_size)
        if self.rules and forms is not None:
            grads = {name: restored(value, forms[name]) for name, value in grads.items()}
        for step in self.after:
            grads = step(grads, released.noise_std / expected_size)
        return grads

    def state(self) -> dict[str, Any]:
        """What changes from step to step, by its place in the chain. It holds released values only."""
        return {place: piece.state() for place, piece in self._stateful()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for place, piece in self._stateful():
            piece.restore(state[place])

    def _stateful(self) -> list[tuple[str, Stateful]]:
        pieces = {"clip": self.clip, "noise": self.noise} | {f"after {i}": step for i, step in enumerate(self.after)}
        return [(place, piece) for place, piece in pieces.items() if isinstance(piece, Stateful)]


def _alike(grads: Grads) -> dict[tuple[torch.dtype, torch.device], list[Tensor]]:
    """The tensors by their type and device."""
    found: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for value in grads.values():
        found.setdefault((value.dtype, value.device), []).append(value)
    return found


def _averaged(whole: dict[str, Tensor], slots: Tensor) -> dict[str, Tensor]:
    """The mean over the records of each micro-batch that is not empty."""
    present, place, counts = slots.unique(return_inverse=True, return_counts=True)
    return {
        name: v.new_zeros(len(present), *v.shape[1:])
        .index_add_(0, place, v)
        .div_(counts.view(-1, *[1] * (v.dim() - 1)))
        for name, v in whole.items()
    }


class _NoStream:
    """The randomness of a dry release, which must not ask for any."""

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        raise AssertionError(f"a dry release asked for {shape} numbers of {dtype} on {device}")

    laplace = normal

    def uniform(self, n: int) -> Tensor:
        raise AssertionError(f"a dry release asked for {n} numbers")

    def integers(self, high: int, n: int) -> Tensor:
        raise AssertionError(f"a dry release asked for {n} numbers below {high}")
