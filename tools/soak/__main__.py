"""`python -m tools.soak --minutes N [--seed S] [--only CAMPAIGN]`: repeat the campaigns, print counts.

Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import collections
import platform
import random
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
from tools.soak.campaigns import CAMPAIGNS, Trials, Violation

from assay import data


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, required=True, help="how long; the trial at hand is brought to its end"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the first trial; random if not given")
    parser.add_argument("--only", choices=tuple(CAMPAIGNS), default=None, help="one campaign alone")
    return parser.parse_args()


def main() -> int:
    """Run trials until the time is up.

    Returns:
        The exit code: 1 if a promise was broken.
    """
    asked = _asked()
    first = secrets.randbelow(2**32) if asked.seed is None else asked.seed
    torch.set_num_threads(1)  # forked children have no other threads
    data.load("digits")  # imported once, by the parent
    names = [asked.only] if asked.only else list(CAMPAIGNS)
    counts: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in names}
    violations: list[str] = []
    begun, number = time.monotonic(), 0
    home = Path(tempfile.mkdtemp(prefix="assay-soak-"))
    try:
        trials = Trials(home)
        while time.monotonic() - begun < 60 * asked.minutes:
            name, seed = names[number % len(names)], first + number
            number += 1
            folder = home / "trial"
            folder.mkdir()
            try:
                counts[name][CAMPAIGNS[name](random.Random(seed), folder, trials)] += 1
            except Violation as broken:
                violations.append(f"{name}, seed {seed}: {broken}")
                print(f"VIOLATION {violations[-1]}", flush=True)
            except Exception:  # of the campaign's own checks: a file that they could not read
                violations.append(f"{name}, seed {seed}: {traceback.format_exc()}")
                print(f"VIOLATION {violations[-1]}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    _print(counts, violations, first, number, time.monotonic() - begun)
    return 1 if violations else 0


def _print(
    counts: dict[str, collections.Counter[str]], violations: list[str], first: int, number: int, seconds: float
) -> None:
    print(
        f"{number} trials in {seconds / 60:.1f} minutes, seeds {first} to {first + number - 1}, {platform.platform()}"
    )
    for name, found in counts.items():
        told = ", ".join(f"{word} {count}" for word, count in sorted(found.items()))
        print(f"{name:<24} {sum(found.values()):>5}  {told}")
    print(f"{'violations':<24} {len(violations):>5}")


if __name__ == "__main__":
    sys.exit(main())
