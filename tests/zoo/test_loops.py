"""What a loop of one's own does with a batch, before the model and after it, is repeated with other records in it."""

import contextlib
import copy
import warnings
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn
from torch.overrides import TorchFunctionMode
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import assay
from assay import Plan, PrivateStep
from assay.accounting.adjacency import Adjacency
from assay.data.samplers.without_replacement import WithoutReplacement
from assay.data.sampling import FullBatch
from assay.data.units import Unit
from assay.errors import ConfigError, UnsupportedModelError
from assay.randomness.streams import Seeded

RECORDS = 120
SEVERAL, EARLIER, COUNTED = "enters the losses of several", "records of an earlier batch", "in proportion to the number"


def records(*, words: bool = False) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = (
        torch.randint(1, 20, (RECORDS, 7), generator=generator)
        if words
        else torch.randn(RECORDS, 6, generator=generator)
    )
    return TensorDataset(x, torch.randint(0, 3, (RECORDS,), generator=generator))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(20, 5), nn.Linear(5, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.table(ids).mean(1))


def refused(message: str | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if message is None else pytest.raises(UnsupportedModelError, match=message)


Body = Callable[[nn.Module, dict[str, Any], Tensor, Tensor], Tensor]


def loop(body: Body, *, steps: int = 16, words: bool = False, data: Dataset[Any] | None = None, **options: Any) -> int:
    """A loop as a user would write it, with something to keep from batch to batch. The steps that were taken."""
    torch.manual_seed(0)
    model = Words() if words else nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    plan = Plan(records=RECORDS, batch_size=16, steps=steps, noise_multiplier=1.0, delta=1e-5)
    step, kept = PrivateStep(model, plan, **options), dict[str, Any]()
    try:
        for x, y in step.batches(data or records(words=words)):
            step.backward(body(model, kept, x, y))
        return step.taken
    finally:
        step.close()


def losses(outputs: Tensor, y: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none", **options)


# --- wrong ---


def weights_by_counts(model, kept, x, y):
    return losses(model(x), y, weight=1 / (1.0 + y.bincount(minlength=3)))


def weights_for_each_record_by_counts(model, kept, x, y):
    return losses(model(x), y) / y.bincount(minlength=3)[y]


def divided_by_a_number_taken_out(model, kept, x, y):
    found = losses(model(x), y)
    return found / found.sum().item()


def classes_in_another_order(model, kept, x, y):
    return losses(model(x), y[torch.randperm(len(y))])


def classes_mixed(model, kept, x, y):
    outputs = model(x)
    return 0.7 * losses(outputs, y) + 0.3 * losses(outputs, y.roll(1))


def smoothed_by_the_batch(model, kept, x, y):
    own = F.one_hot(y, 3).float()
    return losses(model(x), 0.9 * own + 0.1 * own.mean(0))


def weighted_by_rank(model, kept, x, y):
    found = losses(model(x), y)
    return found * found.detach().argsort().argsort()


def divided_by_the_largest(model, kept, x, y):
    """It was taken for losses in another order: alone, each record's loss is 1, and so is one loss of the batch."""
    found = losses(model(x), y)
    return found / found.detach().max()


def divided_by_the_median(model, kept, x, y):
    found = losses(model(x), y)
    return found / found.detach().median()


def normalised_without_gradients(model, kept, x, y):
    with torch.no_grad():
        x = kept.setdefault("norm", nn.BatchNorm1d(6))(x)
    return losses(model(x), y)


def a_memory_bank(model, kept, x, y):
    outputs = model(x)
    found = losses(outputs, y)
    if "bank" in kept:
        found = found + (outputs - kept["bank"].mean(0)).square().sum(1)
    kept["bank"] = outputs.detach()
    return found


def a_running_mean(model, kept, x, y):
    found = losses(model(x), y)
    mean = kept.get("mean", torch.ones(()))
    kept["mean"] = 0.9 * mean + 0.1 * found.detach().mean()
    return found / mean


def weights_by_counts_beside_a_constant(model, kept, x, y):
    """What is large in all losses hides what little they differ by, and is in no gradient."""
    return weights_by_counts(model, kept, x, y) + 1e6


def a_running_mean_beside_a_constant(model, kept, x, y):
    return a_running_mean(model, kept, x, y) + 1e6


def by_a_gradient_of_the_batch(model, kept, x, y):
    """MAML: a step on the batch, before the losses of the same batch."""
    beside = kept.setdefault("beside", torch.zeros(3, 6, requires_grad=True))
    (grad,) = torch.autograd.grad(losses(F.linear(x, beside), y).mean(), beside)
    return losses(model(x) - F.linear(x, grad.detach()), y)


def divided_by_their_number(model, kept, x, y):
    return losses(model(x), y) / len(y)


def random_and_divided_by_their_number(model, kept, x, y):
    return losses(model(x), y) * torch.rand(len(y)) * (16 / x.shape[0])


def words_mixed(model, kept, x, y):
    return losses(model(torch.where(torch.rand(x.shape) < 0.2, x.roll(1, 0), x)), y)


def other_records(model, kept, x, y):
    there = records().tensors
    return losses(model(there[0][: len(x)]), there[1][: len(x)])


def for_gradients_alone(found, scale):
    """Losses with the values of `found` and the gradients of `found * scale`."""
    scaled = found * scale
    return found.detach() + scaled - scaled.detach()


def gradients_scaled_by_the_mean_loss(model, kept, x, y):
    found = losses(model(x), y)
    return for_gradients_alone(found, found.detach().mean())


def outputs_whose_gradients_are_scaled_by_the_batch(model, kept, x, y):
    outputs = model(x)
    return losses(for_gradients_alone(outputs, outputs.detach().std()), y)


class TimesMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, found):
        ctx.mean = found.mean()
        return found.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mean


def a_function_that_scales_gradients_by_the_mean(model, kept, x, y):
    return TimesMean.apply(losses(model(x), y))


def a_hook_that_scales_gradients_by_the_mean(model, kept, x, y):
    found = losses(model(x), y)
    found.register_hook(lambda grad: grad * found.detach().mean())
    return found


WRONG = {
    "gradients of the losses depend on the other": [
        gradients_scaled_by_the_mean_loss,
        weights_by_counts_beside_a_constant,
        outputs_whose_gradients_are_scaled_by_the_batch,
    ],
    "are not those of what the loop computes": [
        a_function_that_scales_gradients_by_the_mean,
        a_hook_that_scales_gradients_by_the_mean,
    ],
    SEVERAL: [
        weights_by_counts,
        weights_for_each_record_by_counts,
        divided_by_a_number_taken_out,
        classes_in_another_order,
        classes_mixed,
        smoothed_by_the_batch,
        weighted_by_rank,
        divided_by_the_largest,
        divided_by_the_median,
        normalised_without_gradients,
    ],
    EARLIER: [a_memory_bank, a_running_mean, a_running_mean_beside_a_constant, by_a_gradient_of_the_batch],
    COUNTED: [divided_by_their_number, random_and_divided_by_their_number],
    "losses of other records": [other_records],
}


@pytest.mark.parametrize(("message", "body"), [(message, body) for message, bodies in WRONG.items() for body in bodies])
def test_a_loop_that_mixes_records_around_the_model_is_refused_every_time(message: str, body: Body) -> None:
    for _ in range(3):
        with pytest.raises(UnsupportedModelError, match=message):
            loop(body)


# --- right ---


def weights_that_are_constants(model, kept, x, y):
    return losses(model(x), y, weight=torch.tensor([1.0, 2.0, 3.0])) * (0.1 * (1 + kept.setdefault("done", 0)))


def figures_that_are_only_shown(model, kept, x, y):
    outputs = model(x)
    found = losses(outputs, y)
    kept["accuracy"] = float((outputs.argmax(1) == y).sum() / len(y))
    kept["total"] = kept.get("total", torch.zeros(())) + found.detach().sum() / len(x)
    return found


def a_buffer_that_is_filled_again(model, kept, x, y):
    buffer = kept.setdefault("buffer", torch.zeros(RECORDS, 6))
    buffer[: len(x)].copy_(x)
    return losses(model(buffer[: len(x)]), y)


def sorted_by_content(model, kept, x, y):
    order = x[:, 0].argsort()
    return losses(model(x[order]), y[order])


def sorted_with_losses_of_zero(model, kept, x, y):
    """Records that differ give the same loss; in a large batch a few do so by chance."""
    return F.relu(sorted_by_content(model, kept, x, y) - 1)


def noise_in_another_order(model, kept, x, y):
    order = torch.randperm(len(x))
    return losses(model(F.dropout(x[order]) + torch.randn_like(x)), y[order])


def some_left_out(model, kept, x, y):
    found, used = losses(model(x), y), y != 0
    kept_ones = torch.zeros_like(found)
    kept_ones[used] = found[used]
    return kept_ones


def a_teacher(model, kept, x, y):
    with torch.no_grad():
        soft = kept.setdefault("teacher", nn.Linear(6, 3))(x).softmax(1)
        hard = model(x).argmax(1)
    outputs = model(x - 0.5)
    return losses(outputs, soft) + losses(outputs, hard) + outputs.square().mean(1) / x.shape[1]


def gradients_scaled_by_the_own_loss(model, kept, x, y):
    found = losses(model(x), y)
    return for_gradients_alone(found, found.detach())


def a_hook_that_looks(model, kept, x, y):
    found = losses(model(x), y)
    found.register_hook(lambda grad: kept.update(largest=grad.max()))
    return found


def a_discriminator_on_noise(model, kept, x, y):
    """It is called with what is not of the batch as well."""
    fake = model(torch.randn_like(x))
    return losses(model(x), y) + F.cross_entropy(fake, torch.ones(len(x), dtype=torch.int64), reduction="none")


def adversarial_examples(model, kept, x, y):
    x = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(losses(model(x), y).sum(), x)
    return losses(model((x + 0.1 * grad.sign()).detach()), y)


def outputs_written_in_place(model, kept, x, y):
    outputs = model(x)
    outputs.mul_(0.5)
    outputs[:, 0] = -1
    return losses(outputs, y)


def of_two_calls(model, kept, x, y):
    """The first output is in the second, which is no hook between the two."""
    first = model(x)
    return losses(first, y) + losses(model(torch.cat([first, first], 1)), y)


def some_not_finite(model, kept, x, y):
    """A record whose loss is not a number counts as zero, and is no reason to refuse the others."""
    return losses(model(x), y) / (x[:, 0] > -1.5)


def its_own_teacher(model, kept, x, y):
    """At first its gradient is nothing but rounding, which proves nothing and must not be refused."""
    teacher = kept.setdefault("teacher", copy.deepcopy(model).eval())
    return losses(model.eval()(x), teacher(x).softmax(1).detach())


def one_by_one(model, kept, x, y):
    x[:, 0] = 0
    return torch.stack([F.cross_entropy(one, label) for one, label in zip(model(x), y, strict=True)])


@pytest.mark.parametrize(
    "body",
    [
        weights_that_are_constants,
        figures_that_are_only_shown,
        a_buffer_that_is_filled_again,
        sorted_by_content,
        sorted_with_losses_of_zero,
        noise_in_another_order,
        some_left_out,
        a_teacher,
        gradients_scaled_by_the_own_loss,
        a_hook_that_looks,
        a_discriminator_on_noise,
        adversarial_examples,
        its_own_teacher,
        outputs_written_in_place,
        of_two_calls,
        some_not_finite,
        one_by_one,
    ],
)
def test_a_loop_that_keeps_records_apart_is_left_alone(body: Body) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loop(body) == 16


@pytest.mark.parametrize(
    ("loss", "bug"),
    [
        (lambda outputs, y: TimesMean.apply(losses(outputs, y)), True),
        (lambda outputs, y: for_gradients_alone(found := losses(outputs, y), found.detach().mean()), True),
        (lambda outputs, y: losses(outputs, y) * (y == 0).float().mean() + 1e6, True),
        (lambda outputs, y: for_gradients_alone(found := losses(outputs, y), found.detach()), False),
    ],
)
def test_a_loss_that_mixes_gradients_alone(loss: Any, bug: bool, tmp_path: Path) -> None:
    with refused("the loss mixes records" if bug else None):
        assay.fit(nn.Linear(6, 3), records(), loss=loss, epsilon=3, delta=1e-3, epochs=1, out=tmp_path / "run")


class Encoder(nn.Module):
    """Returns what its other outputs are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encode(x).chunk(2, 1)
        return self.decode(mean + torch.randn_like(mean) * spread.exp()), mean, spread


def test_outputs_that_are_made_of_other_outputs() -> None:
    model = Encoder()
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=6, noise_multiplier=1.0, delta=1e-5))
    with contextlib.closing(step), warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, _ in step.batches(records()):
            made, mean, spread = model(x)
            step.backward((made - x).square().sum(1) + (mean.square() + spread.exp() - spread).sum(1))
    assert step.taken == 6


def test_words_that_the_loop_mixes_are_refused_and_masked_words_are_not() -> None:
    with pytest.raises(UnsupportedModelError, match=SEVERAL):
        loop(words_mixed, words=True)
    masked: Body = lambda model, kept, x, y: losses(model(x.masked_fill(torch.rand(x.shape) < 0.2, 0)), y)  # noqa: E731
    assert loop(masked, words=True) == 16


def test_mixing_that_begins_after_a_warm_up_is_found_on_a_random_batch() -> None:
    def mixes_later(model, kept, x, y):
        kept["done"] = kept.get("done", 0) + 1
        return classes_mixed(model, kept, x, y) if kept["done"] > 20 else losses(model(x), y)

    with pytest.raises(UnsupportedModelError, match=SEVERAL):
        loop(mixes_later, steps=60, randomness=Seeded(3))


def test_a_loop_is_seen_after_losses_that_were_refused() -> None:
    model = nn.Linear(6, 3)
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=2, noise_multiplier=1.0, delta=1e-5))
    x, y = next(step.batches(records()))
    with pytest.raises(ConfigError, match="losses"):
        step.backward(losses(model(x), y)[:-1])
    with pytest.raises(UnsupportedModelError, match=SEVERAL):
        step.backward(losses(model(x), y.roll(1)))
    step.close()


def test_batches_may_be_held_by_anything() -> None:
    def collate(batch: list[tuple[Tensor, Tensor]]) -> UserDict[str, Tensor]:
        return UserDict(x=torch.stack([x for x, _ in batch]), y=torch.stack([y for _, y in batch]))

    model = nn.Linear(6, 3)
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=2, noise_multiplier=1.0, delta=1e-5))
    batch = next(step.batches(records(), collate_fn=collate))
    with pytest.raises(UnsupportedModelError, match=SEVERAL):
        step.backward(losses(model(batch["x"]), batch["y"].roll(1)))
    step.close()


def test_looking_changes_nothing_that_the_loop_draws_or_keeps() -> None:
    """A generator of the loop's own goes on where it was, and statistics and totals count every batch once."""
    generator, twin, counted = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3), torch.zeros(())

    def draws(model, kept, x, y):
        noise = torch.empty_like(x).normal_(generator=generator)
        counted.add_(torch.ones_like(y).sum())
        kept["rows"] = kept.get("rows", 0) + len(x)
        assert float(counted) == kept["rows"]
        assert torch.equal(noise, torch.randn(x.shape, generator=twin))
        return losses(model(x + noise), y) + 0 * counted

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loop(draws) == 16


def test_a_loop_that_leaves_torch_is_told_that_it_is_not_seen() -> None:
    def by_numpy(model, kept, x, y):
        return losses(model(torch.from_numpy(2 * x.numpy())), y)

    with pytest.warns(UserWarning, match="cannot see whether this loop mixes records"):
        assert loop(by_numpy) == 16


def test_batches_of_another_step_are_records_of_an_earlier_batch() -> None:
    """Two models, each with a step of its own: what one was given must not scale the losses of the other."""
    plan = Plan(records=RECORDS, batch_size=16, steps=4, noise_multiplier=1.0, delta=1e-5)
    one, other = nn.Linear(6, 3), nn.Linear(6, 3)
    first, second = PrivateStep(one, plan), PrivateStep(other, plan)
    x, y = next(first.batches(records()))
    first.backward(losses(one(x), y))
    u, v = next(second.batches(records()))
    with pytest.raises(UnsupportedModelError, match=EARLIER):
        second.backward(losses(other(u), v) * x.mean().abs())
    first.close()
    second.close()


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
def test_what_a_loop_keeps_after_its_step(bug: bool) -> None:
    """A queue that is filled when the step is done, as is usual, holds an earlier batch all the same."""
    model, queue = nn.Linear(6, 3), torch.zeros(6)
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=8, noise_multiplier=1.0, delta=1e-5))
    with contextlib.closing(step), refused(EARLIER if bug else None):
        for x, y in step.batches(records()):
            step.backward(losses(model(x - queue if bug else x), y))
            queue[:3].lerp_(x.mean(0)[:3], 0.1)


def of_records(model: nn.Module, made: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(made, y)


def of_public_records(model: nn.Module, made: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return made.square().mean()


def matching(model: nn.Module, made: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return (made - x.mean(0)).square().mean()


def by_the_discriminator(model: nn.Module, made: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(made), torch.ones(len(made), dtype=torch.int64))


@pytest.mark.parametrize("first", [True, False], ids=["before the step", "after it"])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, None])
@pytest.mark.parametrize(
    ("given", "loss", "bug"),
    [
        ("records", of_records, True),
        ("public", of_public_records, False),
        ("noise", matching, True),
        ("noise", by_the_discriminator, False),
    ],
)
def test_weights_that_a_loop_trains_by_itself(given: str, loss: Any, bug: bool, optimizer: Any, first: bool) -> None:
    """What the private model gets from them depends on the records of earlier batches, which were never clipped."""
    torch.manual_seed(0)
    model, other = nn.Linear(6, 3), nn.Linear(6, 6)
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=8, noise_multiplier=1.0, delta=1e-5))
    own: Any = None if optimizer is None else optimizer(other.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> None:
        inputs = {"records": x, "public": torch.ones(4, 6), "noise": torch.randn_like(x)}[given]
        found = loss(model, other(inputs), x, y)
        if optimizer is None:
            with torch.no_grad():
                for p, g in zip(other.parameters(), torch.autograd.grad(found, [*other.parameters()]), strict=True):
                    p.sub_(0.1 * g)
            return
        own.zero_grad()
        found.backward()
        own.step()

    with contextlib.closing(step), warnings.catch_warnings(), refused(EARLIER if bug else None):
        warnings.simplefilter("error")
        for x, y in step.batches(records()):
            if first:
                train(x, y)
            made = other(torch.randn_like(x) if given == "noise" else x).detach()
            step.backward(losses(model(made), y) + losses(model(x), y))
            if not first:
                train(x, y)


def by_torch_autograd_backward(loss: Any, weights: list[Tensor]) -> list[Any]:
    torch.autograd.backward([loss(*weights)])
    return [p.grad for p in weights]


def by_backward_for_some(loss: Any, weights: list[Tensor]) -> list[Any]:
    loss(*weights).backward(inputs=weights)
    return [p.grad for p in weights]


def by_autograd_grad(loss: Any, weights: list[Tensor]) -> list[Any]:
    return list(torch.autograd.grad(loss(*weights), weights))


def by_torch_func(loss: Any, weights: list[Tensor]) -> list[Any]:
    return list(torch.func.grad(loss, (0, 1))(*weights))


def by_autograd_functional(loss: Any, weights: list[Tensor]) -> list[Any]:
    found: Any = torch.autograd.functional.vjp(loss, tuple(weights))[1]
    return list(found)


def of_what_is_public(loss: Any, weights: list[Tensor]) -> list[Any]:
    torch.autograd.backward(sum((p.square().sum() for p in weights), torch.zeros(())))
    return [p.grad for p in weights]


@pytest.mark.parametrize("own", [True, False], ids=["on the model's weights", "on weights beside it"])
@pytest.mark.parametrize(
    ("way", "bug"),
    [
        (by_torch_autograd_backward, True),
        (by_backward_for_some, True),
        (by_autograd_grad, True),
        (by_torch_func, True),
        (by_autograd_functional, True),
        (of_what_is_public, False),
    ],
)
def test_a_backward_pass_of_the_loop_s_own(way: Any, bug: bool, own: bool) -> None:
    """Whatever computes it, a gradient of the batch that no ε counts may not move what the losses are made with."""
    model, beside = nn.Linear(6, 3), nn.Linear(6, 6)
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=6, noise_multiplier=1.0, delta=1e-5))
    weights = list((model if own else beside).parameters())
    with contextlib.closing(step), refused(("without noise" if own else EARLIER) if bug else None):
        for x, y in step.batches(records()):
            step.backward(losses(model(beside(x).detach()), y))

            def loss(weight: Tensor, bias: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
                return F.cross_entropy(F.linear(x, weight, bias)[:, :3], y)

            for p in weights:
                p.grad = None
            grads = way(loss, weights)
            with torch.no_grad():
                for p, g in zip(weights, grads, strict=True):
                    p.data.sub_(0.1 * g)
    assert step.taken == (1 if bug else 6)


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
def test_a_copy_that_the_loop_trains_and_loads_back(bug: bool) -> None:
    """Lookahead by a copy: its weights are those of a raw gradient. The twin's follow the model."""
    model = nn.Linear(6, 3)
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=4, noise_multiplier=1.0, delta=1e-5))
    with contextlib.closing(step), refused("without noise" if bug else None):
        for x, y in step.batches(records()):
            step.backward(losses(model(x), y))
            fast = copy.deepcopy(model)
            optimizer = torch.optim.AdamW(fast.parameters(), lr=0.1)
            if bug:
                torch.autograd.backward(losses(fast(x), y).mean())
            else:
                for p, released in zip(fast.parameters(), model.parameters(), strict=True):
                    p.grad = released.grad
            optimizer.step()
            model.load_state_dict(fast.state_dict())
    assert step.taken == (1 if bug else 4)


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
def test_weights_that_the_loop_moves_for_a_moment(bug: bool) -> None:
    """SAM: the losses are those at weights moved by a raw gradient. The twin moves them by what was released."""
    model, released = nn.Linear(6, 3), torch.zeros(3, 6)
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=4, noise_multiplier=1.0, delta=1e-5))
    with contextlib.closing(step), refused("without noise" if bug else None):
        for x, y in step.batches(records()):
            weight = model.weight.detach()
            raw = torch.autograd.grad(losses(F.linear(x, model.weight, model.bias), y).sum(), model.weight)[0]
            model.weight.data = weight + 0.05 * (raw if bug else released)
            found = losses(model(x), y)
            step.backward(found)
            model.weight.data = weight
            released = model.weight.grad.clone()
    assert step.taken == (0 if bug else 4)


def test_a_teacher_with_statistics_that_stay_what_they_are() -> None:
    """Batch normalisation in eval mode writes nothing, so the teacher is not made of the batch."""
    teacher = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()
    assert loop(lambda model, kept, x, y: losses(model(x), teacher(x).softmax(1).detach()), steps=6) == 6


class Tempered(nn.Module):
    """Takes a number from whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.temperature = nn.Linear(6, 3), torch.ones(())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x) / (1 + self.temperature)


@pytest.mark.parametrize(
    ("what", "message"),
    [("mean", SEVERAL), ("number", SEVERAL), ("mean of the batch before", EARLIER), ("constant", None)],
)
def test_a_number_that_the_loop_puts_into_its_model(what: str, message: str | None) -> None:
    model, before = Tempered(), torch.ones(())
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=6, noise_multiplier=1.0, delta=1e-5))
    with contextlib.closing(step), refused(message):
        for x, y in step.batches(records()):
            mean = x.square().mean()
            values: dict[str, Any] = {"mean": mean, "number": mean.item(), "mean of the batch before": before}
            model.temperature = values.get(what, torch.tensor(0.5))
            step.backward(losses(model(x), y))
            before = mean


@pytest.mark.parametrize(("by", "bug"), [("tensor", True), ("number", True), ("released", False)])
def test_a_learning_rate_that_follows_the_loss(by: str, bug: bool) -> None:
    """The twin's follows the gradient that was released; both show their accuracy."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=6, noise_multiplier=1.0, delta=1e-5))
    with contextlib.closing(step), refused("without noise" if bug else None):
        for x, y in step.batches(records()):
            outputs = model(x)
            found = losses(outputs, y)
            (outputs.argmax(1) == y).double().mean().item()
            step.backward(found)
            raw, released = found.detach().mean(), model.weight.grad.norm()
            rates: dict[str, Any] = {"tensor": 0.1 * raw, "number": raw.item(), "released": released.item()}
            optimizer.param_groups[0]["lr"] = rates[by]
            optimizer.step()


def in_the_forward_pass(model: nn.Sequential, hook: Any) -> Any:
    return model[0].register_forward_hook(lambda _module, _args, output: hook(output))


def in_the_backward_pass(model: nn.Sequential, hook: Any) -> Any:
    return model[2].register_full_backward_hook(lambda _module, grads, _outputs: (hook(grads[0]),))


def in_every_module(model: nn.Sequential, hook: Any) -> Any:
    return nn.modules.module.register_module_forward_hook(
        lambda module, _args, output: hook(output) if isinstance(module, nn.Tanh) else None
    )


@pytest.mark.parametrize("where", [in_the_forward_pass, in_the_backward_pass, in_every_module])
@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
def test_a_hook_that_the_model_gets_later(where: Any, bug: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=10, noise_multiplier=1.0, delta=1e-5))
    hooks = []
    with contextlib.closing(step), contextlib.ExitStack() as stack, refused("mixes records" if bug else None):
        for x, y in step.batches(records()):
            if step.taken == 7:
                hooks.append(where(model, lambda t: t / t.detach().norm() if bug else t / 2))
                stack.callback(hooks[0].remove)
            step.backward(losses(model(x), y))
    assert step.taken == (7 if bug else 10)


@pytest.mark.parametrize("bug", ["records", "weights", None])
def test_a_refusal_that_the_loop_catches(bug: str | None) -> None:
    """Whoever goes on in a new loop goes on with what was refused. The twin's error is its own."""
    model, data = nn.Linear(6, 3), records()
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=6, noise_multiplier=1.0, delta=1e-5))
    with contextlib.closing(step):
        for _ in range(12):
            with contextlib.suppress(UnsupportedModelError, ConfigError, ZeroDivisionError):
                for x, y in step.batches(data):
                    step.backward(losses(model(x), y))
                    if bug == "records":
                        data.tensors[0].add_(x.mean(0))
                    elif bug == "weights":
                        model.weight.data[0] += x.mean(0)
                    elif step.taken % 2:
                        raise ZeroDivisionError
        assert step.taken == (1 if bug else 6)


def test_nothing_of_a_loop_is_left_behind() -> None:
    """A loop that ends in the middle of a batch leaves torch, and the model, as they were."""
    model = nn.Linear(6, 3)
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=4, noise_multiplier=1.0, delta=1e-5))
    for _ in step.batches(records()):
        break
    step.close()
    assert torch.overrides._len_torch_function_stack() == 0
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def plain(model, kept, x, y):
    return losses(model(x), y)


@pytest.mark.parametrize(
    "twice",
    [
        Subset(records(), [*range(RECORDS - 1), 0]),
        ConcatDataset([Subset(records_ := records(), range(80)), Subset(records_, range(40, 80))]),
        ConcatDataset([TensorDataset(*records_[:80]), TensorDataset(*records_[40:80])]),
    ],
)
def test_a_record_that_a_data_set_holds_twice_is_refused(twice: Dataset[Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is there 2 times"):
        loop(plain, data=twice)
    with pytest.raises(ConfigError, match="is there 2 times"):
        assay.fit(nn.Linear(6, 3), twice, epsilon=1, epochs=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    whole = records()
    assert loop(plain, data=ConcatDataset([Subset(whole, range(50, RECORDS)), Subset(whole, range(50))])) == 16


def test_copies_of_a_record_may_be_one_person() -> None:
    plan = Plan(
        records=RECORDS // 2,
        batch_size=10,
        steps=2,
        noise_multiplier=1.0,
        delta=1e-5,
        unit=Unit(name="patient", persons=RECORDS // 2, rows=2),
    )
    model = nn.Linear(6, 3)
    step = PrivateStep(model, plan)
    half = torch.arange(RECORDS) % (RECORDS // 2)
    for x, y in step.batches(Subset(records(), half.tolist()), units=half):
        step.backward(losses(model(x), y))
    assert step.taken == 2
    step.close()


# --- what a loop writes, and what reaches tensors outside the model ---


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x) - self.centre


def in_place(model: Centred, x: Tensor, outputs: Tensor) -> None:
    model.centre.mul_(0.9).add_(0.1 * outputs.mean(0))


def through_data(model: Centred, x: Tensor, outputs: Tensor) -> None:
    model.centre.data.copy_(outputs.mean(0))


def another_tensor(model: Centred, x: Tensor, outputs: Tensor) -> None:
    model.centre = 0.9 * model.centre + 0.1 * outputs.mean(0)


def into_weights(model: Centred, x: Tensor, outputs: Tensor) -> None:
    model.last.weight[0] += 0.01 * x.mean(0)


def into_gradients(model: Centred, x: Tensor, outputs: Tensor) -> None:
    if model.last.weight.grad is not None:
        model.last.weight.grad += x.mean(0)


def what_is_released(model: Centred, x: Tensor, outputs: Tensor) -> None:
    if model.last.bias.grad is not None:
        model.centre.mul_(0.9).add_(0.1 * model.last.bias.grad)
        model.last.weight.lerp_(torch.zeros(()), 0.01)


def written(write: Callable[[Centred, Tensor, Tensor], None], *, after: bool) -> int:
    """A loop that writes into its model before or after `backward`. The steps that were taken."""
    model = Centred()
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=6, noise_multiplier=1.0, delta=1e-5))
    try:
        for x, y in step.batches(records()):
            outputs = model(x)
            found = losses(outputs, y)
            if not after:
                torch.no_grad()(write)(model, x, outputs)
            step.backward(found)
            if after:
                torch.no_grad()(write)(model, x, outputs)
        return step.taken
    finally:
        step.close()


@pytest.mark.parametrize("write", [in_place, through_data, another_tensor, into_weights, into_gradients])
def test_a_loop_that_writes_records_into_its_model_is_refused(write: Callable[[Centred, Tensor, Tensor], None]) -> None:
    with pytest.raises(UnsupportedModelError, match="without noise"):
        written(write, after=True)
    if write is in_place:
        with pytest.raises(UnsupportedModelError, match="without noise"):
            written(write, after=False)


def test_a_loop_may_write_what_is_released() -> None:
    assert written(what_is_released, after=True) == 6


def test_no_gradient_reaches_a_tensor_outside_the_model() -> None:
    """A tensor with as many rows as the batch has records may be an input; its gradient would have no noise."""
    plan = Plan(
        records=RECORDS,
        batch_size=10,
        steps=2,
        noise_multiplier=1.0,
        delta=1e-5,
        sampling=WithoutReplacement,
        adjacency=Adjacency.REPLACE_ONE,
    )
    model, outside = nn.Linear(6, 3), torch.zeros(10, 3, requires_grad=True)
    step = PrivateStep(model, plan)
    for x, y in step.batches(records()):
        step.backward(losses(model(x) + outside, y))
        assert outside.grad is None
        assert model.weight.grad is not None
    step.close()


def test_steps_that_no_ledger_holds_are_not_taken_for_granted() -> None:
    plan = Plan(records=RECORDS, batch_size=16, steps=6, noise_multiplier=1.0, delta=1e-5)
    with pytest.raises(ConfigError, match=r"taken.*give the ledger"):
        PrivateStep(nn.Linear(6, 3), plan, taken=5)
    model = nn.Linear(6, 3)
    first = PrivateStep(model, plan)
    for x, y in first.batches(records(), 5):
        first.backward(losses(model(x), y))
    first.close()
    second = PrivateStep(model, plan, ledger=first.ledger, taken=first.taken)
    for x, y in second.batches(records()):
        second.backward(losses(model(x), y))
    assert second.epsilon() == pytest.approx(plan.epsilon())
    second.close()


class _Mode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_modes_of_the_user_stay_where_they_are() -> None:
    def within_a_mode(model, kept, x, y):
        with _Mode():
            return losses(model(x), y)

    assert loop(within_a_mode) == 16
    assert torch.overrides._len_torch_function_stack() == 0


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
def test_a_part_that_counts_twice_on_a_batch_that_nobody_looks_at(bug: bool) -> None:
    """From the tenth batch on, the loop gives the model the first part of the batch for the second as well."""
    model = nn.Linear(6, 3)
    whole = Plan(records=RECORDS, batch_size=RECORDS, steps=16, noise_multiplier=1.0, delta=1e-5, sampling=FullBatch)
    step = PrivateStep(model, whole, randomness=Seeded(0), max_physical_batch=RECORDS // 2)
    kept = None

    def train() -> None:
        nonlocal kept
        for part, (x, y) in enumerate(step.batches(records())):
            again = bug and part >= 20 and part % 2 == 1
            rows, kept = kept[:] if again else x, x
            step.backward(losses(model(rows), y))

    if bug:
        with pytest.raises(UnsupportedModelError, match="they would count twice"):
            train()
        assert step.taken == 10
    else:
        train()
        assert step.taken == 16
    step.close()


def test_nobody_listens_after_a_loop_was_left() -> None:
    """A mode that stayed on torch's stack would slow everything down that the thread does later."""
    model = nn.Linear(6, 3)
    plan = Plan(records=RECORDS, batch_size=16, steps=4, noise_multiplier=1.0, delta=1e-5)
    step = PrivateStep(model, plan)
    for x, y in step.batches(records()):
        step.backward(losses(model(x), y))
        assert _len_torch_dispatch_stack() == 1
        break
    assert _len_torch_dispatch_stack() == _len_torch_function_stack() == 0
    step.close()


@pytest.mark.parametrize("bug", ["update_bn", "by hand", None])
def test_running_statistics_that_a_loop_computes_between_two_steps(bug: str | None) -> None:
    """The twin evaluates, moves and loads the model, and leaves its statistics as they were."""
    data = records()
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()
    step = PrivateStep(model, Plan(records=RECORDS, batch_size=16, steps=8, noise_multiplier=1.0, delta=1e-5))
    with pytest.raises(UnsupportedModelError, match="running statistics") if bug else contextlib.nullcontext():
        for _ in range(2):
            for x, y in step.batches(data, 4):
                step.backward(F.cross_entropy(model(x), y, reduction="none"))
            if bug == "update_bn":
                update_bn([data.tensors[0]], model)
                model.eval()
            elif bug:
                model[1].running_mean.copy_(data.tensors[0].mean())
            else:
                model(data.tensors[0])
                model.load_state_dict(model.state_dict())
    step.close()
    assert step.taken == (4 if bug else 8)
