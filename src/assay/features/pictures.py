"""Checks that features of pictures share."""

from __future__ import annotations

from typing import Any

from assay._util import extras, spec
from assay.errors import ConfigError


def check_picture(features: Any, shape: tuple[int, ...], *, least: int, channels: int | None = None) -> None:
    """Refuse records that are not pictures of at least this side.

    Args:
        features: the features or the preparation that asks, for the error.
        shape: the shape of one record.
        least: the smallest side.
        channels: the number of channels, if that matters.

    Raises:
        ConfigError: the records have another shape.
    """
    if len(shape) != 3 or min(shape[1:]) < least or (channels is not None and shape[0] != channels):
        kind = "pictures" if channels is None else f"pictures of {channels} channels"
        asked = spec.describe(features, {features.name: type(features)})
        raise ConfigError(
            "features", asked, f"a data set of {kind} of at least {least}×{least}; this one has shape {shape}"
        )


def check_installed(name: str, packages: list[str]) -> None:
    """Refuse features whose packages are missing.

    Raises:
        ConfigError: says which, and how to install them.
    """
    from importlib.util import find_spec

    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ConfigError(
            "features", name, f"installed packages ({', '.join(missing)} missing): {extras.command('utility')}"
        )
