"""Use everything that `acme` adds, by its names alone, in the folder that is given: a run by its command, then the rest
on it.
"""

import json
import sys
from pathlib import Path

from typer.testing import CliRunner

from assay import Plan, data
from assay._util import registry
from assay.cli import app
from assay.data.sampling import Poisson

FOLDER = Path(sys.argv[1])
RUN, PAGE, FEDERATION = FOLDER / "run", FOLDER / "page.html", FOLDER / "federation"


def assay(*words):
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


train = "train --data acme-clouds --model logistic --method acme-sgd --option mood=bad --sampling acme-twice"
assay(
    *train.split(),
    *["--clip", "acme-soft:0.5", "--noise-multiplier", "2", "--epochs", "2", "--batch-size", "20", "--seed", "0"],
    "--out",
    RUN,
)
attacked = assay("attack", RUN, "--attack", "acme-guess", "--records", 30, "--save", "--json")
assay("report", RUN, "--out", PAGE)

import acme  # noqa: E402

registry.register("federated_method", acme.FEDERATED)
federate = "federate --data acme-clouds --model logistic --method acme-average --clients 10 --per-round 5 --rounds 2"
assay(*federate.split(), *["--noise-multiplier", "1", "--seed", "0"], "--out", FEDERATION)

plan = Plan.from_json(json.loads((RUN / "run.json").read_text())["plan"])
like = Plan(records=200, batch_size=20, steps=plan.steps, noise_multiplier=2.0, delta=plan.delta, sampling=Poisson)
record = json.loads((RUN / "record.json").read_text())
print(
    json.dumps(
        {
            "plan": plan.to_json(),
            "record": record,
            "ledger": (RUN / "ledger.jsonl").read_text(),
            "statement": assay("show", RUN),
            "attacked": attacked,
            "page": PAGE.read_text(),
            "federation": json.loads((FEDERATION / "record.json").read_text())["method"],
            "epsilon": plan.epsilon(),
            "epsilon of Poisson sampling": like.epsilon(),
            "audit": assay("audit", "--method", "acme-sgd", "--releases", 1500, "--seed", 0),
            "data": [info.name for info in data.available()],
        }
    )
)
