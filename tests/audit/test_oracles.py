"""The same scores in other libraries' auditors, where they are installed."""

import numpy as np
import pytest

from assay.audit import bounds, one_run
from assay.audit.scores import errors_at

DELTA, THRESHOLD, ALPHA = 1e-5, 1.0, 0.05


@pytest.fixture(scope="module")
def scores():
    random = np.random.default_rng(0)
    return random.standard_normal(400) + 2.0, random.standard_normal(400)


def guessed_above(included, excluded):
    """jax_privacy guesses "included" at and above a threshold, and abstains below."""
    right, wrong = int((included >= THRESHOLD).sum()), int((excluded >= THRESHOLD).sum())
    return one_run.Guesses(canaries=len(included) + len(excluded), made=right + wrong, right=right)


def test_jax_privacy_finds_the_same(scores):
    auditing = pytest.importorskip("jax_privacy.auditing")
    auditor = auditing.CanaryScoreAuditor(*scores)
    at, guesses = {"threshold_strategy": auditing.Explicit(THRESHOLD)}, guessed_above(*scores)
    ours = one_run.epsilon_lower(guesses, delta=DELTA, significance=ALPHA)
    assert auditor.epsilon_one_run(ALPHA, DELTA, **at) == pytest.approx(ours, abs=1e-5)
    ours = one_run.epsilon_lower_gaussian(guesses, delta=DELTA, significance=ALPHA)
    assert auditor.epsilon_one_run_fdp(ALPHA, DELTA, **at) == pytest.approx(ours, abs=1e-4)
    ours = bounds.epsilon_lower(errors_at(*scores, THRESHOLD), delta=DELTA, significance=ALPHA)
    theirs = auditor.epsilon_clopper_pearson(ALPHA, DELTA, one_sided=False, **at)
    assert theirs == pytest.approx(ours, abs=1e-5)


def test_privacyguard_finds_the_same(scores):
    """It tries noise at steps of 0.01, so that its ε is as coarse."""
    fdp = pytest.importorskip("privacy_guard.analysis.mia.fdp_analysis_node")
    guesses = guessed_above(*scores)
    counts = {"m": guesses.canaries, "c": guesses.right, "c_cap": guesses.made}
    theirs = fdp.FDPAnalysisNode(**counts, threshold=ALPHA, delta=DELTA).run_analysis().eps
    ours = one_run.epsilon_lower_gaussian(guesses, delta=DELTA, significance=ALPHA)
    assert theirs == pytest.approx(ours, rel=0.05)
