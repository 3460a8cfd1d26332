"""What features that are computed from pictures ask of a record."""

from __future__ import annotations

from assay.errors import ConfigError


def check_picture(name: str, shape: tuple[int, ...], *, least: int, channels: int | None = None) -> None:
    """Refuse what is no picture of at least this side, with so many channels where that matters."""
    if len(shape) != 3 or min(shape[1:]) < least or (channels is not None and shape[0] != channels):
        kind = "pictures" if channels is None else f"pictures of {channels} channels"
        raise ConfigError(
            "features", name, f"a data set of {kind} of at least {least}×{least}; this one has shape {shape}"
        )


def check_installed(name: str, packages: list[str]) -> None:
    """Refuse features whose packages are missing."""
    from importlib.util import find_spec

    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ConfigError(
            "features", name, f"the packages of `pip install assay-dp[utility]` ({', '.join(missing)} missing)"
        )
