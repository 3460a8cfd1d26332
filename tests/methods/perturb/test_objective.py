"""The expanded objective: its coefficients, a record's influence on them, the noise, and where it does not reach."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from dp_accounting.dp_event import LaplaceDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.accounting.epsilon import Adjacency, epsilon
from assay.errors import ConfigError, UnsupportedModelError
from assay.mechanisms.objective import NoisyCoefficients
from assay.mechanisms.types import Bounded
from assay.methods.perturb import LabelNoise, quadratic_loss, split_last
from assay.methods.perturb.objective import LAMBDA0, LAMBDA2, label_coefficients, objective_sensitivity
from assay.methods.perturb.stages import expanded_loss
from assay.models.afrrs import afrrs_mnist
from assay.randomness.streams import Seeded

from .step_noise import NoisyObjective, StepNoise, coefficients, largest_contribution

BOTH = (Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE)


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Eq. 19: Σ_c y log(1 + e^-s) + (1 - y) log(1 + e^s)."""
    targets = F.one_hot(labels, scores.shape[1]).to(scores)
    return F.binary_cross_entropy_with_logits(scores, targets, reduction="none").sum(1)


@pytest.mark.parametrize("y", [0, 1])
def test_coefficients_are_the_taylor_coefficients_at_zero(y: int) -> None:
    s = torch.zeros((), dtype=torch.float64, requires_grad=True)
    f = y * F.softplus(-s) + (1 - y) * F.softplus(s)
    (first,) = torch.autograd.grad(f, s, create_graph=True)
    (second,) = torch.autograd.grad(first, s, create_graph=True)
    assert float(f.detach()) == pytest.approx(LAMBDA0, abs=1e-15)
    assert float(second.detach()) / 2 == pytest.approx(LAMBDA2, abs=1e-15)
    ours = label_coefficients(torch.tensor([0 if y else 1]), 2)[0, 0]
    assert float(first.detach()) == pytest.approx(float(ours), abs=1e-15)


@given(st.lists(st.floats(-6, 6), min_size=2, max_size=6), st.integers(0, 1))
def test_the_expansion_is_off_by_at_most_its_remainder(scores: list[float], label: int) -> None:
    """The third derivative at 0 is 0 and the fourth is within ⅛, so a unit's remainder is within s⁴/192."""
    s, y = torch.tensor([scores], dtype=torch.float64), torch.tensor([label])
    off = quadratic_loss(s, label_coefficients(y, len(scores))) - cross_entropy(s, y)
    assert abs(float(off)) <= sum(v**4 for v in scores) / 192 + 1e-12


def test_coefficients_make_the_quadratic_and_its_gradient() -> None:
    torch.manual_seed(0)
    hidden, labels = torch.rand(9, 4, dtype=torch.float64), torch.randint(3, (9,))
    weight = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    direct = quadratic_loss(hidden @ weight.T, label_coefficients(labels, 3)).sum()
    first, second = coefficients(hidden, labels, 3)
    released = NoisyObjective(first=first, second=second, event=LaplaceDpEvent(1.0)).loss(weight)
    torch.testing.assert_close(released + 9 * 3 * LAMBDA0, direct)
    torch.testing.assert_close(*(torch.autograd.grad(value, weight)[0] for value in (released, direct)))


def l1(parts: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor] | None = None) -> float:
    if others is not None:
        parts = (parts[0] - others[0], parts[1] - others[1])
    return sum(float(part.abs().sum()) for part in parts)


records = st.tuples(st.lists(st.floats(width=64), min_size=3, max_size=3), st.integers(0, 3)) | st.tuples(
    st.lists(st.floats(0, 1), min_size=3, max_size=3), st.integers(0, 3)
)


def of(record: tuple[list[float], int]) -> tuple[Tensor, Tensor]:
    return coefficients(torch.tensor([record[0]], dtype=torch.float64), torch.tensor([record[1]]), 4)


@given(records, records)
def test_no_record_moves_the_coefficients_by_more_than_the_bounds(
    one: tuple[list[float], int], other: tuple[list[float], int]
) -> None:
    """Whatever the hidden layer puts out: numbers beyond [0, 1], infinities and not-a-number included."""
    assert l1(of(one)) <= largest_contribution(4, 3) + 1e-12
    assert l1(of(one), of(other)) <= objective_sensitivity(4, 3) + 1e-12


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
@pytest.mark.parametrize("hidden", [1, 5, 32])
def test_the_bounds_are_those_of_lemma_3_and_one_record_reaches_its_own(classes: int, hidden: int) -> None:
    assert objective_sensitivity(classes, hidden) == pytest.approx(classes * (hidden + 0.25 * hidden**2))
    for label in range(classes):
        full = coefficients(torch.ones(1, hidden), torch.tensor([label]), classes)
        assert l1(full) == pytest.approx(objective_sensitivity(classes, hidden) / 2, rel=1e-14)


@pytest.mark.parametrize("classes", [2, 3, 4, 5])
def test_what_an_exchanged_record_can_do_at_most(classes: int) -> None:
    """All corners of [0, 1]³ and all labels (the distance is convex, so a corner is worst): always within Lemma 3's
    Δ_F, and from 4 classes on exactly half of it, reached by all ones against all zeros.
    """
    corners = [torch.tensor([c], dtype=torch.float64) for c in itertools.product((0.0, 1.0), repeat=3)]
    values = [coefficients(h, torch.tensor([y]), classes) for h in corners for y in range(classes)]
    worst = max(l1(a, b) for a, b in itertools.combinations(values, 2))
    assert largest_contribution(classes, 3) <= worst <= objective_sensitivity(classes, 3)
    if classes >= 4:
        assert worst == pytest.approx(largest_contribution(classes, 3), rel=1e-14)


def test_coefficients_are_sums_over_records() -> None:
    torch.manual_seed(0)
    hidden, labels = torch.rand(6, 3), torch.randint(4, (6,))
    whole = coefficients(hidden, labels, 4)
    parts = [coefficients(h[None], y[None], 4) for h, y in zip(hidden, labels, strict=True)]
    for k in (0, 1):
        torch.testing.assert_close(whole[k], torch.stack([part[k] for part in parts]).sum(0))
    assert l1(coefficients(hidden[:0], labels[:0], 4)) == 0


def test_step_noise_is_drawn_as_charged() -> None:
    """32,896 numbers a draw: mean absolute value within 6.5 standard errors, false alarms below 1e-9."""
    noise = StepNoise.published(classes=8, hidden=64, epsilon=0.5)
    assert noise.scale == pytest.approx(8 * (64 + 64**2 / 4) / 0.5)
    released = noise.release(torch.zeros(0, 64), torch.zeros(0, dtype=torch.int64), 8, Seeded(0).stream("objective", 0))
    drawn = torch.cat([released.first.flatten(), released.second.flatten()])
    assert drawn.numel() == 8 * 64 + 8 * 64**2
    assert abs(float(drawn.abs().mean()) / noise.scale - 1) < 6.5 / math.sqrt(drawn.numel())
    assert torch.unique(drawn).numel() == drawn.numel(), "every coefficient has a number of its own"
    again = noise.release(torch.zeros(0, 64), torch.zeros(0, dtype=torch.int64), 8, Seeded(0).stream("objective", 1))
    assert not torch.equal(again.first, released.first)


def test_a_release_is_the_coefficients_plus_the_noise() -> None:
    torch.manual_seed(0)
    hidden, labels = torch.rand(6, 3), torch.randint(4, (6,))
    noise = StepNoise(scale=2.0)
    full = noise.release(hidden, labels, 4, Seeded(0).stream("objective", 0))
    empty = noise.release(hidden[:0], labels[:0], 4, Seeded(0).stream("objective", 0))
    first, second = coefficients(hidden, labels, 4)
    torch.testing.assert_close(full.first - empty.first, first)
    torch.testing.assert_close(full.second - empty.second, second)


def test_a_step_s_event_is_relative_to_what_one_record_adds() -> None:
    noise = StepNoise.published(classes=10, hidden=32, epsilon=0.2)
    event = noise.event(10, 32, trains_below=False)
    assert event == LaplaceDpEvent(2 / 0.2), "Δ_F is for an exchange, twice what one record adds"
    assert epsilon(event, 0.0, Adjacency.ADD_OR_REMOVE_ONE) == pytest.approx(0.1)
    assert epsilon(event, 0.0, Adjacency.REPLACE_ONE) == pytest.approx(0.2), "the paper's ε3, for one step"
    released = noise.release(torch.rand(5, 32), torch.randint(10, (5,)), 10, Seeded(0).stream("objective", 0))
    assert released.event == event


def test_steps_add_up() -> None:
    """T releases, not one: a hundred epochs at rate 1/100 cost more than the ε3 = 0.2 that the paper counts for any
    number, and sampling keeps them far below the sum of 10,000 times ε3/2.
    """
    step = StepNoise.published(classes=10, hidden=32, epsilon=0.2).event(10, 32, trains_below=False)
    spent = epsilon(SelfComposedDpEvent(PoissonSampledDpEvent(0.01, step), 10_000), 1e-5, Adjacency.ADD_OR_REMOVE_ONE)
    assert 0.33 < spent < 0.34


@pytest.mark.parametrize("adjacency", BOTH)
def test_layers_below_the_last_get_the_labels_without_noise(adjacency: Adjacency) -> None:
    """Why the published form has no ε: the gradient below does not depend on the noise, and shows the label."""
    torch.manual_seed(0)
    noise = StepNoise.published(classes=3, hidden=4, epsilon=0.1)
    weight = torch.randn(3, 4, requires_grad=True)

    def gradients(label: int, step: int) -> tuple[Tensor, Tensor]:
        hidden = torch.full((1, 4), 0.5, requires_grad=True)
        loss = noise.published_loss(hidden, torch.tensor([label]), weight, Seeded(0).stream("objective", step))
        below, last = torch.autograd.grad(loss, (hidden, weight))
        return below, last

    seen = {label: gradients(label, 0)[0] for label in range(3)}
    assert all(torch.equal(gradients(label, step)[0], seen[label]) for label in range(3) for step in range(1, 5))
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
    assert not torch.equal(gradients(0, 0)[1], gradients(0, 1)[1]), "the last layer's gradient has noise"
    assert epsilon(noise.event(3, 4, trains_below=True), 1e-5, adjacency) == math.inf


def test_the_published_loss_is_the_released_one_for_the_last_layer() -> None:
    torch.manual_seed(0)
    hidden, labels = torch.rand(7, 4, dtype=torch.float64), torch.randint(3, (7,))
    weight = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    noise = StepNoise(scale=3.0)
    published = noise.published_loss(hidden, labels, weight, Seeded(0).stream("objective", 0))
    released = noise.release(hidden, labels, 3, Seeded(0).stream("objective", 0)).loss(weight)
    torch.testing.assert_close(published, released + 7 * 3 * LAMBDA0)
    torch.testing.assert_close(*(torch.autograd.grad(value, weight)[0] for value in (published, released)))


def test_the_noise_of_a_step_is_that_of_the_coefficients():
    """The gradient of `StepNoise.published_loss`, with the same numbers."""
    weight = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    hidden = torch.rand(7, 5, dtype=torch.float64)
    labels = torch.arange(7) % 3
    StepNoise(scale=2.0).published_loss(hidden, labels, weight, Seeded(4).stream("noise", 0)).backward()
    plain = weight.detach().clone().requires_grad_()
    expanded_loss(hidden @ plain.T, labels).sum().backward()
    mechanism = NoisyCoefficients(scale=2.0).on({"below": torch.zeros(2, 2), "last": weight})
    total = {"below": torch.ones(2, 2), "last": plain.grad.clone()}
    released = mechanism.release(Bounded(total, math.inf), Seeded(4).stream("noise", 0))
    torch.testing.assert_close(released.value["last"], weight.grad)
    assert torch.equal(released.value["below"], torch.ones(2, 2))
    assert released.event == NonPrivateDpEvent()


@pytest.mark.parametrize("classes", [2, 10])
def test_another_label_moves_its_coefficients_by_two(classes: int) -> None:
    rows = label_coefficients(torch.arange(classes), classes)
    distances = {float((a - b).abs().sum()) for a, b in itertools.combinations(rows, 2)}
    assert distances == {2.0}
    assert LabelNoise(scale=4.0).epsilon == 0.5


@pytest.mark.parametrize("adjacency", BOTH)
def test_labels_cost_what_their_noise_says(adjacency: Adjacency) -> None:
    assert epsilon(LabelNoise(scale=2 / 1.3).event(adjacency), 0.0, adjacency) == pytest.approx(1.3)
    published = LabelNoise.published(classes=10, hidden=32, batch_size=600, epsilon=0.1)
    assert published.scale == pytest.approx(2880 / 60)
    assert epsilon(published.event(adjacency), 0.0, adjacency) == pytest.approx(2 * 600 * 0.1 / 2880)


def test_label_noise_is_drawn_as_charged() -> None:
    """50,000 numbers: mean absolute value within 6.5 standard errors, false alarms below 1e-9."""
    labels = torch.arange(5000) % 10
    got = LabelNoise(scale=2.5).coefficients(labels, 10, Seeded(0).stream("label noise", 0))
    drawn = got.double() - label_coefficients(labels, 10)
    assert got.shape == (5000, 10)
    assert abs(float(drawn.abs().mean()) / 2.5 - 1) < 6.5 / math.sqrt(drawn.numel())
    assert abs(float(drawn.mean()) / 2.5) < 6.5 * math.sqrt(2 / drawn.numel())


def test_training_with_noisy_labels_learns_from_their_average() -> None:
    """The noise has mean 0, and the quadratic stays convex in the scores whatever it is: its least is at -4λ¹."""
    labels = torch.zeros(20_000, dtype=torch.int64)
    noisy = LabelNoise(scale=2.0).coefficients(labels, 3, Seeded(0).stream("label noise", 0))
    score = torch.zeros(1, 3, requires_grad=True)
    quadratic_loss(score.expand(20_000, 3), noisy).mean().backward()
    best = -4 * score.grad
    # 6.5 standard errors of the mean of Laplace numbers of scale 2, times 4
    assert float((best - torch.tensor([[2.0, -2.0, -2.0]])).abs().max()) < 4 * 6.5 * 2 * math.sqrt(2 / 20_000)


def test_a_model_is_split_before_its_last_layer() -> None:
    torch.manual_seed(0)
    model = afrrs_mnist((1, 28, 28), 10)
    below, last = split_last(model)
    x = torch.randn(3, 1, 28, 28) * 50
    hidden = below(x)
    assert hidden.shape == (3, 32)
    assert ((hidden >= 0) & (hidden <= 1)).all()
    torch.testing.assert_close(hidden @ last.weight.T, model(x))
    assert {p.data_ptr() for p in [*below.parameters(), *last.parameters()]} == {
        p.data_ptr() for p in model.parameters()
    }
    for wrong in (nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU())):
        with pytest.raises(UnsupportedModelError, match="without bias"):
            split_last(wrong)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_bad_settings_are_refused(bad: float) -> None:
    for make in (
        lambda: StepNoise(scale=bad),
        lambda: LabelNoise(scale=bad),
        lambda: StepNoise.published(classes=3, hidden=4, epsilon=bad),
        lambda: LabelNoise.published(classes=3, hidden=4, batch_size=10, epsilon=bad),
        lambda: LabelNoise.published(classes=3, hidden=4, batch_size=bad, epsilon=0.1),
    ):
        with pytest.raises(ConfigError):
            make()
