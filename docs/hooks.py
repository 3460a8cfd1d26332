"""What mkdocs is told beyond mkdocs.yml: measurements and notebooks are pages of the site too.

Pages link to measurements as ../experiments/..., which is right in the repository; in the site they lie beside the
pages. A notebook becomes a page with the outputs that are stored in it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_SHOWN = {".md", ".png", ".svg"}


def on_files(files: Files, config: Any) -> Files:
    """Add the measurements and the notebooks."""
    root = Path(config["docs_dir"]).parent
    for path in sorted((root / "experiments").rglob("*")):
        if path.suffix in _SHOWN:
            name = path.relative_to(root).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for path in sorted((root / "docs" / "notebooks").glob("*.ipynb")):
        for suffix, content in _pages(path):
            files.append(File.generated(config, f"notebooks/{path.stem}{suffix}", content=content))
    return files


def _pages(notebook: Path) -> Iterator[tuple[str, str | bytes]]:
    """The pictures of a notebook and its page, each with the end of its name."""
    parts, pictures = [], 0
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text'])}```")
            else:
                pictures += 1
                yield f"-{pictures}.png", base64.b64decode(output["data"]["image/png"])
                parts.append(f"![What the cell above draws]({notebook.stem}-{pictures}.png)")
    yield ".md", "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links as they are in the site."""
    return markdown.replace("](../experiments/", "](experiments/").replace(".ipynb)", ".md)")
