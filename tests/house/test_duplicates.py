"""No two places share twelve lines of code: what is the same is written once."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "tools", "examples")
LINES = 12


def code_lines(path: Path) -> list[tuple[int, str]]:
    """Lines with their numbers, but for imports, comments and lone punctuation; white space is folded."""
    numbered = enumerate((" ".join(line.split()) for line in path.read_text("utf-8").splitlines()), 1)
    passed_over = ("#", "import ", "from ")
    return [(at, line) for at, line in numbered if any(map(str.isalnum, line)) and not line.startswith(passed_over)]


def test_no_two_places_share_twelve_lines():
    first: dict[tuple[str, ...], str] = {}
    shared = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            lines = code_lines(path)
            for start in range(len(lines) - LINES + 1):
                window = tuple(line for _, line in lines[start : start + LINES])
                here = f"{path.relative_to(ROOT)}:{lines[start][0]}"
                there = first.setdefault(window, here)
                shared += [f"{there} and {here}"] if there != here else []
    assert not shared, shared
