"""Every form of every method: each variant, and the options that change what is added to what.

A new method is here by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay import Plan, methods
from assay.gradients import clipping
from assay.methods.chain import Chain

EXTRA: dict[str, list[dict[str, Any]]] = {
    "gredp": [{"noise_form": "real"}, {"noise_form": "0.6/0.8"}, {"domain": "full"}, {"domain": "kernel"}],
    "spectral": [{"noise_form": "real"}, {"domain": "full"}, {"domain": "kernel"}],
    "discrete": [{"priors": "learnt", "emit": "mean"}],
    "newton": [{"place": "after"}],
}

STEPS_OF_DPSGD = ("dpsur",)
"""Methods that do something after a step of DP-SGD. Its micro-batches are here."""


@dataclass(frozen=True)
class Form:
    """A method with options, and the clipping and micro-batches it is used with."""

    method: methods.Method
    micro_batch: int = 1
    clip: str | None = None

    def __str__(self) -> str:
        options = ",".join(f"{k}={v}" for k, v in methods.options(self.method).items() if k != "groups")
        return f"{self.method.name}[{options}]" + (f" micro {self.micro_batch}" if self.micro_batch > 1 else "")

    @property
    def rule(self) -> clipping.Rule:
        return clipping.parse(self.clip or str(self.method.clip))

    def plan(self, **changes: Any) -> Plan:
        settings: dict[str, Any] = {
            "records": 120,
            "batch_size": 20,
            "steps": 12,
            "noise_multiplier": 1.0,
            "delta": 1e-3,
            "method": self.method,
            "clip": self.rule,
            "micro_batch": self.micro_batch,
        }
        return Plan(**settings | changes)

    def chain(self, layers: list[str]) -> Chain:
        return self.plan().for_layers(layers).chain()


def all_forms() -> list[Form]:
    found = []
    for name, method in methods.available().items():
        variants = methods.VARIANTS if "variant" in type(method).OPTIONS else ("sound",)
        for variant in variants:
            for options in ({}, *EXTRA.get(name, [])):
                if variant == "sound" and options.get("noise_form") in ("real", "0.6/0.8"):
                    continue
                chosen = methods.get(name, variant=variant, **options)
                found += [Form(chosen)] + ([] if name in STEPS_OF_DPSGD else [Form(chosen, micro_batch=3)])
    return [*found, Form(methods.get("lssgd", variant="published"), clip="assumed:1.0")]


FORMS = all_forms()
SOUND = [form for form in FORMS if form.method.variant == "sound"]
