"""DP-FedAvg: average clipped updates.

McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent language models", 2018 (arXiv:1710.06963).

Guarantee, unit `client`: each client's update, all floating-point tensors together, is clipped to C. The server, each
client, or all clients together add the noise (`assay.federated.noise`). A run is the composition over all rounds that
`FederatedPlan` states. Unit `record`: clients send the result of DP-SGD on their records.

Claimed ε: the moments accountant, which is Rényi composition. It is sound; the verified ε is smaller because numerical
composition is tighter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dp_accounting.dp_event import DpEvent

from assay.accounting.epsilon import rdp_epsilon
from assay.federated.exchange import Averaging, Exchange
from assay.federated.layout import Layout
from assay.federated.methods import FederatedMethod

if TYPE_CHECKING:
    from assay.federated.plan import FederatedPlan


@dataclass(frozen=True, kw_only=True)
class FedAvg(FederatedMethod):
    """Average clipped updates."""

    name: str = "fedavg"
    summary: str = "DP-FedAvg: clip each client's update, add noise to the sum (McMahan et al. 2018)"
    soundness: str = "sound"

    @property
    def units(self) -> tuple[str, ...]:
        """Both."""
        return ("client", "record")

    def exchange(self, plan: FederatedPlan, layout: Layout) -> Exchange:
        """Whole updates."""
        bound = plan.clip if plan.unit == "client" else float("inf")
        return Averaging(layout, plan.source(layout.size), bound)

    def event(self, plan: FederatedPlan) -> DpEvent:
        """That of the noise."""
        return plan.source(plan.size).event

    def claimed(self, plan: FederatedPlan) -> float:
        """The moments accountant."""
        return rdp_epsilon(plan.event(), plan.delta, plan.adjacency)


METHOD = FedAvg()
