"""The README's code runs, its figures are what its commands print, and its set-up is two commands."""

import math
import re
from pathlib import Path

import pytest

from assay import Plan, methods
from assay.data.sampling import Shuffled

GREDP = methods.get("gredp", variant="published", groups=5)
GREDP_REAL = methods.get("gredp", variant="published", groups=5, noise_form="real")
DISCRETE = methods.get("discrete", variant="published")
README = Path(__file__).parents[2] / "README.md"


def test_the_python_blocks_run_one_after_another():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert names["result"].epsilon <= 3
    assert names["step"].epsilon() <= 3
    assert names["result"].accuracy > 0.5


@pytest.mark.parametrize(
    ("settings", "claimed", "verified"),
    [
        ({"noise_multiplier": 2.856, "batch_size": 2048, "steps": 439}, 1.09, 0.992),
        ({"noise_multiplier": 2.172, "batch_size": 500, "steps": 3600, "method": GREDP}, 1.00, 7.18),
        ({"noise_multiplier": 2.172, "batch_size": 500, "steps": 3600, "method": GREDP_REAL}, 1.00, math.inf),
        ({"noise_multiplier": 1.0, "batch_size": 256, "steps": 8000, "method": DISCRETE, "micro_batch": 4}, 2.68, 15.9),
        ({"noise_multiplier": 1.0, "batch_size": 256, "steps": 8000}, 2.28, None),
        ({"noise_multiplier": 1.0, "batch_size": 256, "steps": 8000, "sampling": Shuffled}, None, 42.0),
    ],
)
def test_the_figures_of_the_table(settings, claimed, verified):
    method = settings.get("method", methods.get("dpsgd"))
    plan = Plan(records=60_000, delta=1e-5, clip=method.clip, **settings)
    if claimed is not None:
        assert plan.claimed() == pytest.approx(claimed, rel=0.01)
    if verified is not None:
        assert plan.epsilon() == pytest.approx(verified, rel=0.01)


def test_set_up_is_two_commands():
    text = README.read_text(encoding="utf-8")
    assert re.findall(r"^    (make \w+)", text, re.MULTILINE) == ["make demo", "make test"]
