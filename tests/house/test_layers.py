"""The levels of the house: a package imports only from those above it in `LEVELS` (docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import assay

ROOT = Path(assay.__file__).parent
LEVELS = (
    "errors",
    "_util",
    "randomness",
    "accounting",
    "data",
    "mechanisms",
    "models",
    "features",
    "gradients",
    "distributed",
    "methods",
    "runs",
    "loggers",
    "training",
    "presets",
    "federated",
    "inference",
    "audit",
    "attacks",
    "studies",
    "report",
    "integrations",
    "cli",
)
MODULES = sorted(path for path in ROOT.rglob("*.py") if "__pycache__" not in path.parts)


def level(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """The top-level units that a module imports: at the top, within a function, or for types alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "assay" and rest:
                yield rest[0]


def test_every_package_has_its_level():
    units = {level(path) for path in MODULES} - {"__init__", "__main__"}
    assert units == set(LEVELS)


def test_at_most_five_modules_stand_at_the_root():
    assert len(list(ROOT.glob("*.py"))) <= 5


def test_a_module_imports_nothing_from_a_level_above_its_own():
    upward = [
        f"{path.relative_to(ROOT)} imports {unit}"
        for path in MODULES
        if path.parent != ROOT
        for unit in sorted(set(imported(path)))
        if unit not in LEVELS or LEVELS.index(unit) > LEVELS.index(level(path))
    ]
    assert not upward, upward


SPENDS = {"accounting.ledger", "randomness", "mechanisms", "gradients.engine", "training.step", "training.loop"}
"""What draws, adds noise, or holds a ledger that can be charged."""
DECIDES = {"charge", "pay", "settle", "draw", "add_normal", "smallest_noise", "argmax", "argmin", "choice", "shuffle"}
"""What charges, draws, searches for a noise or takes the best of several."""
READS = {"read_ledger"}


def test_the_command_line_only_parses_calls_and_prints():
    """No ledger is written, nothing drawn and nothing chosen below `assay.cli`: whoever calls Python gets the same."""
    wrong = []
    for path in sorted((ROOT / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                within = node.module.removeprefix("assay.")
                if any(within == one or within.startswith(f"{one}.") for one in SPENDS):
                    wrong += [f"{path.name} imports {alias.name}" for alias in node.names if alias.name not in READS]
            elif isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                wrong += [f"{path.name}:{node.lineno} calls {name}"] if name in DECIDES else []
    assert not wrong, wrong
