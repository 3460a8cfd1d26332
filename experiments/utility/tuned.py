"""What a charged choice costs in accuracy: `python experiments/utility/tuned.py --runs DIRECTORY` writes `tuned.json`.

`assay tune` tries learning rates for the preset of MNIST, and its ε covers training, scores and choice. The preset's
own rate was chosen before, at no charge: `frontier.json` has its rows. Finished choices are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("tuned.json")
EPSILONS, SEEDS = (1,), range(5)
OPTIONS = ["--preset", "best", "--data", "mnist", "--delta", "1e-5", "--try", "lr=2,4,8", "--trials", "4"]


def measured(out: Path, epsilon: float, seed: int) -> dict[str, Any]:
    """One choice: the accuracy of the model that leaves, and what was spent."""
    if not (out / "record.json").exists():
        asked = ["tune", *OPTIONS, "--epsilon", str(epsilon), "--seed", str(seed), "--out", str(out)]
        subprocess.run([Path(sys.executable).with_name("assay"), *asked], check=True)
    record = json.loads((out / "record.json").read_text(encoding="utf-8"))
    return {
        "epsilon": epsilon,
        "seed": seed,
        "accuracy": record["result"]["test_accuracy"],
        "verified": record["epsilon"]["verified"],
        "noise_multiplier": record["noise_multiplier"],
        "commit": record["environment"].get("commit"),
    }


def main() -> None:
    """The command line."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--runs", type=Path, required=True, help="where the run directories go")
    runs = asked.parse_args().runs
    rows = [measured(runs / f"epsilon-{e}-seed-{s}", e, s) for e in EPSILONS for s in SEEDS]
    command = " ".join(["assay tune", *OPTIONS])
    RESULTS.write_text(json.dumps({"command": command, "runs": rows}, indent=1) + "\n", encoding="utf-8")
    for epsilon in EPSILONS:
        found = [100 * row["accuracy"] for row in rows if row["epsilon"] == epsilon]
        print(f"ε = {epsilon}: {statistics.mean(found):.2f} ± {statistics.stdev(found):.2f} %")


if __name__ == "__main__":
    main()
