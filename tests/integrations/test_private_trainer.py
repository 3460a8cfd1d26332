"""`PrivateTrainer`: the losses of single records, ε as by `fit`, seeded runs to the bit, resuming, refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from assay import AssayError, ConfigError, Optimizer, Plan, Training, UnsupportedModelError, fit
from assay.data import Loading
from assay.data.sampling import FullBatch
from assay.runs import verify

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from assay.integrations.transformers import PrivateTrainer  # noqa: E402

from .tiny import KINDS, PLAN, arguments, bert, gpt2, llama, packed, padded, records, sentence, text, words  # noqa: E402


def trainer(folder: Path, model: Any = None, of: Any = sentence, args: Any = None, **settings: Any) -> PrivateTrainer:
    given: dict[str, Any] = {"train_dataset": records(of), "data_collator": padded, "plan": PLAN} | settings
    if model is None:
        torch.manual_seed(0)
        model = bert()
    return PrivateTrainer(model=model, args=arguments(folder, **(args or {})), **given)


def tensors(model: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_records_loss_is_what_the_model_says_of_it_alone_and_every_model_trains(kind, tmp_path):
    make, of = KINDS[kind]
    torch.manual_seed(0)
    model = make()
    private = trainer(tmp_path, model, of)
    some = records(of, 6, first=40)
    with torch.no_grad():
        together = private.compute_loss(model.eval(), padded(some))
        alone = torch.stack([model(**padded([one])).loss for one in some])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    before = tensors(model)
    private.train()
    assert private.result is not None
    assert private.result.epsilon == pytest.approx(PLAN.epsilon(), rel=1e-9)
    assert not same(before, tensors(model))
    assert verify(tmp_path / "privacy").holds
    if hasattr(model, "generate") and model.can_generate():
        assert model.generate(words(3, 1)[None], max_new_tokens=2, do_sample=False).shape[0] == 1


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("regression", torch.linspace(-1, 1, 12).view(4, 3)),
        ("multi_label_classification", (torch.arange(12).view(4, 3) % 2).float()),
    ],
)
def test_numbers_and_several_labels_have_the_models_own_loss(problem, labels, tmp_path):
    model = bert().eval()
    model.config.problem_type = problem
    batch = {"input_ids": torch.stack([words(5, i) for i in range(4)]), "labels": labels}
    with torch.no_grad():
        rows = [{name: value[i] for name, value in batch.items()} for i in range(4)]
        together = trainer(tmp_path, model, train_dataset=rows, data_collator=None).compute_loss(model, batch)
        alone = [model(**{name: value[i : i + 1] for name, value in batch.items()}).loss for i in range(4)]
    torch.testing.assert_close(together, torch.stack(alone))


def test_a_seeded_run_is_that_of_fit_to_the_bit_with_the_same_epsilon(tmp_path):
    private = trainer(tmp_path, seed=5)
    start = tensors(private.model)
    private.train()
    model = bert()
    model.load_state_dict(start)
    training = Training(
        seed=5, optimizer=Optimizer(lr=0.5, momentum=0.0, schedule="constant"), device="cpu", max_physical_batch=64
    )
    result = fit(model, records(sentence), plan=PLAN, training=training, loading=Loading(collate_fn=padded))
    assert same(tensors(private.model), tensors(model))
    assert private.result is not None
    assert private.result.epsilon == result.epsilon
    losses = [entry["train_loss"] for entry in private.result.record["history"]]
    assert losses == [entry["train_loss"] for entry in result.record["history"]]


def test_accumulated_parts_are_one_batch(tmp_path):
    plain = {"num_train_epochs": 1, "per_device_train_batch_size": 8}
    parts = {"num_train_epochs": 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    found = []
    for i, args in enumerate((plain, parts)):
        one = trainer(tmp_path / str(i), args=args, plan=None, epsilon=4, delta=1e-3, seed=1)
        one.train()
        found.append((one.result, tensors(one.model)))
    (whole, whole_model), (accumulated, parts_model) = found
    assert whole.epsilon == accumulated.epsilon <= 4
    assert whole.record["sampling"]["expected_batch_size"] == accumulated.record["sampling"]["expected_batch_size"] == 8
    for name, value in whole_model.items():
        torch.testing.assert_close(value, parts_model[name], rtol=1e-3, atol=1e-4)


def test_adapters_move_by_the_clipped_gradients_of_single_records_and_the_base_by_no_bit(tmp_path):
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    model = peft.get_peft_model(gpt2(), settings)
    before = tensors(model)
    plan = Plan(records=8, batch_size=8, steps=1, noise_multiplier=0.0, delta=1e-3, clip=0.05, sampling=FullBatch)
    private = trainer(tmp_path, model, text, {"learning_rate": 1.0}, train_dataset=records(text, 8), plan=plan)
    expected: dict[str, Tensor] = {}
    for one in records(text, 8):  # one record at a time, by autograd
        model.zero_grad()
        model(**padded([one])).loss.backward()
        grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        norm = torch.cat([g.flatten() for g in grads.values()]).norm()
        for name, g in grads.items():
            expected[name] = expected.get(name, 0) + g * (0.05 / norm).clamp(max=1.0) / 8
    model.zero_grad()
    private.train()
    after = tensors(model)
    assert {name for name in after if not torch.equal(after[name], before[name])} <= expected.keys()
    assert all("lora" in name for name in expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(before[name] - after[name], gradient, rtol=1e-4, atol=1e-7)
    assert private.result is not None
    assert math.isinf(private.result.epsilon)
    written = json.loads((tmp_path / "privacy" / "record.json").read_text())
    assert "loss" not in json.dumps(private.state.log_history)  # without noise no training loss is released
    assert written["epsilon"]["verified"] == "inf"


class Stops(transformers.TrainerCallback):
    def __init__(self, at: int, *, fails: bool) -> None:
        self.at, self.fails = at, fails

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.at and self.fails:
            raise KeyboardInterrupt

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = control.should_training_stop or (state.global_step == self.at and not self.fails)


SAVES = {"save_strategy": "steps", "save_steps": 1}
LONG = Plan(records=24, batch_size=8, steps=5, noise_multiplier=1.0, delta=1e-3)


def interrupted(folder: Path, at: int, **settings: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        trainer(folder, args=SAVES, plan=LONG, callbacks=[Stops(at, fails=True)], **settings).train()


def test_a_seeded_run_that_resumes_ends_with_the_bits_of_one_that_did_not_stop(tmp_path):
    interrupted(tmp_path / "a", 4, seed=3)
    again = trainer(tmp_path / "a", args=SAVES, plan=LONG, seed=3)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    whole = trainer(tmp_path / "b", plan=LONG, seed=3)
    whole.train()
    assert same(tensors(again.model), tensors(whole.model))
    assert again.result is not None
    assert whole.result is not None
    assert again.result.epsilon == whole.result.epsilon
    assert again.state.epoch == pytest.approx(whole.state.epoch)
    assert [e["step"] for e in again.result.record["history"]] == [e["step"] for e in whole.result.record["history"]]


def test_an_unseeded_run_that_resumes_pays_for_what_it_takes_again(tmp_path):
    interrupted(tmp_path, 4)
    again = trainer(tmp_path, args=SAVES, plan=LONG)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.result is not None
    assert again.result.record["steps_charged"] == 4 + 3  # four before, and from the third to the fifth once more
    assert again.result.epsilon > LONG.epsilon()
    with pytest.raises(AssayError, match="finished"):
        trainer(tmp_path, args=SAVES, plan=LONG).train(resume_from_checkpoint=True)
    with pytest.raises(ConfigError, match="a run is there already"):
        trainer(tmp_path, plan=LONG).train()


class Fails(transformers.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == LONG.steps:
            raise KeyboardInterrupt


def test_a_run_with_nothing_left_to_spend_is_finished_with_the_model_of_its_checkpoint(tmp_path):
    plan = replace(LONG, epsilon_limit=LONG.epsilon())
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, args=SAVES, plan=plan, callbacks=[Fails()]).train()
    again = trainer(tmp_path, args=SAVES, plan=plan)
    again.train(resume_from_checkpoint=True)
    assert again.result is not None
    assert again.result.budget_spent
    assert (again.result.record["steps"], again.result.record["steps_charged"]) == (4, 5)
    assert again.result.epsilon == pytest.approx(LONG.epsilon(), rel=1e-9)


def test_a_checkpoint_without_its_ledger_or_of_another_run_is_refused(tmp_path):
    interrupted(tmp_path / "a", 2)
    last = str(tmp_path / "a" / "checkpoint-2")
    (tmp_path / "a" / "privacy").rename(tmp_path / "elsewhere")
    refused = [
        ({}, "out"),
        ({"out": tmp_path / "elsewhere", "plan": PLAN}, "plan"),
        ({"out": tmp_path / "elsewhere", "seed": 1}, "seed"),
    ]
    for settings, field in refused:
        with pytest.raises(ConfigError) as found:
            trainer(tmp_path / "a", **({"plan": LONG} | settings)).train(resume_from_checkpoint=last)
        assert found.value.field == field
    interrupted(tmp_path / "b", 1)
    with pytest.raises(ConfigError, match="another's"):
        trainer(tmp_path / "a", plan=LONG, out=tmp_path / "b" / "privacy").train(resume_from_checkpoint=last)
    (tmp_path / "a" / "checkpoint-2" / "assay.json").unlink()
    with pytest.raises(ConfigError, match="PrivateTrainer wrote"):
        trainer(tmp_path / "a", plan=LONG, out=tmp_path / "elsewhere").train(resume_from_checkpoint=last)


def test_a_run_that_a_callback_ends_early_is_charged_for_its_whole_plan(tmp_path):
    early = trainer(tmp_path, plan=LONG, callbacks=[Stops(2, fails=False)])
    early.train()
    assert early.result is not None
    assert early.result.record["steps"] == 2
    assert early.result.record["status"] == "stopped"
    assert early.result.epsilon == pytest.approx(LONG.epsilon(), rel=1e-9)
    assert early.state.log_history[-1]["epsilon"] == early.result.epsilon


def test_no_loss_of_the_records_is_logged_and_no_count_of_what_was_drawn(tmp_path):
    def raw(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        assert num_items_in_batch is None
        return 4321.0 + outputs.logits.sum(1)

    private = trainer(tmp_path, args=SAVES, compute_loss_func=raw, eval_dataset=records(sentence, 4, first=90))
    output = private.train()
    written = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())["log_history"]
    told = [*private.state.log_history, *written, output.metrics, {"loss": output.training_loss}]
    assert all(abs(v) < 1000 for entry in told for k, v in entry.items() if "loss" in k)
    assert all(entry.get("total_flos", 0) == 0 for entry in told)
    epsilons = [entry["epsilon"] for entry in private.state.log_history]
    assert len(epsilons) == 4  # three steps, and the end
    assert epsilons == sorted(epsilons)
    assert (tmp_path / "checkpoint-3" / "assay.json").exists()
    assert not [path for path in tmp_path.rglob("*") if "rng" in path.name]  # the states of generators stay secret


@pytest.mark.parametrize(
    ("field", "args"),
    [
        ("train_sampling_strategy", {"train_sampling_strategy": "group_by_length"}),
        ("dataloader_drop_last", {"dataloader_drop_last": True}),
        ("auto_find_batch_size", {"auto_find_batch_size": True}),
        ("neftune_noise_alpha", {"neftune_noise_alpha": 5.0}),
        ("include_num_input_tokens_seen", {"include_num_input_tokens_seen": "all"}),
        ("skip_memory_metrics", {"skip_memory_metrics": False}),
        ("debug", {"debug": "underflow_overflow"}),
        ("enable_jit_checkpoint", {"enable_jit_checkpoint": True}),
        ("use_liger_kernel", {"use_liger_kernel": True}),
        ("torch_compile", {"torch_compile": True}),
        ("optim", {"optim": "galore_adamw_layerwise", "optim_target_modules": ["query"]}),
    ],
)
def test_arguments_that_would_break_epsilon_are_refused_by_name(field, args, tmp_path):
    with pytest.raises(ConfigError) as found:
        trainer(tmp_path, args=args)
    assert found.value.field == field
    assert not (tmp_path / "privacy").exists()


def _batch_mean(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return torch.nn.functional.cross_entropy(outputs.logits, labels)


def _by_words_of_the_batch(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    losses = torch.nn.functional.cross_entropy(
        outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none", ignore_index=-100
    )
    return losses.sum(1) / (labels != -100).sum()


@pytest.mark.parametrize(
    ("of", "make", "settings", "error"),
    [
        (sentence, bert, {"compute_loss_func": _batch_mean}, ConfigError),
        (text, gpt2, {"compute_loss_func": _by_words_of_the_batch}, UnsupportedModelError),
        (packed, llama, {"data_collator": transformers.DataCollatorWithFlattening()}, ConfigError),
    ],
)
def test_losses_that_mix_records_are_refused_before_anything_is_written(of, make, settings, error, tmp_path):
    with pytest.raises(error):
        trainer(tmp_path, make(), of, **settings).train()
    assert not (tmp_path / "privacy").exists()


def test_what_would_go_around_the_plans_sampler_is_refused(tmp_path):
    class Weighted(PrivateTrainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return torch.utils.data.WeightedRandomSampler([1.0] * 24, 24)

    with pytest.raises(ConfigError, match="_get_train_sampler"):
        Weighted(model=bert(), args=arguments(tmp_path), train_dataset=records(sentence), plan=PLAN)

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(records(sentence))

    with pytest.raises(ConfigError, match="train_dataset"):
        trainer(tmp_path, train_dataset=Stream(), args={"max_steps": 3})
    with pytest.raises(ConfigError, match=r"data_collator.*pads words"):
        trainer(tmp_path, data_collator=transformers.default_data_collator).train()
    private = trainer(tmp_path, eval_dataset=(same_records := records(sentence)), train_dataset=same_records)
    with pytest.raises(ConfigError, match="eval_dataset"):
        private.evaluate()
    with pytest.raises(ConfigError, match="get_train_dataloader"):
        private.get_train_dataloader()
    with pytest.raises(ConfigError, match="max_steps"):
        trainer(tmp_path, args={"max_steps": 7}).train()
    with pytest.raises(ConfigError, match="hyperparameter_search"):
        private.hyperparameter_search()


def test_a_subclass_may_compute_another_loss_but_not_log_it(tmp_path):
    class Own(PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
            losses = model(inputs["input_ids"], inputs["attention_mask"]).logits.square().sum(1)
            if self.args.run_name == "logs":
                self.log({"raw": float(losses.detach().mean())})
            return losses

    def own(folder: str, **args: Any) -> Own:
        given = {"train_dataset": records(sentence), "data_collator": padded, "plan": PLAN}
        return Own(model=bert(), args=arguments(tmp_path / folder, **args), **given)

    private = own("a")
    private.train()
    assert private.result is not None
    assert private.result.epsilon == pytest.approx(PLAN.epsilon(), rel=1e-9)
    logs = own("b", run_name="logs")
    with pytest.raises(ConfigError, match="nothing in compute_loss"):
        logs.train()
    assert logs.state.log_history == []
    assert not (tmp_path / "b" / "privacy").exists()


def test_half_precision_and_checkpointed_activations_train(tmp_path):
    args = {"bf16": True, "activation_checkpointing": True}
    private = trainer(tmp_path, gpt2(transformers.GPT2ForSequenceClassification), args=args)
    private.train()
    assert {p.dtype for p in private.model.parameters()} == {torch.float32}
    assert private.result is not None
    assert private.result.record["training"]["precision"] == "bf16"
