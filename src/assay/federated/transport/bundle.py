"""The Flower app that a run submits: nothing but the names of our two apps, so that no code travels.

Flower hands whatever was submitted to every node, which then runs it. Assay's nodes run the code that is installed on
them, and accept this bundle only (`is_ours`).
"""

from __future__ import annotations

import io
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

_FILE, _MANIFEST = "pyproject.toml", ".info/CONTENT"


def _text() -> str:
    """The app's only file. It names Assay's version: server and nodes must agree on what their bytes mean."""
    return f"""\
[project]
name = "assay-relay"
version = "{version("assay-dp")}"
description = "Relays Assay's federated rounds"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "assay"

[tool.flwr.app.components]
serverapp = "assay.federated.transport.apps:server_app"
clientapp = "assay.federated.transport.apps:client_app"

[tool.flwr.app.config]
relay = ""
"""


def write(directory: Path) -> Path:
    """Write the app where `flwr run` can take it from."""
    directory.mkdir(parents=True)
    (directory / _FILE).write_text(_text())
    return directory


def is_ours(content: bytes) -> bool:
    """Whether this is exactly our app, without any other file."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            if sorted(names) != sorted([_FILE, _MANIFEST]):
                return False
            return tomllib.loads(archive.read(_FILE).decode()) == tomllib.loads(_text())
    except (zipfile.BadZipFile, UnicodeDecodeError, tomllib.TOMLDecodeError, RuntimeError, OSError):
        return False
