"""The coverage table: nothing wrong, no raw error, and what was exact stays exact."""

from __future__ import annotations

import pytest
from benchmarks.coverage import judged, rendered, run
from benchmarks.coverage_cases import layers, models

CASES = {case.name: case for case in (*layers(), *models())}
TEXT_AND_PICTURES = (
    "OPTForCausalLM",
    "MixtralForCausalLM",
    "LongformerForSequenceClassification",
    "MPNetForSequenceClassification",
    "Swinv2ForImageClassification",
    "MobileViTForImageClassification",
    "XLNetForSequenceClassification",
    "DoRA",
    "IA3",
    "AdaLoRA",
    "LoHa",
    "VeRA",
    "LoRA on embeddings",
    "prompt tuning",
    "p-tuning",
)


@pytest.mark.parametrize("name", [case.name for case in layers()])
def test_layer_is_exact(name: str) -> None:
    outcome = judged(CASES[name])
    assert (outcome.outcome, outcome.why) == ("exact", "")


@pytest.mark.parametrize("name", TEXT_AND_PICTURES)
def test_model_is_exact(name: str) -> None:
    outcome = judged(CASES[name])
    assert (outcome.outcome, outcome.why) == ("exact", "")


def test_the_table_counts_what_it_ran() -> None:
    found = run("PReLU")
    assert "| layers and blocks |     1 |     1 |" in rendered(found)
