"""The list of the zoo is complete: every mutant is in it, and every test that it names is there."""

import ast
from pathlib import Path

import pytest

from .catalogue import ZOO

HERE = Path(__file__).parent
MODULES = ("mutants.py", "mutant_models.py", "mutant_runs.py")
HELPERS = {"nobody_locks", "Centred", "with_norm", "Hidden", "Shares"}  # parts of other mutants


def defined(name):
    tree = ast.parse((HERE / name).read_text(encoding="utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")}


def test_every_mutant_is_listed():
    there = set().union(*map(defined, MODULES)) - HELPERS
    assert {mutant.code for mutant in ZOO} - {""} == there


@pytest.mark.parametrize("test", sorted({mutant.test for mutant in ZOO}))
def test_every_test_that_is_named_exists(test):
    file, _, function = test.partition("::")
    assert function in defined(file)


def test_every_mutant_is_listed_once_and_has_a_twin():
    assert len({mutant.bug for mutant in ZOO}) == len(ZOO)
    assert all(mutant.twin and mutant.caught for mutant in ZOO)


def test_the_threat_model_says_how_many_there_are():
    page = (HERE.parents[1] / "docs/threat-model.md").read_text(encoding="utf-8")
    assert f"{len(ZOO)} mutants, each with a twin" in " ".join(page.split())
