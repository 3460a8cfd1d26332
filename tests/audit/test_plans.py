"""Every method, and every published variant: what the audit of a plan says."""

import math

import pytest

from assay import ConfigError, Plan, methods
from assay.accounting.epsilon import Adjacency, gaussian_epsilon
from assay.audit import Verdict
from assay.audit.plans import audit_plan, composed
from assay.data.sampling import FullBatch, Permuted, Poisson, Shuffled, WithoutReplacement
from assay.gradients import clipping
from assay.randomness.streams import Seeded

DELTA = 1e-5


def plan(name: str, *, noise: float, micro: int = 1, layers: int = 4, **options) -> Plan:
    method = methods.get(name, **options)
    if "groups" in type(method).OPTIONS and method.needs_layers:
        method = methods.get(name, **{"groups": layers, **options})
    return Plan(
        records=60_000,
        batch_size=500,
        steps=3600,
        noise_multiplier=noise,
        delta=DELTA,
        method=method,
        clip=method.clip,
        micro_batch=micro,
    )


# By default their stages take much of ε, and this audit is about steps. tests/methods covers the noise of stages.
STEPS_DECIDE = {"least-squares": {"relative": 10.0}, "newton": {"relative": 10.0}}


@pytest.mark.parametrize("name", methods.available())
def test_no_sound_variant_is_refuted(name):
    """A new method is audited here by itself. 2500 releases: sharp enough to see noise that is too small by a fifth."""
    found = audit_plan(plan(name, noise=0.7, **STEPS_DECIDE.get(name, {})), randomness=Seeded(1), releases=2500)
    assert found.verdict is Verdict.CONSISTENT
    assert 0.4 * found.verified < found.audit.epsilon <= found.verified


@pytest.mark.parametrize(
    ("name", "options", "micro"),
    [
        ("gredp", {}, 1),
        ("gredp", {"noise_form": "real"}, 1),
        ("gredp", {"noise_form": "0.6/0.8"}, 1),
        ("spectral", {"noise_form": "real"}, 1),
        ("discrete", {}, 4),
    ],
)
def test_published_claims_are_refuted(name, options, micro):
    found = audit_plan(
        plan(name, noise=2.2, micro=micro, variant="published", **options), randomness=Seeded(2), releases=2500
    )
    assert 0.9 < found.claimed < 1.3
    assert found.claimed < found.audit.epsilon <= found.verified
    assert found.verdict is Verdict.CLAIM_REFUTED


def test_spectral_dp_keeps_what_it_claims():
    found = audit_plan(plan("spectral", noise=2.2, variant="published"), randomness=Seeded(2), releases=2500)
    assert found.audit.epsilon <= found.verified <= found.claimed
    assert found.verdict is Verdict.CONSISTENT


@pytest.mark.parametrize(
    ("name", "options"), [("dpsgd", {}), ("afrrs", {"variant": "published", "objective": "record"})]
)
@pytest.mark.parametrize("few", [0, 1, 99, 100.0, True])
def test_too_few_releases_are_refused(name, options, few):
    """One release of each has no spread: it would be taken for one without noise, and ε for infinite."""
    with pytest.raises(ConfigError, match=r"releases = .*: a whole number, 100 or above"):
        audit_plan(plan(name, noise=2.0, **options), randomness=Seeded(0), releases=few)


def test_the_fewest_releases_do_not_refute_a_sound_plan():
    found = audit_plan(plan("dpsgd", noise=2.0), randomness=Seeded(0), releases=100)
    assert found.verdict is Verdict.CONSISTENT


def test_gredp_on_five_layers():
    """LeNet-5: claimed 1.0, verified 7.18 as the design notes have it."""
    found = audit_plan(plan("gredp", noise=2.171, variant="published", layers=5), randomness=Seeded(3))
    assert found.claimed == pytest.approx(1.0, rel=0.01)
    assert found.verified == pytest.approx(7.18, rel=0.01)
    assert 4.5 < found.audit.epsilon < found.verified


def test_composition_is_that_of_the_plan():
    made = plan("dpsgd", noise=2.0)
    assert composed(made, 1 / made.noise_multiplier) == pytest.approx(made.epsilon(), rel=0.011)
    assert composed(made, 1 / made.noise_multiplier) < made.epsilon()
    assert composed(made, 0.0) == 0
    assert composed(made, math.inf) == math.inf


def test_a_record_replaced_in_a_micro_batch_is_not_counted_twice():
    """One full-batch step is one Gaussian release.

    A replacement takes one clipped average from norm C to norm C: 2C in all, and the audit
    must not show more than that. By Clopper-Pearson at significance 1e-6 (fixed seed).
    """
    made = Plan(
        records=1000,
        batch_size=1000,
        steps=1,
        sampling=FullBatch,
        noise_multiplier=2.0,
        delta=DELTA,
        micro_batch=4,
        adjacency=Adjacency.REPLACE_ONE,
        method=methods.get("discrete", variant="published"),  # noise relative to C
        clip=clipping.Flat(bound=1.0),
    )
    truth = gaussian_epsilon(1.0, DELTA)
    assert composed(made, 1.0) == pytest.approx(truth, rel=0.011)
    found = audit_plan(made, randomness=Seeded(4), releases=1500, confidence=1 - 1e-6)
    assert 0.5 * truth < found.audit.epsilon <= truth
    assert found.verdict is Verdict.CONSISTENT


@pytest.mark.parametrize("sampling", [Poisson, Shuffled, FullBatch, WithoutReplacement, Permuted])
@pytest.mark.parametrize("steps", [3, 50])
def test_what_a_step_shows_is_composed_from_below(sampling, steps):
    """With the very noise of the plan, an audit may show no more than the plan costs.

    Where the plan's ε is exact, nearly that.
    """
    plan = Plan(
        records=1000,
        batch_size=1000 if sampling is FullBatch else 100,
        steps=steps,
        noise_multiplier=1.0,
        delta=1e-5,
        sampling=sampling,
        adjacency=Adjacency.REPLACE_ONE if sampling.replaces else Adjacency.ADD_OR_REMOVE_ONE,
    )
    shown = composed(plan, 1.0)
    assert 0 < shown <= plan.epsilon()
    if sampling in (Poisson, FullBatch) or (sampling is Shuffled and steps == 50):  # three steps are charged an epoch
        assert shown > 0.98 * plan.epsilon()


def test_permutations_show_what_the_sum_of_an_epoch_shows():
    """The noise of ten batches for one use of the record: exact for who adds up, and so a bound from below for who can
    do better.
    """
    plan = Plan(
        records=1000,
        batch_size=100,
        steps=50,
        noise_multiplier=1.0,
        delta=1e-5,
        sampling=Permuted,
        adjacency=Adjacency.REPLACE_ONE,
    )
    assert composed(plan, 1.0) == pytest.approx(gaussian_epsilon(math.sqrt(10 / 5) / 2, 1e-5) / 1.01, rel=1e-6)


def theorem_1_of_lssgd(steps: int, batch: int, noise: float) -> Plan:
    return Plan(
        records=60_000,
        batch_size=batch,
        steps=steps,
        noise_multiplier=noise,
        delta=1e-5,
        sampling=WithoutReplacement,
        adjacency=Adjacency.REPLACE_ONE,
        clip=clipping.Flat(bound=1.0),
        method=methods.get("lssgd", variant="published"),
    )


def test_a_record_replaced_by_its_opposite_refutes_theorem_1_of_lssgd():
    """One step on a tenth of the records: the canary is replaced by its worst opposite, and the audit exceeds the
    claim.
    """
    found = audit_plan(theorem_1_of_lssgd(1, 6000, 1.8386), randomness=Seeded(5), releases=4000)
    assert found.claimed == pytest.approx(0.7502, rel=1e-3)
    assert 1.2 < found.audit.epsilon <= found.verified == pytest.approx(2.03, rel=2e-3)
    assert found.verdict is Verdict.CLAIM_REFUTED
