"""The documentation: every block runs, every figure shown is what its command prints, and the site builds without a
warning.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import assay
from assay import methods
from assay._util.registry import MethodRegistry
from docs.pages import DOCS, PAGES, blocks, read

ROOT = DOCS.parent
PACKAGES = [
    f"assay.{name}"
    for name in ("data", "models", "methods", "presets", "audit", "attacks", "federated", "studies", "report")
]
_MOST_NOT_RUN = 6  # blocks that install something or take minutes; each gives its reason on the page


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """An empty folder to read a page in; what is imported from it, and the methods added in it, are gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path / "src/assay/methods")])
    found = MethodRegistry("method", methods.Method, "assay.methods")
    monkeypatch.setattr(methods, "METHODS", found)  # looks for its files again, on the page's path too
    for name, own in (("available", found.available), ("get", found.with_options), ("options", found.options)):
        monkeypatch.setattr(methods, name, own)
    before = set(sys.modules)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if name not in before and str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs(page: Path, own_folder: Path):
    read(page, own_folder)


def test_few_blocks_are_not_run():
    assert sum(block.reason is not None for page in PAGES for block in blocks(page)) <= _MOST_NOT_RUN


def test_every_method_is_on_the_page_about_methods():
    page = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert [name for name in methods.available() if f"`{name}`" not in page] == []


def test_measurements_on_the_pages_are_those_of_the_experiments():
    checked = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for source, table in re.findall(r"<!-- rows of (\S+) -->\n\n((?:\|.*\n)+)", text):
            measured = (ROOT / source).read_text(encoding="utf-8").splitlines()
            rows = table.splitlines()
            assert [row for row in rows if row not in measured] == []
            checked += len(rows) - 2
    assert checked > 0


def public(package: str) -> set[str]:
    """The public names of a package: those it lists, or else the functions and classes that it defines."""
    module = importlib.import_module(package)
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == package
        ]
    return {f"{package}.{name}" for name in listed}


def test_every_public_name_of_assay_is_on_the_page_of_the_api():
    listed = re.findall(r"^::: (\S+)", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {f"assay.{name}" for name in assay.__all__} <= set(listed)
    assert set(PACKAGES) <= set(listed)


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path):
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {"index.html", "threat-model.html", "architecture.html"} <= {page.name for page in pages}
    reference = set(re.findall(r'id="(assay\.[\w.]+)"', (tmp_path / "site/api.html").read_text(encoding="utf-8")))
    for package in ("assay", *PACKAGES):
        assert public(package) - reference == set()
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(?:https?:)?//", html) == []
        assert re.findall(r"<link[^>]*\shref=\"?(?:https?:)?//", html) == []


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```python\nprint(1.5)\n```\n\n```text\n1.4\n```\n", "no '1.4'"),
        ("```python\nprint(2)\nprint(1)\n```\n\n```text\n1\n2\n```\n", "no '2'"),
        ("```console\n$ assay methods dpsgd\nas published: not sound\n```\n", "not sound"),
        ("```console\n$ assay train --data digits --epsilon 0 --out a\n```\n", "ended with 2"),
        (
            '```python title="a.py"\nx = 1\n```\n```python title="b.py"\nx = 2\n```\n```diff\n-x = 1\n+x = 3\n```\n',
            "another file",
        ),
        ("```sh\nmake demo\n```\n", "say why not"),
        ("```\nassay\n```\n", "no language"),
        ("```python\nx = 1\n", "without its end"),
    ],
)
def test_a_page_that_does_not_hold_is_noticed(page: str, complaint: str, own_folder: Path):
    (own_folder / "page.md").write_text(page, encoding="utf-8")
    with pytest.raises(AssertionError, match=complaint):
        read(own_folder / "page.md", own_folder)


def test_what_is_not_run_is_left_alone(own_folder: Path):
    (own_folder / "page.md").write_text("<!-- not run: never -->\n```python\n1 / 0\n```\n", encoding="utf-8")
    (block,) = blocks(own_folder / "page.md")
    assert block.reason == "never"
    read(own_folder / "page.md", own_folder)
