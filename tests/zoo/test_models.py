"""Models and losses of the changelog's "ε came out too small": each is refused, and its twin is trained."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import assay
from assay import Plan, PrivateStep
from assay.errors import AssayError
from assay.runs.result import cross_entropy

from . import mutant_models as bugs

STEPS = 6
PLAN = Plan(records=100, batch_size=16, steps=STEPS, noise_multiplier=1.0, delta=1e-5)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    return TensorDataset(torch.randn(100, 6, generator=generator), torch.randint(0, 3, (100,), generator=generator))


def network(*before: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*before, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def looped(
    model: nn.Module,
    loss: Any = cross_entropy,
    *,
    later: Callable[[nn.Module], object] | None = None,
    physical: int | None = None,
    given: Callable[[torch.Tensor], Any] = lambda inputs: inputs,
) -> int:
    """A loop as a user would write it; `later` is done before the fourth step, and the model is called with `given`.

    Returns:
        The number of steps taken.
    """
    step = PrivateStep(model, PLAN, max_physical_batch=physical)
    optimizer, done = torch.optim.SGD(model.parameters(), lr=0.1), False
    try:
        for inputs, targets in step.batches(data()):
            if later is not None and step.taken == 3 and not done:
                later(model)
                done = True
            outputs = model(given(inputs))
            outputs = outputs.value if isinstance(outputs, bugs.Hidden) else outputs
            if step.backward(loss(outputs, targets)):
                optimizer.step()
        return step.taken
    finally:
        step.close()


def fitted(loss: Any) -> int:
    """The same by `assay.fit`, which has the loss itself."""
    return int(assay.fit(network(), data(), plan=PLAN, loss=loss).record["steps"])


# name: (trains the bug or its twin, what the error says)
ZOO: dict[str, tuple[Callable[[bool], int], str]] = {
    "a forward pass that fills a buffer": (lambda bug: looped(network(bugs.Keeps(wrong=bug))), "buffer 0.mean"),
    "a buffer written by one record at a time": (
        lambda bug: looped(network(bugs.Keeps(wrong=bug)), physical=1),
        "buffer 0.mean",
    ),
    **{
        f"{how} filled in from the first batch": (
            lambda bug, how=how: looped(network(bugs.FillsItselfIn(how, wrong=bug))),
            "writes|remembers",
        )
        for how in ("a parameter", "a buffer", "an attribute")
    },
    "a model that divides by the size of its batch": (
        lambda bug: looped(network(bugs.DividesByBatch(wrong=bug))),
        "how many records",
    ),
    "a backward pass that scales by the batch": (
        lambda bug: looped(network(nn.Linear(6, 6), bugs.ScalesBackward(wrong=bug))),
        "",
    ),
    "mixing before outputs with the records second": (
        lambda bug: looped(bugs.RecordsSecond(wrong=bug), lambda out, y: cross_entropy(out.sum(0), y)),
        "mixes records",
    ),
    "mixing before a head that begins at zero": (lambda bug: looped(bugs.behind_zero(wrong=bug)), "mixes records"),
    "a frozen table with max_norm": (lambda bug: looped(network(bugs.Table(wrong=bug))), "max_norm"),
    "a loss that remembers": (lambda bug: fitted(bugs.Remembers(wrong=bug)), "the loss remembers"),
    "a random loss that mixes records": (lambda bug: fitted(bugs.DrawsAndMixes(wrong=bug)), "the loss (mixes|of a)"),
    "a loss that draws known random numbers": (lambda bug: fitted(bugs.Draws(wrong=bug)), "would be known"),
    "a random loss divided by the size of its batch": (
        lambda bug: fitted(bugs.DrawsAndAverages(wrong=bug)),
        "how many records",
    ),
    "an input that is not a tensor": (
        lambda bug: looped(bugs.Opaque(wrong=bug), given=bugs.Hidden if bug else lambda x: x),
        "no call of the whole model",
    ),
    "an output that is not a tensor": (
        lambda bug: looped(bugs.Opaque(wrong=bug, output=True)),
        "no call of the whole model",
    ),
    "an argument that all records share": (
        lambda bug: looped(network(bugs.Shares()), later=bugs.share if bug else None),
        "(?i)expand it to all records",
    ),
    "rows in the batch with the row before added": (
        lambda bug: looped(network(bugs.Folded(wrong=bug))),
        "mixes records",
    ),
    "a scale of the whole batch's mean": (
        lambda bug: looped(network(bugs.Token(wrong=bug))),
        "record by record|mixes records",
    ),
    "rows in the batch shifted by one": (
        lambda bug: looped(network(bugs.Shifted(wrong=bug))),
        "mixes records",
    ),
    "a loss divided by the size of its batch": (lambda bug: fitted(bugs.Averaged(wrong=bug)), ""),
    "a trained tensor outside the model": (lambda bug: looped(network(), bugs.Outside(wrong=bug)), ""),
    "BatchNorm that begins to train": (
        lambda bug: looped(bugs.with_norm(wrong=bug), later=bugs.thaw if bug else None),
        "BatchNorm1d",
    ),
    "a layer that is added later": (lambda bug: looped(network(), later=bugs.add_layer if bug else None), ""),
}


@pytest.mark.parametrize("bug", ZOO)
def test_the_bug_is_refused(bug: str) -> None:
    train, told = ZOO[bug]
    with pytest.raises(AssayError, match=told):
        train(True)


@pytest.mark.parametrize("bug", ZOO)
def test_the_twin_is_trained(bug: str) -> None:
    assert ZOO[bug][0](False) == STEPS
