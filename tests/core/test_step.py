"""The private step: what it writes into .grad, what it charges, and what it refuses."""

import copy
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from assay import Adjacency, BudgetSpentError, ConfigError, Plan, PrivateStep
from assay.accounting.ledger import Ledger, LedgerError
from assay.data.sampling import FullBatch
from assay.errors import AssayError, UnsupportedModelError
from assay.gradients.clipping import AdaptiveQuantile, Flat, PerLayer
from assay.randomness.streams import OsSeeded, Secure, Seeded
from assay.training.meter import MeanLoss


def losses_of(model: nn.Module, batch) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def run(model, plan, records, **how) -> list[torch.Tensor]:
    """Gradients of every step, the parameters staying where they are."""
    step = PrivateStep(model, plan, **how)
    seen = [gradient(model).clone() for batch in step.batches(records) if step.backward(losses_of(model, batch))]
    step.close()
    return seen


def test_without_noise_the_gradient_is_the_clipped_sum_over_the_expected_size(model, records):
    plan = Plan(records=120, batch_size=20, steps=3, noise_multiplier=0.0, delta=1e-3, clip=Flat(bound=0.5))
    seeded = Seeded(1)
    got = run(model, plan, records, randomness=seeded)
    for step, value in enumerate(got):
        index = plan.sampler.draw(step, seeded)
        expected = torch.zeros_like(value)
        for i in index:
            loss = F.cross_entropy(model(records[i][0][None]), records[i][1][None])
            g = torch.cat([v.flatten() for v in torch.autograd.grad(loss, list(model.parameters()))])
            expected += g * min(1.0, 0.5 / float(g.norm()))
        torch.testing.assert_close(value, expected / 20, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("clip", "micro"),
    [
        (Flat(bound=0.5), 1),
        (Flat(bound=0.5), 3),
        (PerLayer(bound=1.0), 1),
        (PerLayer(bound=1.0), 3),
        (AdaptiveQuantile(bound=0.7), 1),
    ],
)
def test_virtual_batches_give_the_same_gradient(model, records, clip, micro):
    plan = Plan(records=120, batch_size=30, steps=4, noise_multiplier=1.0, delta=1e-3, clip=clip, micro_batch=micro)
    whole = run(model, plan, records, randomness=Seeded(9))
    parts = run(model, plan, records, randomness=Seeded(9), max_physical_batch=7)
    assert len(whole) == len(parts) == 4
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_grad_is_none_until_the_last_part_of_a_batch(model, records, plan):
    step = PrivateStep(model, plan, randomness=Seeded(2), max_physical_batch=4)
    done = [
        step.backward(losses_of(model, batch)) or [p.grad for p in model.parameters()]
        for batch in step.batches(records, 2)
    ]
    assert done.count(True) == 2
    assert all(all(g is None for g in entry) for entry in done if entry is not True)


def test_empty_and_single_record_batches_are_ordinary_steps(model, records):
    plan = Plan(records=120, batch_size=0.4, steps=60, noise_multiplier=1.0, delta=1e-3, clip=Flat(bound=1.0))
    randomness = Seeded(4)
    sizes = {len(plan.sampler.draw(step, randomness)) for step in range(60)}
    assert {0, 1} <= sizes
    step = PrivateStep(model, plan, randomness=randomness)
    for batch in step.batches(records):
        assert step.backward(losses_of(model, batch))
        assert bool((gradient(model) != 0).all()), "an empty batch gets its noise too"
    assert step.taken == 60
    assert step.ledger.total_steps >= 60


def test_a_run_that_begins_with_empty_batches_trains(model, records):
    """What the model was before the first record is no promise: its parameters have moved since."""
    plan = Plan(records=120, batch_size=0.4, steps=20, noise_multiplier=1.0, delta=1e-3)
    randomness = Seeded(8)
    assert [len(plan.sampler.draw(step, randomness)) for step in range(2)] == [0, 0]
    step, optimizer = PrivateStep(model, plan, randomness=randomness), torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in step.batches(records):
        assert step.backward(losses_of(model, batch))
        optimizer.step()
    assert step.taken == 20


def test_noise_has_the_promised_size_in_every_direction(records):
    """Empirical covariance of the noise over many steps; a chi-square bound with false-alarm rate below 1e-6."""
    model = nn.Linear(4, 3)
    steps, sigma, bound, size = 4000, 1.7, 0.3, 20
    plan = Plan(records=120, batch_size=size, steps=steps, noise_multiplier=sigma, delta=1e-3, clip=Flat(bound=bound))
    step = PrivateStep(model, plan, randomness=Seeded(8))
    seen = []
    for x, _ in step.batches(TensorDataset(torch.zeros(120, 4), torch.zeros(120))):
        # a loss without gradient: what is left is noise
        assert step.backward((0.0 * model(x)).sum(1))
        seen.append(gradient(model).clone())
    noise = torch.stack(seen).double() * size / (sigma * bound)
    eigenvalues = torch.linalg.eigvalsh(noise.T @ noise / steps)
    # Extreme eigenvalues of a white Wishart matrix: sqrt(λ) within 1 ± (sqrt(d/n) + t/sqrt(n)) with probability 1 -
    # 2exp(-t²/2); t = 5.5.
    spread = math.sqrt(noise.shape[1] / steps) + 5.5 / math.sqrt(steps)
    assert float(eigenvalues.min()) > (1 - spread) ** 2
    assert float(eigenvalues.max()) < (1 + spread) ** 2


def test_side_queries_take_their_share_from_the_gradient(model, records, plan):
    meter = MeanLoss(share=0.25)
    step = PrivateStep(model, plan, side=[meter])
    assert step.chain.noise.multiplier == pytest.approx(plan.noise_multiplier / math.sqrt(0.75))
    for batch in step.batches(records):
        step.backward(losses_of(model, batch))
    assert step.taken == plan.steps, "gradient and loss together cost what the plan charges"
    assert meter.value is not None


def test_the_released_loss_is_close_to_the_true_one_and_not_equal(model, records):
    plan = Plan(records=120, batch_size=60, steps=300, noise_multiplier=1.0, delta=1e-3)
    meter = MeanLoss()
    step = PrivateStep(model, plan, side=[meter], randomness=Seeded(1))
    for batch in step.batches(records):
        step.backward(losses_of(model, batch))
    with torch.no_grad():
        true = float(losses_of(model, records[:]).mean())
    # noise of the average: 10 · 3 / 60 / sqrt(300) ≈ 0.03, sampling less; more than five standard deviations
    assert abs(meter.value - true) < 0.2
    assert meter.value != true


def test_adaptive_clipping_follows_the_quantile(model, records):
    plan = Plan(
        records=120, batch_size=60, steps=200, noise_multiplier=0.5, delta=1e-3, clip=AdaptiveQuantile(bound=50.0)
    )
    step = PrivateStep(model, plan, randomness=Seeded(1))
    for batch in step.batches(records):
        step.backward(losses_of(model, batch))
    assert step.chain.clip.bound < 5.0, "half of the norms are far below 50"


def test_the_budget_is_a_hard_ceiling(model, records):
    plan = Plan(records=120, batch_size=20, steps=500, noise_multiplier=1.0, delta=1e-3, epsilon_limit=2.0)
    step = PrivateStep(model, plan)
    taken = sum(step.backward(losses_of(model, batch)) for batch in step.batches(records))
    assert 0 < taken < 500
    assert step.epsilon() <= 2.0 < plan.epsilon(steps=taken + 1)
    with pytest.raises(BudgetSpentError, match=r"the budget is spent after \d+ steps"):
        step.backward(losses_of(model, records[:20]))
    assert list(step.batches(records)) == []


def test_losses_must_belong_to_the_batch_drawn(model, records, plan):
    step = PrivateStep(model, plan)
    with pytest.raises(ConfigError, match="plan's sampler drew"):
        step.backward(losses_of(model, records[:20]))
    batches = step.batches(records)
    x, y = next(batches)
    with pytest.raises(ConfigError, match="one for each of the"):
        step.backward(losses_of(model, (x.repeat(2, 1), y.repeat(2))))


def test_every_batch_needs_its_step(model, records, plan):
    step = PrivateStep(model, plan)
    batches = step.batches(records)
    next(batches)
    with pytest.raises(AssayError, match="backward"):
        next(batches)


def test_the_data_must_be_what_the_plan_was_made_for(model, records, plan):
    step = PrivateStep(model, plan)
    with pytest.raises(ConfigError, match="120 records"):
        next(step.batches(TensorDataset(*records[:100])))


def test_any_map_style_data_set_is_collated_like_a_loader(plan):
    class Own(Dataset):
        def __len__(self):
            return 120

        def __getitem__(self, i):
            return {"x": torch.full((4,), float(i)), "y": i % 3}

    model = nn.Linear(4, 3)
    step = PrivateStep(model, plan)
    batch = next(iter(step.batches(Own())))
    assert batch["x"].shape == (len(batch["y"]), 4)
    assert step.backward(F.cross_entropy(model(batch["x"]), batch["y"], reduction="none"))


def test_several_optimizers_and_a_public_generator(records, plan):
    """A GAN: the discriminator's step is private, the generator trains through it as usual."""
    torch.manual_seed(0)
    d, g = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), nn.Linear(2, 4)
    step = PrivateStep(d, plan)
    d_optimizer, g_optimizer = torch.optim.Adam(d.parameters()), torch.optim.SGD(g.parameters(), lr=0.1)
    before = [p.detach().clone() for p in (*d.parameters(), *g.parameters())]
    for real, _ in step.batches(records, 3):
        fake = g(torch.randn(len(real), 2)).detach()
        losses = F.softplus(-d(real)).squeeze(1) + F.softplus(d(fake)).squeeze(1)
        assert step.backward(losses)
        d_optimizer.step()
        g_optimizer.zero_grad()
        F.softplus(-d(g(torch.randn(8, 2)))).mean().backward()
        g_optimizer.step()
    after = [p.detach() for p in (*d.parameters(), *g.parameters())]
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert step.taken == 3


@pytest.mark.parametrize("randomness", [OsSeeded(), Secure()])
def test_randomness_is_fresh_unless_seeded(model, records, plan, randomness):
    first = run(model, plan, records, randomness=randomness)
    second = run(model, plan, records)
    assert not torch.equal(first[0], second[0])


def test_the_same_seed_gives_the_same_steps(model, records, plan):
    for a, b in zip(
        run(model, plan, records, randomness=Seeded(7)), run(model, plan, records, randomness=Seeded(7)), strict=True
    ):
        assert torch.equal(a, b)
    assert not torch.equal(run(model, plan, records, randomness=Seeded(8))[0], a)


def test_one_record_moves_the_sum_of_a_micro_batched_step_by_at_most_2c(model, records):
    plan = Plan(
        records=120, batch_size=40, steps=1, noise_multiplier=0.0, delta=1e-3, clip=Flat(bound=0.1), micro_batch=4
    )

    whole = run(model, plan, records, randomness=Seeded(3))[0]
    step = PrivateStep(model, plan, randomness=Seeded(3))
    index = plan.sampler.draw(0, Seeded(3))
    slots = Seeded(3).stream("micro", 0).integers(10, len(index))
    for gone in range(len(index)):
        kept = [i for i in range(len(index)) if i != gone]
        grads = step.engine.collect(losses_of(model, records[index[kept]]))
        total, _ = step.chain.clipped_sum(grads, step.groups, slots[kept])
        other = torch.cat([v.flatten() for v in total.values()]) / 40
        assert float((whole - other).norm()) <= 2 * 0.1 / 40 * (1 + 1e-5)


def test_clipping_keeps_full_precision_inside_autocast(records):
    """A loop that calls `backward` under autocast: norms in bfloat16 would come out too small, and the bound would not
    hold.
    """

    def gradient(inside: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 3))
        plan = Plan(
            records=120,
            batch_size=120,
            steps=2,
            noise_multiplier=0.0,
            delta=1e-3,
            sampling=FullBatch,
            clip=Flat(bound=0.01),
        )
        step = PrivateStep(model, plan)
        for x, y in step.batches(records):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                losses = nn.functional.cross_entropy(model(x).float(), y, reduction="none")
                if inside:
                    step.backward(losses)
            if not inside:
                step.backward(losses)
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    assert torch.equal(gradient(inside=True), gradient(inside=False))


def test_a_batch_that_was_left_in_the_middle_counts_no_record_twice():
    """A loop that is broken off between two parts of a batch, and begun again: the same batch is drawn again."""
    plan = Plan(
        records=40, batch_size=40, steps=3, noise_multiplier=0.0, delta=1e-3, clip=Flat(bound=1.0), sampling=FullBatch
    )
    model, records = nn.Linear(40, 1, bias=False), TensorDataset(torch.eye(40))  # the sum says how often each counted
    step = PrivateStep(model, plan, max_physical_batch=10, randomness=Seeded(0))
    for left_after in (0, 1, 2):
        for i, (x,) in enumerate(step.batches(records)):
            assert not step.backward(model(x)[:, 0])
            if i == left_after:
                break
    for (x,) in step.batches(records, 1):
        done = step.backward(model(x)[:, 0])
    assert done
    torch.testing.assert_close(model.weight.grad * 40, torch.ones(1, 40))


def spent_of(plan, path):
    return Ledger(path, delta=plan.delta, adjacency=plan.adjacency, ceiling=plan.epsilon_limit)


def test_two_steps_never_charge_one_ledger_without_knowing_of_each_other(model, records, plan, tmp_path):
    path = tmp_path / "ledger.jsonl"
    other = copy.deepcopy(model)
    first = PrivateStep(model, plan, ledger=path)
    with pytest.raises(LedgerError, match="in use"):
        PrivateStep(other, plan, ledger=path)
    assert type(other).forward == other.forward.__func__, "the model was given back"
    for batch in first.batches(records):
        first.backward(losses_of(model, batch))
    first.close()
    second = PrivateStep(other, plan, ledger=path)
    for batch in second.batches(records):
        second.backward(losses_of(other, batch))
    second.close()
    assert spent_of(plan, path).total_steps == 2 * plan.steps
    assert second.epsilon() > 1.2 * first.epsilon()


def test_two_steps_with_one_ledger_at_a_time_are_both_charged(model, records, plan):
    ledger = spent_of(plan, None)
    other = copy.deepcopy(model)
    steps = [(PrivateStep(one, plan, ledger=ledger), one) for one in (model, other)]
    for batches in zip(*(step.batches(records) for step, _ in steps), strict=True):
        for (step, one), batch in zip(steps, batches, strict=True):
            step.backward(losses_of(one, batch))
    for step, _ in steps:
        step.close()
    assert ledger.total_steps == 2 * plan.steps
    assert ledger.epsilon() == pytest.approx(plan.epsilon(steps=2 * plan.steps), rel=0.01)


def test_another_seed_on_a_ledger_that_is_there_is_charged(model, records, plan, tmp_path):
    """Only the very same draws are a repetition."""
    for seed, charged in ((1, 1), (1, 1), (2, 2)):
        run(model, plan, records, randomness=Seeded(seed), ledger=tmp_path / "ledger.jsonl")
        assert spent_of(plan, tmp_path / "ledger.jsonl").total_steps == charged * plan.steps


def changed_weight(model):
    model[-1].weight.data[0, 0] += 1e-3


def other_buffer(model):
    model.register_buffer("scale", torch.tensor(2.0))


def frozen_bias(model):
    model[-1].bias.requires_grad_(False)


@pytest.mark.parametrize("change", [changed_weight, other_buffer, frozen_bias])
def test_another_model_under_the_same_seed_is_charged_and_has_noise_of_its_own(model, records, plan, tmp_path, change):
    """With the same noise, the difference of the two gradients would have none at all."""
    path, other = tmp_path / "ledger.jsonl", copy.deepcopy(model)
    change(other)
    seen = []
    for one, charged in ((model, 1), (model, 1), (other, 2), (other, 2)):
        step = PrivateStep(one, plan, randomness=Seeded(1), ledger=path)
        for batch in step.batches(records):
            step.backward(losses_of(one, batch))
        seen.append(one[0].weight.grad.clone())
        step.close()
        assert spent_of(plan, path).total_steps == charged * plan.steps
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[2], seen[3])
    noise = plan.noise_multiplier * plan.clip.l2 / plan.batch_size
    assert float((seen[0] - seen[2]).std()) > noise / 2


def test_a_run_that_is_taken_up_goes_on_in_its_segment(model, records, plan, tmp_path):
    """Its model is no longer where it began."""
    path, half = tmp_path / "ledger.jsonl", plan.steps // 2
    for taken in (0, half):
        step = PrivateStep(model, plan, randomness=Seeded(1), ledger=path, taken=taken)
        for batch in step.batches(records, half):
            step.backward(losses_of(model, batch))
        step.close()
        changed_weight(model)
    assert spent_of(plan, path).total_steps == 2 * half


@pytest.mark.parametrize(
    "changed",
    [{"delta": 1e-2}, {"adjacency": Adjacency.REPLACE_ONE}, {"ceiling": None}, {"ceiling": 2.5}],
    ids=["δ", "adjacency", "no ceiling", "a looser ceiling"],
)
def test_a_ledger_that_contradicts_the_plan_is_refused(model, changed):
    plan = Plan(records=120, batch_size=20, steps=9, noise_multiplier=4.0, delta=1e-3, epsilon_limit=2.0)
    given = {"delta": plan.delta, "adjacency": plan.adjacency, "ceiling": 2.0}
    PrivateStep(model, plan, ledger=Ledger(None, **given)).close()
    with pytest.raises(ConfigError, match="ledger"):
        PrivateStep(model, plan, ledger=Ledger(None, **given | changed))
    PrivateStep(model, plan).close()  # what was refused has left nothing on the model


@pytest.mark.parametrize("share", [0.0, -0.1, 1.0, 1.5, math.nan])
def test_shares_that_leave_nothing_for_the_gradient_are_refused(model, plan, share):
    with pytest.raises(ConfigError, match="side"):
        PrivateStep(model, plan, side=[MeanLoss(share=share)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_half_precision_get_gradients_that_were_clipped_and_noised_in_float32(records, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(records[0][0].numel(), 4)).to(dtype)
    plan = Plan(records=120, batch_size=0.4, steps=30, noise_multiplier=1.0, delta=1e-3, clip=Flat(bound=1.0))
    step = PrivateStep(model, plan, randomness=Seeded(4))
    for x, y in step.batches(records):  # among them batches without a record
        assert step.backward(F.cross_entropy(model(x.to(dtype)).float(), y, reduction="none"))
        for parameter in model.parameters():
            assert parameter.grad.dtype == dtype
            assert bool((parameter.grad != 0).all())


def test_what_one_record_at_a_time_writes_into_the_model_is_refused(records, plan):
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x):
            self.total += x.detach().sum(0)
            return x

    with pytest.raises(UnsupportedModelError, match=r"writes into buffer 0\.total"):
        run(nn.Sequential(Running(), nn.Linear(4, 3)), plan, records, max_physical_batch=1)


def test_masks_of_dropout_follow_the_source_of_randomness_and_no_seed_of_the_user(records, plan):
    """With masks that others can compute, one record moves what all that stand behind it in a batch contribute."""

    def masks(randomness):
        torch.manual_seed(0)
        step = PrivateStep(nn.Linear(4, 3), plan, randomness=randomness)
        next(step.batches(records))
        step.close()
        return torch.rand(8).tolist()

    assert masks(OsSeeded()) != masks(OsSeeded())
    assert masks(Seeded(1)) == masks(Seeded(1))


LEFT = """
import torch, assay
def main():
    global batches
    model = torch.nn.Linear(3, 1)
    plan = assay.Plan(records=8, batch_size=4, steps=9, noise_multiplier=1.0, delta=1e-3)
    step = assay.PrivateStep(model, plan)
    batches = step.batches(torch.utils.data.TensorDataset(torch.randn(8, 3)))
    for x, in batches:
        step.backward(model(x)[:, 0])
        raise ValueError("the user's own")
main()
"""


def test_a_loop_that_an_exception_left_says_nothing_more_when_python_ends():
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, check=False)
    assert "the user's own" in done.stderr
    assert "Exception ignored" not in done.stderr
