"""One thing of each kind from outside the package, found by entry points or added by a call, and used end to end."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from assay import ConfigError, methods
from assay._util import registry
from assay.accounting.accountants.sampled import Noise
from assay.data.sampling import Poisson
from assay.gradients.clipping import Flat

OUTSIDE = Path(__file__).parent / "outside"
ENTRY_POINTS = {
    "accountant": "ACCOUNTANT",
    "attack": "ATTACK",
    "clip": "Soft",
    "data": "DATASET",
    "method": "METHOD",
    "report_section": "SECTION",
    "sampler": "Twice",
}


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """What came out, in a process of its own: other tests count the things there are."""
    folder = tmp_path_factory.mktemp("plugins")
    installed = folder / "site" / "acme-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    points = "\n".join(f"[assay.{kind}]\nmine = acme:{name}\n" for kind, name in ENTRY_POINTS.items())
    (installed / "entry_points.txt").write_text(points)
    path = os.pathsep.join([str(OUTSIDE), str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, OUTSIDE / "use.py", folder],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_uses_data_set_method_sampler_and_clipping_rule(used):
    plan = used["plan"]
    assert (plan["method"], plan["options"]) == ("acme-sgd", {"mood": "bad"})
    assert (plan["sampling"], plan["clip"]) == ("acme-twice", "acme-soft:0.5")
    assert "acme-clouds" in used["data"]
    assert used["record"]["data"] == "acme-clouds"
    assert used["record"]["sampling"]["kind"] == "acme-twice"
    assert used["record"]["result"]["test_accuracy"] > 0.5
    assert "two coins for each record" in used["statement"]
    assert "the exact cost is not known" in used["statement"], "a sampler is not taken to be tight unless it says so"


def test_its_accountant_is_what_epsilon_and_the_ledger_go_by(used):
    assert '"acme-twice"' in used["ledger"]
    assert used["epsilon"] == pytest.approx(used["epsilon of Poisson sampling"], rel=1e-9)
    assert used["record"]["epsilon"]["verified"] == pytest.approx(used["epsilon"], rel=1e-9)


def test_attack_section_federated_method_and_audit(used):
    assert "acme-guess" in used["attacked"]
    assert "Seen by Acme" in used["page"]
    assert used["federation"] == "acme-average"
    assert "consistent" in used["audit"]


@dataclass(frozen=True)
class AnotherFlat(Flat):
    name: ClassVar[str] = "flat"


@pytest.mark.parametrize(
    ("kind", "thing", "said"),
    [
        ("clip", AnotherFlat, "a name that is not taken"),
        ("clip", Flat(0.5), "a class of clipping rules"),
        ("sampler", "poisson", "a class of samplers"),
        ("method", Poisson, "an object of a class derived from"),
        ("colour", Flat, "one of accountant, attack"),
        (
            "accountant",
            Noise(name="mine", event=next(iter(registry.registry_of("accountant").values())).event),
            "a class of its own",
        ),
    ],
)
def test_what_does_not_fit_is_refused(kind, thing, said):
    with pytest.raises(ConfigError, match=said):
        registry.register(kind, thing)


def test_adding_the_same_thing_again_changes_nothing():
    before = methods.available()
    registry.register("method", before["dpsgd"])
    assert methods.available() == before
