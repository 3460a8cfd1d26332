"""The pages of docs/ as their reader meets them: fenced blocks in order, each run in one of a few ways.

| block | what is done with it |
|---|---|
| `python` | run, in one namespace a page |
| `python title="a/b.py"`, `toml title="a.toml"` | written to that file |
| `console` | each line `$ assay ...` is run here, `$ torchrun ...` as processes; other lines are their output |
| `text` | the output of the block before |
| `diff` | takes the first to the second of the two files written before |

In output that is shown, `…` stands for anything on its line; all else must be there, line by line and in order. A block
after `<!-- not run: reason -->` is left alone, and so are blocks with Opacus where it is not installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.cli import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_HAS_OPACUS = importlib.util.find_spec("opacus") is not None
_OPACUS = re.compile(r"import (before|opacus)|from opacus")
_LANGUAGES = {"python", "console", "text", "diff", "sh", "toml"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block; `reason` says why it is not run."""

    language: str
    text: str
    line: int
    title: str | None
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page; one that no rule covers is an error."""
    source = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(source):
        line = source[: match.start("language")].count("\n") + 1
        language, info = match["language"], match["info"].strip()
        title = re.fullmatch(r'title="([^"]+)"', info)
        assert not info or title, f"{page.name}:{line}: {info!r} is no title"
        assert language in _LANGUAGES, f"{page.name}:{line}: a block of {language or 'no language'}"
        assert language != "sh" or match["reason"], f"{page.name}:{line}: sh blocks are not run: say why not"
        found.append(
            Block(
                language=language,
                text=match["text"],
                line=line,
                title=title[1] if title else None,
                reason=match["reason"],
            )
        )
    assert len(re.findall(r"^ *```", source, re.MULTILINE)) == 2 * len(found), f"{page.name}: a block without its end"
    return found


@dataclass
class Reader:
    """Somebody who goes through a page from top to bottom, in a folder of their own."""

    page: Path
    folder: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    files: list[str] = field(default_factory=list)
    said: str | None = ""

    def follow(self, block: Block) -> None:
        """Do what the page says."""
        if block.reason is not None:
            return
        if block.language == "python" and block.title is None and _OPACUS.search(block.text) and not _HAS_OPACUS:
            self.said = None
            return
        getattr(self, f"_{block.language}")(block)

    def where(self, block: Block) -> str:
        return f"{self.page.name}:{block.line}"

    def _python(self, block: Block) -> None:
        if block.title is not None:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            self.files.append(block.text)
            return
        # line numbers of a traceback are those of the page
        code = compile("\n" * block.line + block.text, str(self.page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, self.names)
        self.said = out.getvalue()

    def _toml(self, block: Block) -> None:
        assert block.title is not None, f"{self.where(block)}: a block of TOML has a title, the file it is written to"
        (self.folder / block.title).write_text(block.text, encoding="utf-8")

    def _console(self, block: Block) -> None:
        for part in re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            name, *arguments = shlex.split(command)
            assert name in ("assay", "torchrun"), f"{self.where(block)}: {command!r} is no command of assay"
            code, said = run(arguments) if name == "assay" else launched(arguments, self.folder)
            assert code == 0, f"{self.where(block)}: {command} ended with {code}\n{said}"
            check_shown(shown, said, f"{self.where(block)}: {command}")
            self.said = said

    def _text(self, block: Block) -> None:
        if self.said is not None:
            check_shown(block.text, self.said, self.where(block))

    def _diff(self, block: Block) -> None:
        lines = [(line[:1], line[1:]) for line in block.text.splitlines()]
        for sign, whole in zip("-+", self.files[-2:], strict=True):
            kept = [text for mark, text in lines if mark in ("", " ", sign)]
            assert kept == whole.splitlines(), f"{self.where(block)}: the lines without {sign!r} are another file"


def read(page: Path, folder: Path) -> None:
    """Go through a page from top to bottom; an AssertionError says where it does not hold."""
    reader = Reader(page, folder)
    for block in blocks(page):
        reader.follow(block)


def run(arguments: list[str]) -> tuple[int, str]:
    """Exit code and standard output of a command, in this process; errors are among the output."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["assay", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = before
    return code, out.getvalue() if code == 0 else out.getvalue() + err.getvalue()


def launched(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and standard output of torchrun; errors are among the output."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def check_shown(shown: str, said: str, where: str) -> None:
    """Every line that is shown is in what was said, in this order."""
    left = iter(said.splitlines())
    for line in filter(str.strip, shown.splitlines()):
        if line.strip() == "…":
            continue
        pattern = ".*".join(re.escape(part) for part in line.strip().split("…"))
        assert any(re.fullmatch(pattern, said_line.strip()) for said_line in left), f"{where}: no {line!r} in\n{said}"
