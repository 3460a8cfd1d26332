"""AFRRS: what it claims, what is true of each part, what the noise really is, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from dp_accounting.dp_event import ComposedDpEvent, LaplaceDpEvent, NonPrivateDpEvent
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

from assay import Adjacency, Optimizer, Plan, PrivateStep, Training, fit, methods, models
from assay.accounting.epsilon import epsilon
from assay.accounting.ledger import Ledger
from assay.audit import Verdict
from assay.audit.plans import audit_plan
from assay.data.records import Records
from assay.data.sampling import FullBatch
from assay.errors import ConfigError, DataError, UnsupportedModelError
from assay.mechanisms.types import Bounded
from assay.methods.perturb.explain import Explainer
from assay.methods.perturb.objective import BELOW_IS_NOT_PRIVATE, objective_sensitivity
from assay.methods.perturb.relevance import PUBLISHED_IS_NOT_PRIVATE
from assay.methods.perturb.stages import NoisyRecords, ScaledByRelevance
from assay.randomness.streams import Seeded
from assay.runs import checkpoint
from assay.training.stages import train_privately


def plan(noise: float = 1.0, **options: Any) -> Plan:
    settings = {k: options.pop(k) for k in ("epsilon_limit", "adjacency", "batch_size", "records") if k in options}
    method = methods.get("afrrs", **options)
    return Plan(
        **{"records": 60_000, "batch_size": 500, "steps": 240, "delta": 1e-5} | settings,
        noise_multiplier=noise,
        method=method,
        clip=method.clip,
    )


def published(claimed: float = 0.6, **options: Any) -> Plan:
    return plan(1 / claimed, variant="published", **options)


def parts(made: Plan) -> dict[str, Any]:
    assert made.stage is not None
    return {part.name: part for part in made.stage.parts()}


def records(n: int = 120, seed: int = 5) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return TensorDataset((torch.randn(n, 1, 6, 6, generator=generator) + y.view(-1, 1, 1, 1)).sigmoid(), y)


def small_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Sigmoid(), nn.Linear(5, 3, bias=False))


def small(**options: Any) -> Plan:
    return plan(options.pop("noise", 1.0), records=120, batch_size=20, **options)


def test_the_claim_is_the_sum_whatever_the_number_of_steps():
    made = published(0.6, split="1/2/3")
    assert made.claimed() == pytest.approx(0.6)
    assert [p.claimed for p in made.stage.parts()] == pytest.approx([0.1, 0.2, 0.3])
    assert published(0.6).claimed() == pytest.approx(0.6)


def test_as_published_relevance_and_labels_have_no_epsilon_and_features_a_local_one():
    found = parts(published(0.6))
    assert found["relevance"].event == NonPrivateDpEvent()
    assert found["relevance"].reason == PUBLISHED_IS_NOT_PRIVATE
    assert found["labels"].event == NonPrivateDpEvent()
    assert found["labels"].reason == BELOW_IS_NOT_PRIVATE
    # |L| ε2/(2|h_0|) = 500·0.2/32
    assert found["features"].pure == pytest.approx(3.125)
    assert epsilon(found["features"].event, 1e-5, Adjacency.ADD_OR_REMOVE_ONE) == pytest.approx(3.125, rel=1e-3)
    assert published(0.6).epsilon() == math.inf


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_with_labels_noised_once_and_a_public_network_the_sum_of_the_parts_holds_for_any_number_of_steps(adjacency):
    made = published(0.6, objective="record", explain="data:digits", adjacency=adjacency)
    scale = objective_sensitivity(10, 32) / (500 * 0.2)
    doubled = (
        2 if adjacency is Adjacency.REPLACE_ONE else 1
    )  # of presence: exchanging a record is one to take and one to add
    assert parts(made)["labels"].pure == pytest.approx(2 / scale)
    assert made.epsilon(1e-12) == pytest.approx(0.2 * doubled + 3.125 + 2 / scale, rel=1e-3)
    assert made.epsilon(steps=1) == made.epsilon(steps=10**6)


def test_a_private_network_is_part_of_the_cost():
    public, private = plan(explain="data:digits"), plan(explain="private")
    steps = private.stage.segmentation.explainer.steps
    assert steps.steps == 24, "a tenth of the steps, at the run's own noise"
    assert steps.noise_multiplier == private.noise_multiplier
    expected = ComposedDpEvent([steps.event(), LaplaceDpEvent(10.0), private.steps_event(240)])
    assert private.epsilon() == pytest.approx(epsilon(expected, 1e-5, private.adjacency))
    assert private.epsilon() > public.epsilon() > plan(explain="data:digits", share=0.01).epsilon()


def test_the_share_is_of_the_target():
    for target in (0.5, 4.0):
        made = Plan.calibrated(
            epsilon=target, delta=1e-5, records=60_000, batch_size=500, epochs=2, method=methods.get("afrrs", share=0.2)
        )
        assert made.stage.segmentation.epsilon == pytest.approx(0.2 * target)
        assert 0.999 * target <= made.epsilon() <= target


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"explain": "records"}, "explain"),
        ({"explain": "data:"}, "explain"),
        ({"explain": "somewhere"}, "explain"),
        ({"share": 0.0}, "share"),
        ({"share": 1.0}, "share"),
        ({"gamma": -0.1}, "gamma"),
        ({"gamma": math.nan}, "gamma"),
        ({"variant": "published", "objective": "never"}, "objective"),
        ({"variant": "published", "outside": "ignore"}, "outside"),
        ({"variant": "published", "split": "1/2"}, "split"),
        ({"variant": "published", "split": "1/0/2"}, "split"),
        ({"variant": "published", "units": 0}, "units"),
    ],
)
def test_bad_options_are_named(options, field):
    with pytest.raises(ConfigError) as error:
        methods.get("afrrs", **options)
    assert error.value.field == field


def test_published_clips_nothing_and_has_noise():
    with pytest.raises(ConfigError, match="clips nothing"):
        Plan(
            records=60_000,
            batch_size=500,
            steps=10,
            noise_multiplier=1.0,
            delta=1e-5,
            method=methods.get("afrrs", variant="published"),
            clip=1.0,
        ).chain()
    with pytest.raises(ConfigError, match="noise_multiplier"):
        plan(0.0, variant="published").claimed()


def test_a_public_data_set_must_not_be_the_private_one(tmp_path):
    made = small(explain="data:digits")
    with pytest.raises(ConfigError, match="digits is the private one"):
        fit(small_model(), records(), plan=made, names={"data": "digits"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="assay data"):
        fit(small_model(), records(), plan=small(explain="data:nothing"), out=tmp_path / "run")


def test_features_outside_the_unit_interval_are_refused_or_clamped_as_declared(tmp_path):
    x, y = records().tensors
    wide = TensorDataset(3 * x - 1, y)
    with pytest.raises(DataError, match=r"outside \[0, 1\]"):
        fit(small_model(), wide, plan=small(variant="published"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists(), "told before anything is written"
    made = small(variant="published", outside="clamp", noise=1e-12).for_model(small_model())
    released = made.stage.release(small_model(), Records(wide), Seeded(1), torch.device("cpu"), train_privately)
    # Little noise in all makes the relevance exact. A feature without relevance has no share of ε2 and any noise.
    matters = released["relevance"].reshape(1, 6, 6) > 0.01
    assert matters.sum() >= 30
    features = released["inputs"][:, matters]
    assert torch.allclose(features, (3 * x - 1).clamp(0, 1)[:, matters].to(features), atol=0.1)


@pytest.mark.parametrize(
    ("model", "error", "told"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)),
            ConfigError,
            r"\[0, 1\]",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Sigmoid(), nn.Linear(5, 3)), UnsupportedModelError, "bias"),
    ],
)
def test_the_expanded_objective_needs_a_hidden_layer_within_the_unit_interval(model, error, told, tmp_path):
    with pytest.raises(error, match=told):
        fit(model, records(), plan=small(variant="published"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_sizes_are_the_models():
    made = plan(variant="published").for_model(models.build("afrrs-cifar10", input_shape=(3, 32, 32), classes=10))
    assert (made.method.units, made.method.hidden, made.method.classes) == (32, 32, 10)
    assert Plan.from_json(made.to_json()) == made
    assert plan().for_model(small_model()) == plan(), "the sound variant depends on none of them"


def charged(made: Plan) -> Ledger:
    ledger = Ledger(None, delta=made.delta, adjacency=made.adjacency, ceiling=None)
    ledger.pay(made.stage_event)
    return ledger


def gradients(made: Plan, data: TensorDataset, seed: int) -> list[torch.Tensor]:
    """Of one step on the whole batch, as the run takes it."""
    model = small_model()
    step = PrivateStep(model, made, ledger=charged(made), randomness=Seeded(seed))
    x, y = next(iter(step.batches(data)))
    step.backward(made.stage.loss(None)(model(x), y))
    return [p.grad.clone() for p in model.parameters()]


def test_as_published_the_labels_are_bare_in_the_layers_below_the_last():
    """The finding behind ε = ∞: whatever the noise, the first layer's gradient is exactly that of the labels."""
    made = plan(1e3, variant="published", records=120, batch_size=120).for_model(small_model())  # claims ε = 0.001
    full = replace(made, sampling=FullBatch)
    x, y = records().tensors
    one = TensorDataset(x, y)
    other = TensorDataset(x, torch.cat([(y[:1] + 1) % 3, y[1:]]))
    first, again, neighbour = gradients(full, one, 1), gradients(full, one, 2), gradients(full, other, 3)
    assert not torch.allclose(first[-1], again[-1]), "the last layer has noise"
    for place in (0, 1):
        assert torch.equal(first[place], again[place]), "nothing of it reaches the layer below"
        assert not torch.allclose(first[place], neighbour[place], rtol=1e-4, atol=1e-9), "one label shows"


def test_training_on_released_records_sees_nothing_else(tmp_path):
    """objective=record: with the noisy records of a run, its labels and features can be exchanged without a trace."""
    made = small(variant="published", objective="record", explain="private").for_model(small_model())
    assert isinstance(made.stage, NoisyRecords)
    released = made.stage.release(small_model(), Records(records()), Seeded(1), torch.device("cpu"), train_privately)
    one = made.stage.records(records(), released)
    x, y = records().tensors
    other = made.stage.records(TensorDataset(1 - x, (y + 1) % 3), released)
    for a, b in zip(one.tensors, other.tensors, strict=True):
        assert torch.equal(a, b)


def test_the_noise_drawn_has_the_scales_that_were_charged():
    """Mean |noise| of 4000 records is b_j within 6.5 standard errors: false alarms below 1e-6 for 36 features."""
    made = small(variant="published", noise=0.05).for_model(small_model())
    data = records(4000)
    released = made.stage.release(small_model(), Records(data), Seeded(2), torch.device("cpu"), train_privately)
    noise = made.stage.input_noise(made.stage.segmentation.regions(released))
    assert noise.epsilon == pytest.approx(made.stage.feature_epsilon)
    kept = noise.scales.isfinite()
    size = (released["inputs"].double() - data.tensors[0].double()).abs().mean(0)
    assert float(((size - noise.scales) / noise.scales)[kept].abs().max()) < 6.5 / math.sqrt(4000)


def test_the_sound_stage_scales_by_the_share_of_relevance(tmp_path):
    made = small(epsilon_limit=60.0, noise=0.8)
    result = fit(
        small_model(), records(), plan=made, training=Training(seed=1), test=records(seed=6), out=tmp_path / "run"
    )
    assert isinstance(made.stage, ScaledByRelevance)
    relevance = checkpoint.load(tmp_path / "run/stage.safetensors")[0]
    regions = made.stage.segmentation.regions(relevance)
    scale = result.model.state_dict()["input_scale"]
    torch.testing.assert_close(scale, regions.of_features(regions.alpha).float())
    assert float(scale.mean()) == pytest.approx(1.0, rel=1e-4)
    assert result.epsilon <= 60.0
    assert (tmp_path / "run/relevance.png").read_bytes().startswith(b"\x89PNG")
    statement = (tmp_path / "run/statement.md").read_text()
    assert "| relevance | one whole record | – |" in statement
    assert "trained on the private records by DP-SGD, 24 steps" in statement


def test_the_statement_of_a_published_run_separates_what_is_protected(tmp_path):
    made = small(variant="published", noise=1 / 0.6)
    result = fit(small_model(), records(), plan=made, training=Training(seed=1, optimizer=Optimizer(lr=0.01)))
    assert result.record["epsilon"]["verified"] == "inf"
    assert result.record["epsilon"]["claimed"] == pytest.approx(0.6)
    rows = {row["name"]: row for row in result.record["parts"]}
    assert rows["features"]["verified"] == pytest.approx(20 * 0.2 / (2 * 5), rel=1e-3)
    assert rows["labels"]["verified"] == rows["relevance"]["verified"] == "inf"
    for part in ("relevance", "features", "labels"):
        assert f"| {part} |" in result.statement
    assert PUBLISHED_IS_NOT_PRIVATE in result.statement
    assert BELOW_IS_NOT_PRIVATE in result.statement


def test_an_epsilon_beyond_1000_is_said_to_be_that():
    made = small(variant="published", objective="record", explain="data:digits", split="0.01/1/1", noise=1e-4)
    result = fit(small_model(), records(), plan=made, training=Training(seed=1, optimizer=Optimizer(lr=0.01)))
    assert {row["name"]: row["verified"] for row in result.record["parts"]}["features"] == pytest.approx(20e4 / 20.1)
    assert result.record["epsilon"]["verified"] == "inf"
    assert "ε is beyond 1000" in result.statement


def test_a_run_that_diverges_still_ends_with_a_record(tmp_path):
    made = small(variant="published", noise=1e3)
    training = Training(seed=1, optimizer=Optimizer(lr=10.0, momentum=0.9))
    result = fit(small_model(), records(), plan=made, training=training, test=records(seed=6), out=tmp_path / "run")
    assert result.record["status"] == "done"
    assert result.record["result"]["test_loss"] in (None, "inf") or result.record["result"]["test_loss"] > 1e6


def test_a_given_checkpoint_explains(tmp_path):
    network = models.build("lenet5", input_shape=(1, 6, 6), classes=3)
    path = tmp_path / "public.safetensors"
    save_file(network.state_dict(), path)
    explainer = Explainer(source=f"file:{path}")
    explainer.check("mnist")
    found = explainer.network(Records(records()), 3, Seeded(1), torch.device("cpu"), train_privately)
    assert torch.equal(found.features.conv1.weight, network.features.conv1.weight)
    with pytest.raises(ConfigError, match="exists"):
        Explainer(source="file:nowhere").check(None)
    with pytest.raises(ConfigError, match="parameters of lenet5"):
        explainer.network(Records(records()), 7, Seeded(1), torch.device("cpu"), train_privately)


def test_a_network_from_public_digits_has_the_private_shape():
    private = Records(TensorDataset(torch.rand(4, 3, 12, 12), torch.arange(4)))
    generator = torch.get_rng_state()
    found = Explainer(source="data:digits").network(private, 4, Seeded(1), torch.device("cpu"), train_privately)
    assert found(torch.zeros(2, 3, 12, 12)).shape == (2, 10)
    assert torch.equal(torch.get_rng_state(), generator), "the run's own generator is left alone"


@pytest.mark.parametrize(("objective", "releases"), [("step", None), ("record", 20_000)])
def test_the_audit_refutes_the_published_claim(objective, releases):
    found = audit_plan(published(1.0, objective=objective), randomness=Seeded(1), releases=releases)
    assert found.verdict is Verdict.CLAIM_REFUTED
    if objective == "step":
        assert found.audit.epsilon == math.inf
        assert "without noise" in found.step.canary
    else:
        # features: 500/3/32 = 5.2
        assert 4.5 < found.audit.epsilon < 5.21


def test_the_audit_of_noisy_records_stays_below_what_is_verified():
    made = published(1.0, objective="record", explain="data:digits", batch_size=100)
    found = audit_plan(made, randomness=Seeded(1), releases=40_000)
    assert 0.9 < found.audit.epsilon <= made.stage.feature_epsilon < found.verified


@pytest.mark.parametrize(
    ("options", "features"),
    [
        ({}, 3.125),  # |L| ε2/(2|h_0|) = 500·0.2/32
        ({"noisy": "clamp", "test": "noisy", "bias": "plain"}, 3.125),
        ({"size": "data"}, 375.0),  # 60,000·0.2/32
        ({"shared": "batch"}, math.inf),
        ({"shared": "data", "size": "data"}, math.inf),
    ],
)
def test_every_reading_has_its_own_epsilon_and_the_same_claim(options, features):
    made = published(0.6, objective="record", explain="data:digits", **options)
    assert made.claimed() == pytest.approx(0.6)
    assert parts(made)["features"].pure == pytest.approx(features)
    assert math.isinf(made.epsilon()) is math.isinf(features)
    assert bool(parts(made)["features"].reason) is math.isinf(features)
    assert math.isinf(published(0.6, objective="once", **options).epsilon())


def test_readings_belong_to_the_published_variant():
    with pytest.raises(ConfigError, match="readings"):
        methods.get("afrrs", shared="data")
    with pytest.raises(ConfigError, match="record, batch, data"):
        methods.get("afrrs", variant="published", shared="nobody")


def test_records_that_share_their_noise_give_their_differences_away():
    """Why ε = ∞: what two of them differ by leaves without noise. Test records get the same draw."""
    data = records()
    x, y = data.tensors
    for shared, apart in (("data", slice(None)), ("batch", slice(0, 20))):
        made = small(variant="published", shared=shared, test="noisy", size="data").for_model(small_model())
        released = made.stage.release(small_model(), Records(data), Seeded(1), torch.device("cpu"), train_privately)
        noisy, mine = released["inputs"][apart], x[apart]
        kept = noisy[0] != 0
        assert kept.any()
        gaps = (noisy - noisy[0]) - (mine - mine[0])
        assert float((gaps * kept).abs().max()) < 1e-2 < float((noisy - mine).abs().max())
        if shared == "data":
            assert torch.equal(made.stage.tested(TensorDataset(x, y), released).tensors[0], released["inputs"])
        else:
            assert not torch.allclose(released["inputs"][20] - released["inputs"][0], x[20] - x[0], atol=1e-2)


def test_clamped_inputs_stay_within_the_unit_interval():
    made = small(variant="published", noisy="clamp").for_model(small_model())
    released = made.stage.release(small_model(), Records(records()), Seeded(1), torch.device("cpu"), train_privately)
    assert float(released["inputs"].min()) >= 0
    assert float(released["inputs"].max()) <= 1


def test_objective_noise_that_is_drawn_once_is_the_same_in_every_step_and_after_a_restart():
    made = small(variant="published", objective="once", bias="plain").for_model(small_model())
    weights = {"first": torch.ones(2, 2), "last": torch.zeros(3, 5)}
    total = {name: torch.zeros_like(value) for name, value in weights.items()}
    chain = made.chain().on(weights)
    one, two = (chain.release(Bounded(dict(total), 1.0), Seeded(s).stream("noise", s)).value["last"] for s in (1, 2))
    assert torch.equal(one, two)
    assert one.abs().min() > 0
    again = made.chain().on(weights)
    again.restore(chain.state())
    assert torch.equal(again.release(Bounded(dict(total), 1.0), Seeded(3).stream("noise", 3)).value["last"], one)


def test_the_published_variant_brings_the_model_of_its_paper():
    method = methods.get("afrrs", variant="published")
    assert method.model_for((1, 28, 28)) == "afrrs-mnist"
    assert method.model_for((3, 32, 32)) == "afrrs-cifar10"
    assert method.model_for((14,)) is None
    assert methods.get("afrrs").model_for((1, 28, 28)) is None
