"""The README fits a first screen, its blocks run, and its figures are those of the pages that it links."""

import math
import re
import tomllib
from pathlib import Path

import pytest

from assay import Adjacency, Plan, methods
from assay.data.sampling import Poisson, Shuffled, WithoutReplacement
from assay.gradients.clipping import Flat
from docs.pages import DOCS, read

GREDP = methods.get("gredp", variant="published", groups=5)
GREDP_REAL = methods.get("gredp", variant="published", groups=5, noise_form="real")
LSSGD = methods.get("lssgd", variant="published")
DISCRETE = methods.get("discrete", variant="published")
SIXTY = {"records": 60_000, "delta": 1e-5}
ROOT = DOCS.parent
README = ROOT / "README.md"
_MOST_WORDS = 600
_MOST_BYTES = 250_000


def table(page: Path, heading: str) -> dict[str, list[str]]:
    """The cells of the table after a heading, by the first cell of a row."""
    _, _, after = page.read_text(encoding="utf-8").partition(heading)
    lines = re.search(r"((?:^\|.*\n)+)", after, re.MULTILINE)[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in rows[2:]}


def figure(cell: str) -> float:
    return math.inf if cell == "∞" else float(cell)


def test_every_block_runs_and_prints_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    read(README, tmp_path)


@pytest.mark.parametrize(
    ("run", "settings", "claimed_by"),
    [
        ("DP-SGD", {"noise_multiplier": 2.856, "batch_size": 2048, "steps": 439}, {}),
        ("GReDP on LeNet-5", {"noise_multiplier": 2.172, "batch_size": 500, "steps": 3600, "method": GREDP}, {}),
        (
            "GReDP on LeNet-5, real-valued noise",
            {"noise_multiplier": 2.172, "batch_size": 500, "steps": 3600, "method": GREDP_REAL},
            {},
        ),
        (
            "Discretised gradients, micro-batches of 4",
            {
                "records": 50_000,
                "noise_multiplier": 1.0,
                "batch_size": 512,
                "steps": 10_000,
                "method": DISCRETE,
                "micro_batch": 4,
            },
            {},
        ),
        (
            "DP-LSSGD, one step on a tenth",
            {
                "noise_multiplier": 1.8386,
                "batch_size": 6000,
                "steps": 1,
                "method": LSSGD,
                "clip": Flat(1.0),
                "sampling": WithoutReplacement,
                "adjacency": Adjacency.REPLACE_ONE,
            },
            {},
        ),
        (
            "DP-SGD on shuffled epochs",
            {"noise_multiplier": 1.0, "batch_size": 256, "steps": 8000, "sampling": Shuffled},
            {"sampling": Poisson},
        ),
    ],
)
def test_the_figures_of_the_table(run, settings, claimed_by):
    method = settings.get("method", methods.get("dpsgd"))
    settings = {**SIXTY, "clip": method.clip, **settings}
    claimed, verified, *_ = table(DOCS / "epsilon.md", "## Why the three numbers differ")[run]
    assert figure(claimed) == pytest.approx(Plan(**{**settings, **claimed_by}).claimed(), rel=0.01)
    assert figure(verified) == pytest.approx(Plan(**settings).epsilon(), rel=0.01)


def test_the_rows_of_the_readme_are_those_of_the_page():
    page = table(DOCS / "epsilon.md", "## Why the three numbers differ")
    rows = table(README, "## Why the three numbers differ")
    assert len(rows) == 4
    assert {run: page[run] for run in rows} == rows


def test_headlines_are_figures_of_their_pages():
    text = " ".join(README.read_text(encoding="utf-8").split())
    accuracy = re.search(r"([\d.]+) % on MNIST at verified ε = 1 \(`assay reproduce utility/frontier`\)", text)[1]
    assert f"| MNIST | 1 | {accuracy} ± " in (ROOT / "experiments/utility/frontier.md").read_text(encoding="utf-8")
    command = r"\(`python -m benchmarks engine --quick --model model3`\)"
    speed = re.search(rf"Model-3 takes ([\d.]+) times as long as a plain one {command}", text)[1]
    assert table(DOCS / "benchmarks.md", "## One step")["Model-3 (64)"][0] == speed


def test_set_up_is_two_commands():
    text = README.read_text(encoding="utf-8")
    assert re.findall(r"^    (make \w+)", text, re.MULTILINE) == ["make demo", "make test"]


def test_it_fits_a_first_screen():
    assert len(README.read_text(encoding="utf-8").split()) <= _MOST_WORDS
    assert (DOCS / "assets/report.png").stat().st_size <= _MOST_BYTES


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name):
    page = ROOT / name
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []


def test_the_version_to_cite_is_the_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
