"""What mkdocs is told beyond mkdocs.yml: the measurements of experiments/ are pages of the site too.

Pages link to them as ../experiments/..., which is right in the repository; in the site they lie beside the pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_SHOWN = {".md", ".png", ".svg"}


def on_files(files: Files, config: Any) -> Files:
    """Add the measurements."""
    root = Path(config["docs_dir"]).parent
    for path in sorted((root / "experiments").rglob("*")):
        if path.suffix in _SHOWN:
            name = path.relative_to(root).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links as they are in the site."""
    return markdown.replace("](../experiments/", "](experiments/")
