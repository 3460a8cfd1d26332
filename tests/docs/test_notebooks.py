"""The notebooks run from the first cell to the last, and show what they print and draw today."""

from __future__ import annotations

import json
import re

import nbformat
import pytest
from tools import notebooks

EVERY = {path.stem: path for path in sorted(notebooks.FOLDER.glob("*.ipynb"))}


def _shown(notebook):
    """What each code cell prints, with every number as …, and how many pictures it draws.

    Numbers may differ in their last digits on another kind of machine.
    """
    return [
        (
            re.sub(r"\d+(\.\d+)?", "…", "".join(line for one in cell["outputs"] for line in one.get("text", []))),
            sum("data" in one for one in cell["outputs"]),
        )
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def test_the_page_about_notebooks_names_each():
    page = (notebooks.FOLDER.parent / "notebooks.md").read_text("utf-8")
    assert sorted(re.findall(r"\(notebooks/([\w-]+)\.ipynb\)", page)) == sorted(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_a_notebook_runs_and_shows_what_it_does(name, tmp_path):
    stored = json.loads(EVERY[name].read_text("utf-8"))
    nbformat.validate(stored)
    made = notebooks.run(stored, tmp_path)
    assert sum(pictures for _, pictures in _shown(made)) >= 1
    if name != "lora-language-model":
        assert _shown(made) == _shown(stored), "run `make notebooks` and look at what changed"
    else:  # the words that are sampled are another machine's
        assert _shown(made)[:-1] == _shown(stored)[:-1]
