"""What the experiments' pages say that papers' claims are worth is what the code computes today."""

import math
import re
from dataclasses import replace
from functools import partial

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay import Adjacency, Plan, methods
from assay.accounting.epsilon import gaussian_epsilon, moments_epsilon
from assay.data.sampling import WithoutReplacement
from assay.federated.methods.fedags import gaussian_claim
from assay.gradients import clipping as clip
from docs.pages import DOCS

EXPERIMENTS = DOCS.parent / "experiments"
REPLACED = {"sampling": WithoutReplacement, "adjacency": Adjacency.REPLACE_ONE}
AUTHORS = 0.3471  # the noise on the mean in the code of DP-LSSGD's authors, where ε is 0.10


def dpsgd(noise, records=60_000, batch=128, steps=23_450):
    return Plan(records=records, batch_size=batch, steps=steps, noise_multiplier=noise, delta=1e-5).epsilon()


def theorem_1(claim, **drawn):
    """DP-LSSGD at Table 2's settings, if each record were clipped."""
    plan = Plan.calibrated(
        epsilon=claim,
        records=50_000,
        batch_size=128,
        steps=19_531,
        delta=1e-5,
        clip=clip.Flat(bound=1.0),
        method=methods.get("lssgd", variant="published"),
        **drawn,
    )
    return plan.epsilon()


def signs(batch, micro, noise, steps):
    """Discretised gradients in micro-batches; `tests/methods/test_claims.py` has their claims."""
    plan = Plan(
        records=50_000,
        batch_size=batch,
        steps=steps,
        noise_multiplier=noise,
        delta=1e-5,
        micro_batch=micro,
        method=methods.get("discrete", variant="published"),
    )
    return plan.epsilon()


def at_16_20(steps, whole):
    event = SelfComposedDpEvent(PoissonSampledDpEvent(1024 / 50_000, GaussianDpEvent(0.8)), steps)
    return moments_epsilon(event, 1e-5, Adjacency.ADD_OR_REMOVE_ONE, whole_orders=whole)


def first_epoch(epochs):
    """GReDP on LeNet-5: the claim of the first epoch of a run whose claim is 2."""
    plan = Plan.calibrated(
        epsilon=2.0,
        records=60_000,
        batch_size=500,
        steps=120 * epochs,
        delta=1e-5,
        clip=clip.PerLayer(bound=1.0),
        method=methods.get("gredp", variant="published", groups=5),
    )
    return replace(plan, steps=120).claimed()


def eq_2(epsilon):
    """DP-FedAGS: σ where ΔS = 1."""
    noise = math.sqrt(2 * (math.log(1.25) + epsilon)) / epsilon
    assert gaussian_claim(noise) == pytest.approx(epsilon)
    return noise


SAID = [
    ("dp-lssgd", r"worth ([\d.]+) with Poisson batches", partial(dpsgd, AUTHORS * 128 / (math.sqrt(2) * 79))),
    ("dp-lssgd", r"moves a mean over 128 records by at most ([\d.]+),", lambda: math.sqrt(2) * 79 / 128),
    ("dp-lssgd", r"would be (\d+) in shuffled epochs", lambda: gaussian_epsilon(AUTHORS / math.sqrt(2 * 50), 1e-5)),
    ("dp-lssgd", r"epochs and (\d+) with Poisson batches", partial(dpsgd, AUTHORS / math.sqrt(2))),
    ("dp-lssgd", r"is then ([\d.]+) where 0\.10 is claimed", partial(theorem_1, 0.1, **REPLACED)),
    ("dp-lssgd", r"and ([\d.]+) where 0\.30 is,", partial(theorem_1, 0.3, **REPLACED)),
    ("dp-lssgd", r"it is ([\d.]+) and [\d.]+; that comparison", partial(theorem_1, 0.1)),
    ("dp-lssgd", r"it is [\d.]+ and ([\d.]+); that comparison", partial(theorem_1, 0.3)),
    ("dp-lssgd", r"example has α = (\d+\.\d)", lambda: 2 * math.log(1e5) / 0.7502 + 1),
    ("gredp", r"gives ε = ([\d.]+) at σ = 2\.172", lambda: math.sqrt(2 * math.log(1.25e5)) / 2.172),
    ("gredp", r"costs ([\d.]+) of 30 epochs", partial(first_epoch, 30)),
    ("gredp", r"30 epochs, ([\d.]+) of 50", partial(first_epoch, 50)),
    ("gredp", r"of 50 and ([\d.]+) of 100", partial(first_epoch, 100)),
    ("discrete-denoise", r"6,000: ([\d.]+) over all orders", partial(at_16_20, 6_000, whole=False)),
    ("discrete-denoise", r"all orders, ([\d.]+) over whole ones", partial(at_16_20, 6_000, whole=True)),
    ("discrete-denoise", r"σ/2: ([\d.]+), [\d.]+ and [\d.]+ for", partial(signs, 1024, 8, 0.8, 6_000)),
    ("discrete-denoise", r"σ/2: [\d.]+, ([\d.]+) and [\d.]+ for", partial(signs, 512, 4, 1.0, 10_000)),
    ("discrete-denoise", r"σ/2: [\d.]+, [\d.]+ and ([\d.]+) for", partial(signs, 512, 4, 1.3, 6_000)),
    ("afrrs", r"mean scale 2·16·784/\(500·0\.2\) ≈ (\d+)", lambda: 2 * 16 * 784 / (500 * 0.2)),
    ("afrrs", r"scale ([\d,]+) on every coefficient", lambda: 10 * (32 + 32**2 / 4) / 0.2),
    ("afrrs", r"its local ε is (\d+)\.", lambda: 60_000 * 0.2 / (2 * 16)),
    ("afrrs", r"(0\.\d+) where ε2 = 0\.2 and \|L\| = 500", lambda: 500 * 0.2 * math.sqrt(2 * 784) / (2 * 16 * 784)),
    ("dp-fedags", r"gives σ = ([\d.]+), [\d.]+ and", partial(eq_2, 0.1)),
    ("dp-fedags", r"gives σ = [\d.]+, ([\d.]+) and", partial(eq_2, 0.2)),
    ("dp-fedags", r"gives σ = [\d.]+, [\d.]+ and ([\d.]+):", partial(eq_2, 0.5)),
    ("dp-fedags", r"is ([\d,]+) to [\d,]+ times as long", lambda: eq_2(0.5) * math.sqrt(203_530)),
    ("dp-fedags", r"is [\d,]+ to ([\d,]+) times as long", lambda: eq_2(0.1) * math.sqrt(203_530)),
    ("dp-fedags", r"one: (\d+) times the noise of ΔS = C", lambda: math.sqrt(26_010)),
]


@pytest.mark.parametrize(("paper", "sentence", "value"), SAID, ids=[f"{said[0]}: {said[1]}" for said in SAID])
def test_a_number_in_a_sentence_about_a_paper_is_what_is_computed_today(paper, sentence, value):
    page = " ".join((EXPERIMENTS / paper / "README.md").read_text(encoding="utf-8").split())
    found = re.findall(sentence, page)
    assert len(found) == 1, "the sentence is there once"
    assert float(found[0].replace(",", "")) == pytest.approx(value(), rel=4e-3)
