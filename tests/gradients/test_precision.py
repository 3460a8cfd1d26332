"""Passes in bfloat16, clipping in float32: a record moves the sum by at most C to the last bit of float32."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay import ConfigError, Plan, Training, fit
from assay.gradients import quickest, record_grads
from assay.gradients.clipping import Flat
from assay.gradients.engine import Engine
from assay.gradients.uses.base import Outer

from .test_transformers import Logits, bert, classes, every_word, gpt2, words

BOUND = 0.01
SLACK = 1 + 1e-6  # of float32, as in test_sensitivity


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    return nn.Sequential(
        nn.Embedding(60, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 60)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "encoder": encoder,
    "BERT": lambda: Logits(bert(transformers.BertForMaskedLM)),
    "GPT-2": lambda: Logits(gpt2()),
}


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_each_record_stays_within_the_bound(name: str, measured: bool) -> None:
    model, x = MODELS[name](), words(6)
    engine, rule = Engine(model, measured=measured), Flat(bound=BOUND)
    found: list[torch.dtype] = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x)
            found.append(output.dtype)
        grads = engine.collect(every_word(output.float(), x.flip(1)))
        norms = grads.norms([0] * grads.layers)
        weights = rule.weights(norms)
        assert norms.dtype == weights.dtype == torch.float32
        assert (norms > BOUND).all()
        for i in range(len(x)):
            alone = grads.weighted_sum(weights * (torch.arange(len(x)) == i).unsqueeze(1), [0] * grads.layers)
            assert all(g.dtype == torch.float32 for g in alone.values())
            moved = torch.cat([g.flatten() for g in alone.values()]).double().norm()
            assert 0.99 * BOUND < moved <= BOUND * SLACK
    assert set(found) == {torch.bfloat16}


@pytest.mark.parametrize("shape", [(3, 20, 12), (5, 9, 8), (16, 8, 8), (40, 6, 5)], ids=str)
def test_both_ways_to_the_norm_of_a_sequence_agree(shape: tuple[int, int, int]) -> None:
    positions, out, inp = shape
    g, x = torch.randn(4, positions, out).double(), torch.randn(4, positions, inp).double()
    weights = torch.rand(4, 1).double()
    ways = [Outer(g, x, keep) for keep in (True, False)]
    for one, other in itertools.pairwise([(way.sq_norm(), way.weighted_sum(weights)) for way in ways]):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_clock_decides_only_where_memory_does_not_and_once_for_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(quickest, "_known", {})
    monkeypatch.setattr(quickest, "quickest", lambda runs, device: asked.append(device) or len(runs) - 1)
    state = torch.get_rng_state()

    def chosen(records: int, positions: int, out: int, inp: int) -> bool | None:
        use = Outer(torch.zeros(records, positions, out), torch.zeros(records, positions, inp))
        record_grads.choose(use)
        return use.keep

    assert chosen(8, 2, 64, 64) is False  # the product would be larger than what it is made of
    assert chosen(8, 40, 8, 8) is True  # the Gram matrices would be
    assert not asked
    assert chosen(8, 16, 16, 16) is True
    assert chosen(7, 15, 16, 16) is True  # another batch of about this size: the same choice
    assert len(asked) == 1
    assert torch.equal(torch.get_rng_state(), state)


def test_seeded_runs_do_not_ask_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    data = TensorDataset(words(40), classes(40))
    plan = Plan(records=40, batch_size=10, steps=3, noise_multiplier=1.0, delta=1e-3)

    def refuse(use: Outer) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(record_grads, "choose", refuse)
    train = [Training(seed=1), Training()]
    results = []
    for training in train[:1] * 2:
        torch.manual_seed(0)
        results.append(fit(Logits(bert()), data, plan=plan, training=training).model)
    for one, other in zip(results[0].parameters(), results[1].parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(AssertionError, match="measured"):
        fit(Logits(bert()), data, plan=plan, training=train[1])


def test_a_run_in_bf16() -> None:
    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.types = Logits(bert()), set[torch.dtype]()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            if torch.is_grad_enabled():
                self.types.add(out.dtype)
            return out

    def loss(output: Tensor, target: Tensor) -> Tensor:
        assert output.dtype == torch.float32
        return F.cross_entropy(output, target, reduction="none")

    data = TensorDataset(words(40), classes(40))
    plan = Plan(records=40, batch_size=10, steps=4, noise_multiplier=1.0, delta=1e-3)
    model = Seen()
    result = fit(
        model,
        data,
        plan=plan,
        test=TensorDataset(words(40), classes(40)),
        loss=loss,
        training=Training(precision="bf16"),
    )
    assert model.types == {torch.bfloat16}
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert result.record["training"]["precision"] == "bf16"


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(ConfigError, match=r"precision.*fp8.*float32, bf16"):
        Training(precision="fp8")
