"""Models, losses and hooks by which one record would move more than the bound, or leave without noise: each is refused,
its twin is trained.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay import Plan, PrivateStep
from assay.errors import UnsupportedModelError
from assay.runs.result import cross_entropy

from . import mutants

STEPS = 8
Loss = Callable[[Tensor, Tensor], Tensor]


def network(*before: nn.Module) -> nn.Module:
    return nn.Sequential(*before, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def train(
    model: nn.Module,
    loss: Loss = cross_entropy,
    *,
    seed: int = 0,
    missing: float = 0.0,
    later: Callable[[nn.Module], object] | None = None,
) -> list[int]:
    """A loop as a user would write it; `later` is done before the fourth step. The steps that were taken."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(100, 6, generator=generator)
    x[torch.rand(x.shape, generator=generator) < missing] = torch.nan
    data = TensorDataset(x, torch.randint(0, 3, (100,), generator=generator))
    step = PrivateStep(model, Plan(records=100, batch_size=16, steps=STEPS, noise_multiplier=1.0, delta=1e-5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    taken = []
    try:
        for inputs, targets in step.batches(data):
            if later is not None and len(taken) == 3:
                later(model)
            if step.backward(loss(model(inputs), targets)):
                optimizer.step()
            taken.append(step.taken)
    finally:
        step.close()
    return taken


def refused(*args: object, told: str, **kwargs: object) -> None:
    with pytest.raises(UnsupportedModelError, match=told):
        train(*args, **kwargs)  # type: ignore[arg-type]


MIXING = {
    "missing values filled by the batch's mean": lambda wrong: network(mutants.FilledByMean(wrong=wrong)),
    "the middle of a batch centred": lambda wrong: network(mutants.MiddleCentred(wrong=wrong)),
}


@pytest.mark.parametrize(("bug", "missing"), [(bug, 0.0) for bug in MIXING] + [(next(iter(MIXING)), 0.02)])
def test_a_model_that_mixes_is_refused_every_time(bug: str, missing: float) -> None:
    """Whichever records mix, and whether or not values are missing in the first batch.

    No choice of records misses them all.
    """
    for seed in range(15):
        refused(MIXING[bug](True), seed=seed, missing=missing, told="mixes records")


@pytest.mark.parametrize("bug", MIXING)
def test_its_twin_is_trained(bug: str) -> None:
    assert len(train(MIXING[bug](False), missing=0.02 if "missing" in bug else 0.0)) == STEPS


def test_a_ranking_loss_is_refused_every_time() -> None:
    """Seen by its gradients alone, in a loop that hands over values.

    A pair of records that are ranked is always split.
    """
    for seed in range(30):
        refused(network(), mutants.ranking, seed=seed, told="mixes records")
    assert len(train(network(), lambda outputs, _: outputs[:, 0].square())) == STEPS


def fused(model: nn.Module) -> None:
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: p.data.sub_(p.grad, alpha=0.1) and None)


def test_an_optimizer_fused_into_the_backward_pass_is_refused_before_anything_runs() -> None:
    model = network()
    start = [p.detach().clone() for p in model.parameters()]
    fused(model)
    refused(model, told=r"optimizer\.step\(\) after step\.backward")
    assert all(torch.equal(a, b) for a, b in zip(start, model.parameters(), strict=True))


def test_a_hook_that_is_registered_during_the_run_is_refused() -> None:
    refused(network(), later=fused, told="register_post_accumulate_grad_hook")


def test_a_hook_on_a_parameters_gradient_is_refused() -> None:
    model, seen = network(), []
    model[0].weight.register_hook(seen.append)
    refused(model, told="register_hook")
    assert not seen


def test_a_hook_on_the_node_that_accumulates_never_sees_a_gradient() -> None:
    model, seen = network(), []
    nodes = [p.view_as(p).grad_fn.next_functions[0][0] for p in model.parameters()]
    for node in nodes:
        node.register_hook(lambda *grads: seen.append(grads))
    assert len(train(model)) == STEPS
    assert not seen


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("a buffer", r"backward pass writes into buffer 0\.total"),
        ("a buffer's data", r"backward pass writes into buffer 0\.total"),
        ("a frozen parameter", r"backward pass writes into parameter 0\.frozen"),
        ("a trained parameter", r"backward pass writes into parameter 0\.layer\.bias"),
        ("an attribute", "backward pass writes into the model"),
    ],
)
def test_what_the_backward_pass_keeps_is_refused(how: str, told: str) -> None:
    refused(network(mutants.KeepsGradients(how)), told=told)


def test_a_backward_hook_that_keeps_nothing_is_fine() -> None:
    assert len(train(network(mutants.KeepsGradients("nothing")))) == STEPS


def switch_on(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, mutants.Begins):
            module.on = True


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("an observer", "forward pass writes into buffer 0.largest"),
        ("extra state", "forward pass writes into the extra state of 0"),
        ("an attribute used in eval mode", "uses in eval mode"),
        ("batch statistics", "mixes records"),
    ],
)
def test_what_begins_after_the_first_batch_is_refused_at_once(how: str, told: str) -> None:
    # a trained layer before it: what is mixed is part of the graph
    model = nn.Sequential(nn.Linear(6, 6), mutants.Begins(how), nn.Linear(6, 3))
    refused(model, later=switch_on, told=told.replace(" 0", " 1"))


def test_what_begins_later_and_does_not_look_at_the_records_is_fine() -> None:
    model = network(mutants.Begins("counting"))
    assert len(train(model, later=switch_on)) == STEPS
    assert int(model[0].calls) == STEPS - 3, "and asking about it leaves it alone"


def test_batchnorm_that_is_put_in_later_is_refused() -> None:
    def put_in(model: nn.Module) -> None:
        model[1] = nn.Sequential(nn.Tanh(), nn.BatchNorm1d(8, affine=False))

    refused(network(), later=put_in, told="BatchNorm1d uses statistics of the whole batch")


def test_parts_that_are_called_one_by_one_later_are_refused() -> None:
    """Nothing would be seen of what is done between them."""

    class Loose(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    model = Loose()
    data = TensorDataset(torch.randn(100, 6), torch.randint(0, 3, (100,)))
    step = PrivateStep(model, Plan(records=100, batch_size=16, steps=STEPS, noise_multiplier=1.0, delta=1e-5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop() -> None:
        for x, y in step.batches(data):
            outputs = model(x) if step.taken < 3 else model.head(model.body(x - x.mean(0)))
            step.backward(cross_entropy(outputs, y))
            optimizer.step()

    with pytest.raises(UnsupportedModelError, match="no call of the whole model"):
        loop()
    assert step.taken == 3
