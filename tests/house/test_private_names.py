"""Nothing outside a module touches its underscore names: neither `from x import _y` nor `x._y`."""

from __future__ import annotations

import ast
from pathlib import Path

import assay

ROOT = Path(assay.__file__).parent
TESTS = Path(__file__).parents[1]

THEIRS = {"_backward_hooks", "_base", "_blocks", "_buffers", "_conv_forward", "_parameters", "_values", "_version"}
"""Names of torch and of EfficientNet that a module of Assay has too."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def names_in(tree: ast.Module) -> tuple[set[str], list[tuple[int, str]]]:
    """The private names that a module defines (functions, classes, variables, attributes, imports, slots), and those
    that it imports from Assay or reads as attributes, with their lines.
    """
    defined: set[str] = set()
    touched: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()) if is_private(name):
                touched.append((node.lineno, name))
            case (
                ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name) | ast.Constant(value=str(name))
            ):
                defined.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                defined.add(name)
            case ast.ImportFrom(module=str(module)) if module.startswith("assay."):
                touched += [(node.lineno, alias.name) for alias in node.names if is_private(alias.name)]
            case ast.Import():
                defined |= {alias.asname or alias.name for alias in node.names}
            case ast.ImportFrom():
                defined |= {alias.asname or alias.name for alias in node.names}
    return {name for name in defined if is_private(name)}, touched


def test_nobody_touches_another_module_s_private_names() -> None:
    """A name that a module does not define must not be a private one of Assay.

    Other names belong to other packages. The zoo is left out: its mutants plant bugs in private code.
    """
    paths = [*ROOT.rglob("*.py"), *(path for path in TESTS.rglob("*.py") if "zoo" not in path.parts)]
    names = {path: names_in(ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(paths)}
    ours = set().union(*(defined for path, (defined, _) in names.items() if path.is_relative_to(ROOT))) - THEIRS
    outside = [
        f"{path.relative_to(path.parents[1])}:{line}: {name}"
        for path, (defined, touched) in names.items()
        for line, name in touched
        if name in ours and name not in defined
    ]
    assert not outside, outside
