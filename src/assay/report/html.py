"""HTML from Python, escaped unless it is HTML already: anybody may have written the names and notes of runs."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

_VOID = {"br", "hr", "img", "input", "meta", "wbr"}


class Html(str):
    """Text that is HTML and is not escaped again. Made by `tag` and `join` only."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"


def join(*children: Child) -> Html:
    """Children one after another; plain text is escaped, None is nothing."""
    return Html("".join(_flat(children)))


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """An element.

    `class_` and `for_` are class and for; other underscores become hyphens. True is a bare attribute; None and False
    leave it out.
    """
    said = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        said.append(f" {key}" if value is True else f' {key}="{html.escape(str(value), quote=True)}"')
    opened = f"<{name}{''.join(said)}>"
    return Html(opened if name in _VOID else f"{opened}{join(*children)}</{name}>")


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            yield str(child)
        elif isinstance(child, str | int | float):
            yield html.escape(str(child), quote=True)
        else:
            yield from _flat(child)
