"""The examples in docstrings run, and show what they print."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import assay

ROOT = Path(assay.__file__).parent
WITH_EXAMPLES = sorted(path for path in ROOT.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))

WITHOUT_EXAMPLE = {
    "Predictions": "needs a finished run; docs/use.md has examples",
    "TrainedModel": "the same",
    "export": "the same",
    "load": "the same",
    "AssayError": "the base of errors",
    "Budget": "a folder that several runs share",
    "BudgetSpentError": "an error, raised by a run",
    "DataError": "an error, raised by reading files",
    "Result": "what fit returns",
    "UnsupportedModelError": "an error, raised by a model",
    "choose": "trains several models",
    "resume": "needs an interrupted run",
    "train": "reads data and writes a run",
}


def module_of(path: Path) -> str:
    parts = ("assay", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=module_of)
def test_examples_run(path: Path) -> None:
    """Modules without an example are not imported: some need packages that are optional."""
    tested = doctest.testmod(
        import_module(module_of(path)), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert tested.attempted > 0
    assert tested.failed == 0


def test_public_names_have_an_example_where_it_is_short() -> None:
    public = {name: getattr(assay, name) for name in assay.__all__}
    things = {name: thing for name, thing in public.items() if not isinstance(thing, ModuleType)}
    missing = {name for name, thing in things.items() if ">>> " not in (thing.__doc__ or "")}
    assert missing == set(WITHOUT_EXAMPLE)
