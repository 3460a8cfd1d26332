"""What a stranger installs: the wheel has every file that the package reads, and set-up files name what is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

from assay._util.extras import command

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_every_file_of_the_package():
    inside = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "src/assay"], capture_output=True, text=True, check=True
    ).stdout.split()
    there = {name.removeprefix("src/") for name in tracked if (ROOT / name).exists()}
    assert there <= inside
    for needed in ("assay/py.typed", "assay/presets/mnist.toml", "assay/report/assets/page.html"):
        assert needed in inside
    assert not [name for name in inside if "__pycache__" in name or name.startswith("tests")]


def test_what_setup_files_copy_is_there():
    for name in ("Dockerfile", "Dockerfile.cuda"):
        lines = re.findall(r"^COPY (.+) \S+$", (ROOT / name).read_text("utf-8"), re.MULTILINE)
        copied = [one for line in lines for one in line.split()]
        ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
        assert len(copied) >= 5
        for one in copied:
            assert (ROOT / one).exists()
            assert f"!{one}" in ignored


def test_extras_that_pages_name_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = set()
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "notebooks").glob("*.ipynb"), ROOT / "README.md"]:
        named |= set(re.findall(r"extra `([a-z]+)`", page.read_text("utf-8")))
    assert {"transformers", "federated"} <= named <= extras.keys()


def test_nobody_is_told_to_install_a_package_of_our_name_from_a_registry():
    told = re.compile(r"pip install[^\n`]*assay-dp|pypi\.org/project/assay")
    for folder in ("src", "docs", "examples"):
        for page in (ROOT / folder).rglob("*"):
            if page.suffix in (".py", ".md", ".ipynb", ".toml"):
                assert not told.search(page.read_text("utf-8")), page
    assert not told.search((ROOT / "README.md").read_text("utf-8"))


def test_a_missing_package_is_named_as_pyproject_has_it():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for extra, packages in extras.items():
        said = shlex.split(command(extra))[2:]
        assert {Requirement(one) for one in said} == {Requirement(one) for one in packages}
