"""`python -m tests.zoo`: the mutants, what catches each of them, and how many there are."""

from __future__ import annotations

from tests.zoo.catalogue import ZOO


def main() -> None:
    """Print a line for each mutant, and the counts."""
    wide = max(len(mutant.bug) for mutant in ZOO)
    caught = max(len(mutant.caught) for mutant in ZOO)
    print(f"{'mutant':<{wide}}  {'caught by':<{caught}}  twin")
    for mutant in ZOO:
        print(f"{mutant.bug:<{wide}}  {mutant.caught:<{caught}}  {mutant.twin}")
    ways = len({mutant.caught for mutant in ZOO})
    tests = len({mutant.test for mutant in ZOO})
    print(f"\n{len(ZOO)} mutants, each with a twin; caught in {ways} ways, by {tests} tests in tests/zoo")


if __name__ == "__main__":
    main()
