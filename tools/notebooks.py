"""Run the notebooks of docs/notebooks and store what they print and draw: `make notebooks`.

    python -m tools.notebooks docs/notebooks/first-steps.ipynb

No kernel is started. The code cells of a notebook run in this process, in one namespace and in an empty folder. What
they print and the figures that they leave open become the outputs, as Jupyter would store them.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import copy
import io
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
DOTS_PER_INCH = 80


def run(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of this run.

    Args:
        notebook: as its JSON file has it; it stays as it is.
        folder: where its cells run.

    Raises:
        Exception: what a cell raised.
    """
    made, names, count = copy.deepcopy(notebook), {"__name__": "__main__"}, 0
    matplotlib.use("Agg")
    with contextlib.chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cell in made["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                cell["execution_count"], cell["outputs"] = count, _outputs("".join(cell["source"]), names)
    return made


def _outputs(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "<cell>", "exec"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight", metadata={})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    plt.close("all")
    return outputs


def main() -> None:
    """Run the notebooks that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", type=Path, nargs="*", default=sorted(FOLDER.glob("*.ipynb")))
    for path in parser.parse_args().notebooks:
        began = os.times()
        with tempfile.TemporaryDirectory() as folder:
            made = run(json.loads(path.read_text("utf-8")), Path(folder))
        path.write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        took = os.times()
        print(f"{path.name}: {took.user + took.system - began.user - began.system:.1f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
