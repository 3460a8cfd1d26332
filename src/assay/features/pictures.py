"""What features that are computed from pictures ask of a record."""

from __future__ import annotations

from typing import Any

from assay._util import spec
from assay.errors import ConfigError


def check_picture(part: Any, shape: tuple[int, ...], *, least: int, channels: int | None = None) -> None:
    """Refuse, for features or a preparation, what is no picture of at least this side, with so many channels where that matters."""
    if len(shape) != 3 or min(shape[1:]) < least or (channels is not None and shape[0] != channels):
        kind = "pictures" if channels is None else f"pictures of {channels} channels"
        asked = spec.describe(part, {part.name: type(part)})
        raise ConfigError(
            "features", asked, f"a data set of {kind} of at least {least}×{least}; this one has shape {shape}"
        )


def check_installed(name: str, packages: list[str]) -> None:
    """Refuse features whose packages are missing."""
    from importlib.util import find_spec

    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ConfigError(
            "features", name, f"the packages of `pip install 'assay-dp[utility]'` ({', '.join(missing)} missing)"
        )
