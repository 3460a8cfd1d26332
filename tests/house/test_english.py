"""Words that CONTRIBUTING.md keeps out: calques, and participles as names of what a function does."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "assay").rglob("*.py"))
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
THING, UNIT = "value|loss|row|number|release|batch|score", "record|step|round|batch|layer|epoch|client|person"
CALQUES = re.compile(
    rf"\banew\b|\bgone on with\b|\ba coin a\b|\b(?:one|two|a) (?:{THING}) an? (?:{UNIT})\b", re.IGNORECASE
)
ACTIONS = {"finished", "released", "checked", "kept", "started", "ended"}
"""Names that say what was done. As a property, or with something to answer, they are adjectives."""


def test_no_calques() -> None:
    found = {str(path.relative_to(ROOT)): CALQUES.findall(_prose(path)) for path in [*SOURCES, *PAGES]}
    assert {path: words for path, words in found.items() if words} == {}


def _prose(path: Path) -> str:
    return " ".join(path.read_text("utf-8").replace("_anew", "").split())


def test_actions_are_verbs() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.lstrip("_") in ACTIONS and _answers_nothing(node)
    ]
    assert found == []


def _answers_nothing(node: ast.FunctionDef) -> bool:
    return not node.decorator_list and isinstance(node.returns, ast.Constant) and node.returns.value is None
